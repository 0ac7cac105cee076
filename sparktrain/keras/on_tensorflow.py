"""What workers import for Keras on its TensorFlow backend: the backend is settled before the trainer loads Keras."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

from sparktrain.keras.lean import lean

with lean(hidden=("jax", "sklearn")):
    from sparktrain.keras.trainer import train

__all__ = ["train"]

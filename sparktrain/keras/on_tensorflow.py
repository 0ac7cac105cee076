"""What the workers import for Keras on its TensorFlow backend: it settles the backend, and then the trainer loads Keras."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

from sparktrain.keras.trainer import train  # noqa: E402

__all__ = ["train"]

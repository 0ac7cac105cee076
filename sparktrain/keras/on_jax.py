"""What workers import for Keras on its JAX backend: the backend is settled before the trainer loads Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from sparktrain.keras.trainer import train

__all__ = ["train"]

"""What the gang's workers import for Keras on its JAX backend: it settles the backend, and then the trainer can load Keras."""

import os


os.environ["KERAS_BACKEND"] = "jax"

from sparktrain.keras.trainer import train

__all__ = ["train"]

"""What the workers import for Keras on its JAX backend: it settles the backend, and then the trainer loads Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from sparktrain.keras.trainer import train  # noqa: E402

__all__ = ["train"]

"""What the gang's workers import for Keras on its TensorFlow backend: it settles the backend, and then the trainer can load Keras."""

import os


os.environ["KERAS_BACKEND"] = "tensorflow"

from sparktrain.keras.trainer import train

__all__ = ["train"]

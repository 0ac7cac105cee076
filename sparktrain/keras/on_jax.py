"""What workers import for Keras on its JAX backend: the backend is settled before the trainer loads Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["PJRT_NPROC"] = os.environ["NPROC"] = os.environ.get("OMP_NUM_THREADS", "1")  # XLA's threads

from sparktrain.keras.lean import lean

with lean(hidden=("sklearn",)):
    from sparktrain.keras.trainer import train

__all__ = ["train"]

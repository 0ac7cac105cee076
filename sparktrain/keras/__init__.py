"""Keras 3 on Spark: an estimator that trains by `Model.fit` on the TensorFlow, JAX or PyTorch backend, and its model.

Names are loaded when first used, so that a worker imports a trainer and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktrain.keras.estimator import KerasEstimator
    from sparktrain.keras.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "model" if name.endswith("Model") else "estimator"
    return getattr(importlib.import_module(f"sparktrain.keras.{home}"), name)

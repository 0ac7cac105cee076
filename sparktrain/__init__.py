"""Spark-native distributed training: ``Estimator.fit(df)`` on a gang of processes, and `run` for any function.

The estimators live in one package per framework, so that importing one never imports another:
``sparktrain.torch`` holds `TorchEstimator` and `TorchModel`. Importing this package imports no
framework and no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktrain.current import CurrentGang, current_gang
    from sparktrain.runner import GangRunner, run

__all__ = ["CurrentGang", "GangRunner", "current_gang", "run"]
__version__ = "0.1.0"

_HOMES = {
    "CurrentGang": "sparktrain.current",
    "GangRunner": "sparktrain.runner",
    "current_gang": "sparktrain.current",
    "run": "sparktrain.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

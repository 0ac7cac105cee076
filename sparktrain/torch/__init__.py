"""PyTorch on Spark: `TorchEstimator` trains, `TorchModel` predicts; `Callback` and `EarlyStopping` look on.

Names are loaded when first used, so that a worker imports a trainer and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktrain.torch.callbacks import Callback, EarlyStopping, TrainState
    from sparktrain.torch.estimator import TorchEstimator
    from sparktrain.torch.model import TorchModel

__all__ = ["Callback", "EarlyStopping", "TorchEstimator", "TorchModel", "TrainState"]

_HOMES = {
    "Callback": "sparktrain.torch.callbacks",
    "EarlyStopping": "sparktrain.torch.callbacks",
    "TorchEstimator": "sparktrain.torch.estimator",
    "TorchModel": "sparktrain.torch.model",
    "TrainState": "sparktrain.torch.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

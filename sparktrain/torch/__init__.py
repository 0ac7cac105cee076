"""PyTorch on Spark: `TorchEstimator` trains, `TorchModel` predicts.

Names are loaded when first used, so that a worker imports a trainer and no pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktrain.torch.estimator import TorchEstimator
    from sparktrain.torch.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    if name == "TorchEstimator":
        from sparktrain.torch.estimator import TorchEstimator

        return TorchEstimator
    if name == "TorchModel":
        from sparktrain.torch.model import TorchModel

        return TorchModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

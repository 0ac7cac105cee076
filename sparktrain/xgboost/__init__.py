"""XGBoost on Spark: estimators that train over XGBoost's own collective, and the models they give.

Names are loaded when first used, so that a worker imports a trainer and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparktrain.xgboost.estimator import XGBoostClassifier, XGBoostRanker, XGBoostRegressor
    from sparktrain.xgboost.model import XGBoostClassifierModel, XGBoostRankerModel, XGBoostRegressorModel

__all__ = [
    "XGBoostClassifier",
    "XGBoostClassifierModel",
    "XGBoostRanker",
    "XGBoostRankerModel",
    "XGBoostRegressor",
    "XGBoostRegressorModel",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "model" if name.endswith("Model") else "estimator"
    return getattr(importlib.import_module(f"sparktrain.xgboost.{home}"), name)

"""What a booster tells of itself: rounds, classes, outputs. Used by driver and worker alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgboost as xgb

CLASSES = "sparktrain_classes"
"""Attribute of a booster with the user's class values, JSON."""


def up_to_best(booster: xgb.Booster) -> xgb.Booster:
    """The rounds up to the best one after early stopping, so that every way to predict uses them; else all.

    A linear booster has no rounds to cut.
    """
    best = booster.attr("best_iteration")
    if best is None or int(best) + 1 >= booster.num_boosted_rounds():
        return booster
    try:
        cut = booster[: int(best) + 1]
    except (xgb.core.XGBoostError, ValueError):
        return booster
    cut.set_attr(best_iteration=best, best_score=booster.attr("best_score"))
    return cut


def to_go_on_from(raw: bytes | bytearray) -> xgb.Booster:
    """A booster for more rounds, without what its own early stopping has written into it."""
    booster = of_bytes(raw)
    booster.set_attr(best_iteration=None, best_score=None)
    return booster


def of_bytes(raw: bytes | bytearray) -> xgb.Booster:
    """A booster from UBJSON or JSON."""
    booster = xgb.Booster()
    booster.load_model(bytearray(raw))
    return booster


def name_classes(booster: xgb.Booster, classes: Sequence[float]) -> None:
    """Write the user's class values into the booster."""
    booster.set_attr(**{CLASSES: json.dumps(list(classes))})


def classes_of(booster: xgb.Booster) -> tuple[float, ...]:
    """The user's class values in the order of the booster's classes; 0, 1, … where it does not tell."""
    named = booster.attr(CLASSES)
    if named is not None:
        return tuple(float(value) for value in json.loads(named))
    return tuple(float(number) for number in range(max(_parameter(booster, "num_class"), 2)))


def classifies(objective: str) -> bool:
    """Whether the margins of an objective are scores of classes."""
    return objective.startswith(("binary:", "multi:")) or objective == "reg:logistic"


def objective_of(booster: xgb.Booster) -> str:
    return str(_config(booster)["objective"]["name"])


def is_linear(booster: xgb.Booster) -> bool:
    return bool(_config(booster)["gradient_booster"]["name"] == "gblinear")


def outputs_of(booster: xgb.Booster) -> int:
    """Values that it predicts for a row: targets, quantiles or classes."""
    row = np.zeros((1, booster.num_features()), np.float32)
    if is_linear(booster):
        matrix = xgb.DMatrix(row, feature_names=booster.feature_names, feature_types=booster.feature_types, nthread=1)
        return int(booster.predict(matrix).size)
    return int(booster.inplace_predict(row, validate_features=False).size)


def margins_of(booster: xgb.Booster) -> int:
    """Margins that it has for a row: one a class, target or quantile."""
    return max(_parameter(booster, "num_class"), _parameter(booster, "num_target"), 1)


def _parameter(booster: xgb.Booster, name: str) -> int:
    return int(_config(booster)["learner_model_param"].get(name, 0))


def _config(booster: xgb.Booster) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(booster.save_config())["learner"]
    return config

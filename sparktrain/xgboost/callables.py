"""The user's callables and callbacks, in the forms of XGBoost's scikit-learn interface, over a gang.

A metric sees the rows of all ranks, as it would in one process; XGBoost itself would average one value a rank.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import xgboost as xgb

from sparktrain.gang.worker import Event
from sparktrain.shards.arrow import Array
from sparktrain.xgboost.communicator import any_rank, joined, summed

VALIDATION = "validation"
TRAINING = "training"
PROGRESS_S = 0.2

EvalsLog = Any
Metric = Callable[..., float]


def takes_weights(function: Callable[..., Any]) -> bool:
    """Whether a callable has the argument in which XGBoost passes weights."""
    return "sample_weight" in inspect.signature(function).parameters


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class GlobalMetric:
    """A callable(labels, predictions[, sample_weight]) -> number over the rows of all ranks."""

    def __init__(self, function: Metric) -> None:
        self._function = function
        self._constant: dict[int, tuple[Array, Array]] = {}

    def __call__(self, predictions: Array, matrix: xgb.DMatrix) -> tuple[str, float]:
        if id(matrix) not in self._constant:
            self._constant[id(matrix)] = (joined(_labels(matrix)), joined(matrix.get_weight()))
        labels, weights = self._constant[id(matrix)]
        everyone = joined(predictions)
        more = {"sample_weight": weights} if len(weights) else {}
        return name_of(self._function), float(self._function(labels, everyone, **more))


class QueryMetric:
    """A callable(labels, predictions) -> number of one query; the mean over all ranks' queries, by their weights."""

    def __init__(self, function: Metric) -> None:
        self._function = function

    def __call__(self, predictions: Array, matrix: xgb.DMatrix) -> tuple[str, float]:
        labels, bounds, weights = matrix.get_label(), matrix.get_uint_info("group_ptr"), matrix.get_weight()
        total = np.zeros(2)
        for query, (start, stop) in enumerate(pairwise(bounds)):
            weight = float(weights[query]) if len(weights) else 1.0
            total += weight * np.array([self._function(labels[start:stop], predictions[start:stop]), 1.0])
        value, weight = summed(total)
        return name_of(self._function), value / weight if weight else float("nan")


class LocalObjective:
    """A callable(labels, predictions[, sample_weight]) -> (gradient, hessian); not called where a rank has no rows.

    Parameters
    ----------
    function : callable
    outputs : int
        Classes or targets, which predictions of no rows don't tell.
    """

    def __init__(self, function: Callable[..., tuple[Array, Array]], outputs: int) -> None:
        self._function, self._outputs = function, outputs

    def __call__(self, predictions: Array, matrix: xgb.DMatrix) -> tuple[Array, Array]:
        if not len(predictions):
            nothing = np.zeros((0, self._outputs), np.float32)
            return nothing, nothing
        weights = matrix.get_weight()
        more = {"sample_weight": weights} if len(weights) else {}
        return self._function(_labels(matrix), predictions, **more)


def _labels(matrix: xgb.DMatrix) -> Array:
    """Shape (rows,), or (rows, targets) where there are several; `get_label` has them in one row."""
    labels: Array = matrix.get_label()
    rows = matrix.num_row()
    return labels if not rows or len(labels) == rows else labels.reshape(rows, -1)


class Together(xgb.callback.TrainingCallback):
    """A user's callback: boosting ends on all ranks where it ends on one."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def before_training(self, model: Any) -> Any:
        return self._callback.before_training(model)

    def after_training(self, model: Any) -> Any:
        return self._callback.after_training(model)

    def before_iteration(self, model: Any, epoch: int, evals_log: EvalsLog) -> bool:
        return any_rank(bool(self._callback.before_iteration(model, epoch, evals_log)))

    def after_iteration(self, model: Any, epoch: int, evals_log: EvalsLog) -> bool:
        return any_rank(bool(self._callback.after_iteration(model, epoch, evals_log)))


class Progress(xgb.callback.TrainingCallback):
    """Rank 0's progress events, every `PROGRESS_S` seconds and after the last round."""

    def __init__(self, emit: Callable[[Event], None], rounds: int) -> None:
        super().__init__()
        self._emit, self._rounds = emit, rounds
        self._last = 0.0

    def after_iteration(self, model: Any, epoch: int, evals_log: EvalsLog) -> bool:
        now = time.perf_counter()
        if now - self._last >= PROGRESS_S or epoch + 1 == self._rounds:
            self._last = now
            metrics = {name: values[-1] for name, values in history_columns(evals_log).items()}
            self._emit({"kind": "rounds", "done": epoch + 1, "total": self._rounds, "metrics": metrics})
        return False


def history_columns(evaluated: EvalsLog) -> dict[str, list[float]]:
    """Each metric's values by round, those of the validation rows as ``val_<metric>``."""
    return {
        f"{'val_' if name == VALIDATION else ''}{metric}": [float(value) for value in values]
        for name, metrics in evaluated.items()
        for metric, values in metrics.items()
    }


def history(evaluated: EvalsLog, rounds: int) -> list[dict[str, float]]:
    """One entry for each of the rounds: ``round`` (from 1), each metric, and its ``val_`` form."""
    columns = history_columns(evaluated)
    return [
        {"round": number + 1, **{name: values[number] for name, values in columns.items()}} for number in range(rounds)
    ]

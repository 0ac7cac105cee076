"""Batch inference in Spark's Python worker: the booster is loaded once per process."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import scipy.sparse
import xgboost as xgb

from sparktrain.gang.resources import device_ordinal
from sparktrain.shards.arrow import Array
from sparktrain.shards.outputs import list_column, vector_column
from sparktrain.shards.sparse import SparseReader, SparseRows

Output = Literal["raw", "probability", "prediction", "contributions", "leaves"]

CACHED_MODELS = 4
BATCH_BYTES = 64 << 20
"""Features of sparse rows that are made dense at a time."""
_boosters: OrderedDict[tuple[str, str], xgb.Booster] = OrderedDict()


@dataclass(frozen=True)
class BoosterPredictor:
    """A booster's predictions as Arrow columns.

    Parameters
    ----------
    booster_file : str
        Name of the Spark file with the booster, UBJSON.
    outputs : tuple of str
        Which columns, in their order.
    classes : tuple of float or None
        The user's class values, in the order of the booster's; None: no classifier.
    nested : bool
        Whether contributions are an array for each class or target.
    missing : float
    rounds : tuple of (int, int)
        Begin and end of the rounds to predict with; end 0: all.
    linear : bool
        Whether it is a linear booster.
    device : str
        ``cuda``: the task's GPU where Spark assigns one, else the CPU.
    hinge : bool
        Whether margins say which class, and nothing of how likely: probabilities are 0 and 1.
    """

    booster_file: str
    outputs: tuple[Output, ...]
    classes: tuple[float, ...] | None
    nested: bool
    missing: float
    rounds: tuple[int, int]
    linear: bool
    device: str
    hinge: bool = False

    def __call__(self, inputs: list[Any]) -> list[pa.Array]:
        features, *margins = inputs
        margin = margins[0] if margins else None
        if not isinstance(features, SparseRows):
            return self._columns(features, margin)
        matrix = features.matrix
        if matrix is not None:
            return self._columns(matrix, margin)
        reader = SparseReader(features)
        step = max(BATCH_BYTES // max(features.width * 4, 1), 1)
        parts = [
            self._columns(self._part(reader, start, step), None if margin is None else margin[start : start + step])
            for start in range(0, len(features), step)
        ]
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]

    def _part(self, reader: SparseReader, start: int, step: int) -> Any:
        rows = np.arange(start, min(start + step, len(reader)))
        if self.missing != 0:
            return reader.dense(rows)
        return scipy.sparse.csr_matrix(reader.csr(rows), shape=(len(rows), reader.width))

    def _columns(self, features: Any, margin: Array | None) -> list[pa.Array]:
        booster = loaded(self.booster_file, self.device)
        wanted = set(self.outputs)
        made: dict[str, pa.Array] = {}
        if wanted & {"raw", "probability", "prediction"}:
            made |= self._predictions(booster, features, margin)
        if "contributions" in wanted:
            matrix = self._matrix(booster, features, margin)
            values = booster.predict(matrix, pred_contribs=True, iteration_range=self.rounds, strict_shape=True)
            made["contributions"] = (
                list_column(values.astype(np.float64)) if self.nested else vector_column(values[:, 0])
            )
        if "leaves" in wanted:
            matrix = self._matrix(booster, features, margin)
            leaves = booster.predict(matrix, pred_leaf=True, iteration_range=self.rounds)
            made["leaves"] = list_column(leaves.reshape(leaves.shape[0], -1).astype(np.int32))
        return [made[name] for name in self.outputs]

    def _predictions(self, booster: xgb.Booster, features: Any, margin: Array | None) -> dict[str, pa.Array]:
        kind = "value" if self.classes is None else "margin"
        predicted = self._predicted(booster, features, margin, kind)
        if self.classes is None:
            values = predicted.astype(np.float64)
            flat = values.ndim == 1 or values.shape[1] == 1
            return {"prediction": list_column(values.reshape(-1) if flat else values)}
        raw, probability = classified(predicted)
        if self.hinge:
            probability = np.stack([raw[:, 1] <= 0, raw[:, 1] > 0], axis=1).astype(np.float64)
        classes = np.asarray(self.classes)
        return {
            "raw": vector_column(raw),
            "probability": vector_column(probability),
            "prediction": pa.array(classes[probability.argmax(axis=1)]),
        }

    def _predicted(self, booster: xgb.Booster, features: Any, margin: Array | None, kind: str) -> Array:
        if self.linear:
            matrix = self._matrix(booster, features, margin)
            values: Array = booster.predict(matrix, output_margin=kind == "margin")
            return values
        values = booster.inplace_predict(
            np.ascontiguousarray(features) if isinstance(features, np.ndarray) else features,
            iteration_range=self.rounds,
            predict_type=kind,
            missing=self.missing,
            base_margin=margin,
            validate_features=False,
        )
        return values

    def _matrix(self, booster: xgb.Booster, features: Any, margin: Array | None) -> xgb.DMatrix:
        types = booster.feature_types
        return xgb.DMatrix(
            features,
            base_margin=margin,
            missing=self.missing,
            feature_names=booster.feature_names,
            feature_types=types,
            enable_categorical=bool(types and "c" in types),
            nthread=1,
        )


def classified(margins: Array) -> tuple[Array, Array]:
    """Raw scores and probabilities, shape (rows, classes), float64, of margins, shape (rows,) or (rows, classes)."""
    margins = margins.astype(np.float64)
    if margins.ndim == 1 or margins.shape[1] == 1:
        margin = margins.reshape(-1)
        with np.errstate(over="ignore"):
            positive = 1 / (1 + np.exp(-margin))
        return np.stack([-margin, margin], axis=1), np.stack([1 - positive, positive], axis=1)
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    return margins, powers / powers.sum(axis=1, keepdims=True)


def loaded(name: str, device: str) -> xgb.Booster:
    """The booster of a Spark file, loaded once a process and device."""
    place = "cpu" if device == "cpu" else _task_device()
    key = (name, place)
    if key not in _boosters:
        from pyspark import SparkFiles

        booster = xgb.Booster({"nthread": 1})
        booster.load_model(bytearray(Path(SparkFiles.get(name)).read_bytes()))
        booster.set_param({"device": place, "nthread": 1})
        _boosters[key] = booster
        while len(_boosters) > CACHED_MODELS:
            _boosters.popitem(last=False)
    _boosters.move_to_end(key)
    return _boosters[key]


def _task_device() -> str:
    """The GPU that Spark assigned to this task, by the number under which this process knows it; else the CPU."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = context.resources().get("gpu") if context is not None else None
    ordinal = device_ordinal(tuple(gpu.addresses) if gpu else (), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return "cpu" if ordinal is None else f"cuda:{ordinal}"

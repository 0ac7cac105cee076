"""Shards made of arrays, and settings of a fit, for tests that run trainers without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparktrain.shards.reader import Shard
from sparktrain.shards.sparse import SparseRows
from sparktrain.shards.tensors import KEY, Role, TensorSpec
from sparktrain.xgboost.spec import BoosterSpec, Features, Task

Array = np.ndarray[Any, Any]


def shard_of(features: Array | SparseRows, labels: Array, keys: Array, **columns: Array) -> Shard:
    """A shard of these rows; `columns` by role: weight, margin, group, validation."""
    parts: list[tuple[TensorSpec, Array]] = []

    def add(role: Role, values: Array, *, sparse: bool = False, shape: tuple[int, ...] | None = None) -> None:
        row = values.shape[1:] if shape is None else shape
        parts.append((TensorSpec(role, role, (), str(values.dtype), row, sparse=sparse), values))

    if isinstance(features, SparseRows):
        add("input", features.values, sparse=True, shape=(features.width,))
        add("length", features.lengths, sparse=True, shape=())
        add("position", features.positions, sparse=True, shape=())
    else:
        add("input", features)
    add("label", labels)
    for role, values in columns.items():
        add(role, values)  # type: ignore[arg-type]
    parts.append((TensorSpec(KEY, "key", (), "int64", ()), keys.astype(np.int64)))
    return Shard(tuple(spec for spec, _ in parts), tuple(values for _, values in parts))


def sparse_of(matrix: Array, dense: Array) -> SparseRows:
    """Rows of a matrix, without their zeros where `dense` is false."""
    stored = (matrix != 0) | dense[:, None]
    sparse_rows = stored & (stored.sum(axis=1) < matrix.shape[1])[:, None]
    return SparseRows(
        matrix[stored].astype(np.float32),
        np.nonzero(sparse_rows)[1].astype(np.int32),
        stored.sum(axis=1).astype(np.int64),
        matrix.shape[1],
    )


def spec_of(task: Task, params: Mapping[str, Any], rounds: int, **fields: Any) -> BoosterSpec:
    """A fit's settings, where most are as by default; `features` fields by name as well."""
    known = {"names": None, "types": None, "categorical": (), "weights": None, "missing": float("nan")}
    features = Features(**{name: fields.pop(name, default) for name, default in known.items()})
    defaults: dict[str, Any] = {
        "early_stopping_rounds": None,
        "training_metrics": True,
        "validation": None,
        "seed": 0,
        "device": "cpu",
        "external_memory": False,
        "dealt": True,
        "classes": None,
        "retries": None,
    }
    return BoosterSpec(task=task, params=params, rounds=rounds, features=features, **{**defaults, **fields})

"""Classes: any set of numbers, mapped to 0 … n - 1 for XGBoost and back for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparktrain.errors import DataError
from sparktrain.shards import disk
from sparktrain.shards.arrow import Array

MOST_CLASSES = 10_000
CHUNK_ROWS = 1 << 20


def distinct(labels: Array) -> Array:
    """The sorted distinct values of a shard's labels, in chunks.

    Raises
    ------
    DataError
        For more than `MOST_CLASSES`: a regression's label, most likely.
    """
    found = np.empty(0, labels.dtype)
    for start in range(0, len(labels), CHUNK_ROWS):
        found = np.union1d(found, labels[start : start + CHUNK_ROWS])
        if len(found) > MOST_CLASSES:
            raise DataError(
                f"label_col has more than {MOST_CLASSES:,} distinct values, which are no classes; use XGBoostRegressor"
            )
    return found


def class_values(gathered: Callable[[Any], list[Any]], labels: Array, known: Sequence[float] | None) -> Array:
    """The classes of all ranks' labels, sorted; or those of the model to go on from, of which labels may lack some.

    Raises
    ------
    DataError
        For less than two classes, or labels that the given model does not know.
    """
    found = np.unique(np.concatenate(gathered(distinct(labels))))
    if known is not None:
        new = np.setdiff1d(found, known)
        if len(new):
            raise DataError(f"label_col has values {new.tolist()}, which xgb_model's classes {list(known)} lack")
        return np.asarray(known, found.dtype)
    if len(found) < 2:
        raise DataError(f"label_col has the value {found.tolist()} only; a classifier needs two classes or more")
    return found


def encoded(labels: Array, classes: Array) -> Array:
    """Labels as positions in `classes`, float32."""
    order = np.argsort(classes)
    out = disk.empty_array(len(labels), np.float32)
    for start in range(0, len(labels), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        out[part] = order[np.searchsorted(classes, labels[part], sorter=order)]
    return out

"""NumPy results as Arrow columns that Spark takes: lists as deep as the shape, dense ML vectors."""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa

from sparktrain.shards.arrow import Array


def list_column(rows: Array) -> pa.Array:
    """Rows of shape (rows, *shape) as lists as deep as the shape; shape (rows,) as scalars."""
    column = pa.array(np.ascontiguousarray(rows).reshape(-1))
    shape = rows.shape[1:]
    for depth, size in reversed(list(enumerate(shape))):
        lists = len(rows) * prod(shape[:depth])
        column = pa.ListArray.from_arrays(pa.array(np.arange(lists + 1, dtype=np.int32) * size), column)
    return column


def vector_column(rows: Array) -> pa.Array:
    """Rows of shape (rows, size) as dense `VectorUDT` values: struct(type, size, indices, values)."""
    count = len(rows)
    dense = pa.array(np.ones(count, dtype=np.int8))
    no_size = pa.nulls(count, pa.int32())
    no_indices = pa.nulls(count, pa.list_(pa.int32()))
    names = ["type", "size", "indices", "values"]
    return pa.StructArray.from_arrays(
        [dense, no_size, no_indices, list_column(rows.astype(np.float64, copy=False))], names
    )

"""Arrow arrays to NumPy, a column at a time, with the faults in the rows counted by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparktrain.shards.tensors import ColumnSpec

Array = npt.NDArray[Any]


class Faults:
    """Counts, by column, the rows that can't become tensors, so that one error tells how many."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, column: str, what: str, rows: int) -> None:
        """Count `rows` faulty rows; zero counts nothing."""
        if rows:
            self._counts[column, what] += int(rows)

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        return "; ".join(f"column {column!r}: {n:,} {what}" for (column, what), n in self._counts.items())


NULL = "null rows (fill them, or drop them: df.na.drop(subset=[...]))"
RAGGED_LIST = (
    "rows of a length other than the first row's (bring them to one length; for features, pad='longest' or pad=n does)"
)
NULL_ELEMENT = "rows with null elements (fill or drop them)"
RAGGED = "rows of a length other than the first row's (pad or cut them to one length)"
SPARSE_INDEX = "sparse vectors with an index outside their size"


def column_values(column: ColumnSpec, array: pa.Array, faults: Faults) -> Array | None:
    """The rows of one column as an array of shape (rows, *row shape), or None where rows are faulty.

    Scalars give shape (rows,). Arrays and vectors must have one length, binary values one size in
    bytes; what is wrong is counted in `faults`.
    """
    if column.kind == "number" and column.nullable:
        return _numbers(_with_nan(array))
    if array.null_count:
        faults.add(column.name, NULL, array.null_count)
        return None
    if column.kind == "number":
        return _numbers(array)
    if column.kind == "list":
        return _lists(column, array, faults)
    if column.kind == "vector":
        return _vectors(column, array, faults)
    return _bytes(column, array, faults)


def _numbers(array: pa.Array) -> Array:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _with_nan(array: pa.Array) -> pa.Array:
    """Nulls as NaN: NumPy gets that of floating columns anyway, others become float64."""
    return array.cast(pa.float64()) if array.null_count and not pa.types.is_floating(array.type) else array


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists(column: ColumnSpec, array: pa.Array, faults: Faults) -> Array | None:
    shape = [len(array)]
    while _is_list(array.type):
        lengths = np.asarray(pc.list_value_length(array).to_numpy(zero_copy_only=False))
        size = int(lengths[0]) if len(lengths) else 0
        if (lengths != size).any():
            faults.add(column.name, RAGGED_LIST, _rows_with(lengths != size, shape[0]))
            return None
        array = array.flatten()
        if column.nullable and not _is_list(array.type):
            array = _with_nan(array)
        elif array.null_count:
            nulls = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
            faults.add(column.name, NULL_ELEMENT, _rows_with(nulls, shape[0]))
            return None
        shape.append(size)
    return _numbers(array).reshape(shape)


def ragged_lists(column: ColumnSpec, array: pa.Array, faults: Faults) -> tuple[Array, Array] | None:
    """The items of arrays of varying length, shape (items, *shape of one), and each row's length."""
    if array.null_count:
        faults.add(column.name, NULL, array.null_count)
        return None
    lengths = list_lengths(array)
    items = array.flatten()
    if items.null_count:
        rows = np.repeat(np.arange(len(array)), lengths)
        nulls = np.asarray(items.is_null().to_numpy(zero_copy_only=False))
        faults.add(column.name, NULL_ELEMENT, len(np.unique(rows[nulls])))
        return None
    if not _is_list(items.type):
        return _numbers(items), lengths
    inner = Faults()
    values = _lists(column, items, inner)
    if values is None:
        faults.add(
            column.name,
            "inner arrays that differ in length or have nulls (only the outer length may vary)",
            inner.total,
        )
        return None
    return values, lengths


def list_lengths(array: pa.Array) -> Array:
    """How many items each array has, shape (rows,), int64; no row is null."""
    return np.asarray(pc.list_value_length(array).to_numpy(zero_copy_only=False)).astype(np.int64)


def _rows_with(faulty: Array, rows: int) -> int:
    """How many rows have a faulty element; rows are of one length down to this level."""
    return int(np.count_nonzero(faulty.reshape(rows, -1).any(axis=1)))


def _vectors(column: ColumnSpec, array: pa.StructArray, faults: Faults) -> Array | None:
    """`VectorUDT` arrives as struct(type, size, indices, values); type 1 is dense, 0 sparse."""
    parts = vector_parts(column, array, faults)
    if parts is None:
        return None
    if parts.dense.all():
        return parts.values.reshape(len(array), parts.width)
    out = np.zeros((len(array), parts.width), dtype=parts.values.dtype)
    row_of_value = np.repeat(np.arange(len(array)), parts.lengths)
    is_dense = parts.dense[row_of_value]
    out[parts.dense] = parts.values[is_dense].reshape(int(np.count_nonzero(parts.dense)), parts.width)
    out[row_of_value[~is_dense], parts.positions] = parts.values[~is_dense]
    return out


def whole_columns(arrays: Sequence[pa.Array], split: Sequence[bool]) -> list[pa.Array]:
    """Columns as they were before `ColumnPlan.columns` took vectors apart: four arrays to one struct, without a copy.

    Parameters
    ----------
    arrays : sequence of Array
    split : sequence of bool
        For each column whether it is in parts; arrays beyond are as they are.
    """
    rest = iter(arrays)
    whole = [_vector_of([next(rest) for _ in _VECTOR_FIELDS]) if apart else next(rest) for apart in split]
    return [*whole, *rest]


_VECTOR_FIELDS = ("type", "size", "indices", "values")


def _vector_of(parts: Sequence[pa.Array]) -> pa.StructArray:
    missing = parts[0].is_null() if parts[0].null_count else None
    return pa.StructArray.from_arrays(parts, _VECTOR_FIELDS, mask=missing)


@dataclass(frozen=True)
class VectorParts:
    """Vectors of one length as they are stored.

    Parameters
    ----------
    dense : ndarray of bool, shape (rows,)
    lengths : ndarray, shape (rows,), int64
        Stored values of each row.
    values : ndarray, shape (stored values,)
    positions : ndarray, shape (stored values of sparse rows,)
    width : int
    """

    dense: Array
    lengths: Array
    values: Array
    positions: Array
    width: int


def vector_parts(column: ColumnSpec, array: pa.StructArray, faults: Faults) -> VectorParts | None:
    """`VectorUDT` rows, checked but not brought into another form; None where some are faulty."""
    kind, size, indices, values = array.flatten()
    dense = np.asarray(kind.to_numpy(zero_copy_only=False)) == 1
    lengths = list_lengths(values)
    sizes = np.where(dense, lengths, np.asarray(size.fill_null(0).to_numpy(zero_copy_only=False)))
    width = int(sizes[0]) if len(sizes) else 0
    ragged = int(np.count_nonzero(sizes != width))
    if ragged:
        faults.add(column.name, RAGGED, ragged)
        return None
    positions = _numbers(indices.flatten())
    outside = (positions < 0) | (positions >= width)
    if outside.any():
        row_of_position = np.repeat(np.flatnonzero(~dense), lengths[~dense])
        faults.add(column.name, SPARSE_INDEX, len(np.unique(row_of_position[outside])))
        return None
    return VectorParts(dense, lengths, _numbers(values.flatten()), positions, width)


def _bytes(column: ColumnSpec, array: pa.Array, faults: Faults) -> Array | None:
    dtype = np.dtype(column.storage_dtype)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    lengths = np.asarray(pc.binary_length(array).to_numpy(zero_copy_only=False))
    size = int(lengths[0]) if len(lengths) else 0
    ragged = int(np.count_nonzero(lengths != size))
    if ragged or size % dtype.itemsize:
        faults.add(
            column.name,
            RAGGED if ragged else f"rows of {size} bytes, not whole {dtype}s",
            ragged or len(array),
        )
        return None
    if not len(array):
        return np.empty((0, 0), dtype=dtype)
    offset_type = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    start = int(np.frombuffer(offsets, dtype=offset_type)[array.offset])
    flat = np.frombuffer(data, dtype=np.uint8, count=size * len(array), offset=start)
    return flat.view(dtype).reshape(len(array), size // dtype.itemsize)


def flat_rows(values: Array) -> Array:
    """Shape (rows, *row shape) as (rows, elements of a row)."""
    return values.reshape(len(values), prod(values.shape[1:]))

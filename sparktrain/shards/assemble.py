"""Columns of one Arrow batch to the rows of one tensor: joined, checked, shaped and typed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pyarrow as pa

from sparktrain.errors import DataError
from sparktrain.shards.arrow import (
    NULL,
    Array,
    Faults,
    column_values,
    flat_rows,
    list_lengths,
    ragged_lists,
    vector_parts,
)
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.sparse import SparseRows
from sparktrain.shards.tensors import TensorSpec


def assemble(spec: TensorSpec, columns: Sequence[pa.Array], faults: Faults) -> Array | None:
    """The rows of a tensor, shape (rows, *row shape), or None where the batch has faulty rows.

    Of a padded input: the items of all rows, shape (items, *shape of one).

    Parameters
    ----------
    spec : TensorSpec
    columns : sequence of Array
        The batch's columns; `ColumnSpec.field` indexes them.
    faults : Faults
        Collects what is wrong with the rows, by column.

    Raises
    ------
    DataError
        Where rows don't have the number of elements that the declared shape asks for.
    """
    if spec.role == "length":  # the input it belongs to tells of faults
        array = columns[spec.columns[0].field]
        return None if array.null_count else list_lengths(array)
    if spec.pad is not None:
        ragged = assemble_ragged(spec, columns, faults)
        return None if ragged is None else ragged.items
    parts = [column_values(column, columns[column.field], faults) for column in spec.columns]
    present = [values for values in parts if values is not None]
    if len(present) < len(parts):
        return None
    if spec.finite:
        named = zip(spec.columns, present, strict=True)
        infinite = [_count_infinite(column.name, flat_rows(values), spec.dtype, faults) for column, values in named]
        if any(infinite):
            return None
    if not all([_fits(spec, flat_rows(values), faults) for values in present]):
        return None
    if len(present) == 1:
        rows = present[0]
    else:
        rows = np.concatenate([flat_rows(values).astype(spec.dtype, copy=False) for values in present], axis=1)
    if not _check_values(spec, rows, faults):
        return None
    return _shaped(spec, rows).astype(spec.dtype, copy=False)


def assemble_ragged(spec: TensorSpec, columns: Sequence[pa.Array], faults: Faults) -> Ragged | None:
    """The rows of a padded input, not padded yet, or None where the batch has faulty rows."""
    assert spec.pad is not None
    column = spec.columns[0]
    found = ragged_lists(column, columns[column.field], faults)
    if found is None:
        return None
    items, lengths = found
    if not len(items) and spec.shape is not None:  # only empty arrays: the inner shape is not in them
        items = items.reshape(0, *spec.shape)
    if spec.pad != "longest":
        longer = int(np.count_nonzero(lengths > spec.pad))
        faults.add(spec.name, f"rows longer than pad={spec.pad} (raise it, or cut them: F.slice)", longer)
        if longer:
            return None
    if not _fits(spec, flat_rows(items), faults):
        return None
    return Ragged.of(items.astype(spec.dtype, copy=False), lengths, spec.pad)


def assemble_sparse(spec: TensorSpec, columns: Sequence[pa.Array], faults: Faults) -> SparseRows | None:
    """The rows of an input of vectors as they are stored, or None where the batch has faulty rows."""
    (column,) = spec.columns
    array = columns[column.field]
    if array.null_count:
        faults.add(column.name, NULL, array.null_count)
        return None
    parts = vector_parts(column, array, faults)
    if parts is None:
        return None
    if spec.shape is not None and (parts.width,) != spec.shape and len(array):
        raise DataError(f"column {spec.name!r} has vectors of {parts.width} elements, but {spec.shape[0]} are expected")
    if spec.finite and spec.role == "input":
        row_of_value = np.repeat(np.arange(len(array)), parts.lengths)
        count = len(np.unique(row_of_value[np.isinf(_cast(parts.values, spec.dtype))]))
        faults.add(column.name, INFINITE, count)
        if count:
            return None
    positions = parts.positions
    row_of_position = np.repeat(np.flatnonzero(~parts.dense), parts.lengths[~parts.dense])
    unordered = (np.diff(positions) <= 0) & (np.diff(row_of_position) == 0)
    if unordered.any():
        what = "sparse vectors whose indices don't increase"
        faults.add(column.name, what, len(np.unique(row_of_position[1:][unordered])))
        return None
    full = ~parts.dense & (parts.lengths == parts.width)
    if full.any():  # all positions are stored: a dense row, which needs none
        positions = positions[~np.repeat(full[~parts.dense], parts.lengths[~parts.dense])]
    rows = SparseRows(
        parts.values.astype(spec.dtype, copy=False),
        positions.astype(np.int32, copy=False),
        parts.lengths,
        parts.width,
    )
    return rows


def _shaped(spec: TensorSpec, rows: Array) -> Array:
    if spec.shape is None or not len(rows):
        return rows if len(rows) else np.empty((0, *(spec.shape or ())), rows.dtype)
    if prod(rows.shape[1:]) == prod(spec.shape) and (spec.declared or rows.ndim == 1 or rows.shape[1:] == spec.shape):
        return rows.reshape(len(rows), *spec.shape)
    declared = "declared" if spec.declared else "expected"
    raise DataError(
        f"column {spec.name!r} has rows of shape {rows.shape[1:]} ({prod(rows.shape[1:])} elements), "
        f"but their {declared} shape is {spec.shape} ({prod(spec.shape)} elements)"
    )


INFINITE = "rows with values that are infinite or too large for float32 (XGBoost takes none but missing=inf)"


def _cast(values: Array, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def _count_infinite(column: str, rows: Array, dtype: str, faults: Faults) -> bool:
    if rows.dtype.kind != "f":
        return False
    count = int(np.count_nonzero(np.isinf(_cast(rows, dtype)).any(axis=1)))
    faults.add(column, INFINITE, count)
    return count > 0


def _fits(spec: TensorSpec, rows: Array, faults: Faults) -> bool:
    """Whether whole numbers stay the same in the tensor's own type; `rows` has two axes."""
    own = np.dtype(spec.dtype)
    if (
        own.kind not in "iub"
        or np.can_cast(rows.dtype, own, "safe")
        or (spec.role == "label" and rows.dtype.kind == "f")
    ):
        return True  # of labels `_check_values` tells more
    with np.errstate(invalid="ignore", over="ignore"):
        changed = rows.astype(own).astype(rows.dtype) != rows
    count = int(np.count_nonzero(changed.any(axis=1)))
    faults.add(spec.name, f"rows with values that are no {spec.dtype} (not whole, or out of its range)", count)
    return not count


def _check_values(spec: TensorSpec, rows: Array, faults: Faults) -> bool:
    """Labels and weights must be numbers that a loss can use; False where some are not."""
    if spec.role not in ("label", "weight", "margin") or rows.dtype.kind not in "fi":
        return True
    nan = np.isnan(rows)
    checks = {"rows that are NaN": nan}
    if spec.role in ("label", "margin") and not spec.integral:
        checks["rows that are infinite"] = np.isinf(rows)
    if spec.role == "weight":
        checks["weights below 0 or infinite"] = (rows < 0) | np.isinf(rows)
    if spec.integral and spec.dtype == "float64":
        large = (rows >= 2**53) | (rows <= -(2**53))
        checks["rows of 2**53 and more, which a double can't tell apart (map them to small numbers)"] = large
    elif spec.integral:
        with np.errstate(invalid="ignore"):
            checks["rows that are not whole numbers, where this loss takes class ids"] = ~nan & (
                (np.abs(rows) >= 2.0**53) | (rows != np.floor(rows))
            )
    counts = {what: int(np.count_nonzero(flat_rows(found).any(axis=1))) for what, found in checks.items()}
    for what, count in counts.items():
        faults.add(spec.name, what, count)
    return not any(counts.values())

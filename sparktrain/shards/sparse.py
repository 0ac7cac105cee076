"""Rows that may be sparse vectors: only the values that are stored, back to back, taken by row index.

A row that stores as many values as the vectors are long is dense and has no positions; so rows that are all
dense are nothing but a matrix (`matrix`), at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparktrain.shards import disk
from sparktrain.shards.arrow import Array
from sparktrain.shards.plan import Indices


@dataclass(frozen=True)
class SparseRows:
    """Vectors of one length, each dense or sparse.

    Parameters
    ----------
    values : ndarray, shape (stored values of all rows,), float32
    positions : ndarray, shape (stored values of the sparse rows,), int32
        Where in its vector each value of a sparse row is; increasing within a row.
    lengths : ndarray, shape (rows,), int64
        Stored values of each row; `width` of a dense one.
    width : int
        Length of the vectors.
    """

    values: Array
    positions: Array
    lengths: Array
    width: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def matrix(self) -> Array | None:
        """Shape (rows, width) where all rows are dense, without a copy; else None."""
        if len(self.positions) or len(self.values) != len(self) * self.width:
            return None
        return self.values.reshape(len(self), self.width)


class SparseReader:
    """Takes rows of `SparseRows` by index, as dense rows or as CSR."""

    def __init__(self, rows: SparseRows) -> None:
        self.rows = rows
        self._value_starts = _starts(rows.lengths)
        self._position_starts = _starts(np.where(rows.lengths == rows.width, 0, rows.lengths))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return self.rows.width

    def csr(self, taken: Indices) -> tuple[Array, Array, Array]:
        """Values, column indices and row pointers of these rows, as `scipy.sparse.csr_matrix` takes them."""
        lengths = self.rows.lengths[taken]
        pointers = np.zeros(len(taken) + 1, np.int64)
        np.cumsum(lengths, out=pointers[1:])
        within = np.arange(pointers[-1]) - np.repeat(pointers[:-1], lengths)
        values = self.rows.values[np.repeat(self._value_starts[taken], lengths) + within]
        columns = within.astype(np.int32)
        sparse = np.repeat(lengths != self.width, lengths)
        starts = np.repeat(self._position_starts[taken], lengths)[sparse]
        columns[sparse] = self.rows.positions[starts + within[sparse]]
        return values, columns, pointers

    def dense(self, taken: Indices) -> Array:
        """Shape (rows, width), float32, where what is not stored is 0."""
        values, columns, pointers = self.csr(taken)
        out = np.zeros((len(taken), self.width), np.float32)
        out[np.repeat(np.arange(len(taken)), np.diff(pointers)), columns] = values
        return out


def _starts(lengths: Array) -> Array:
    starts = disk.empty_array(len(lengths) + 1, np.int64)
    starts[0] = 0
    np.cumsum(lengths, out=starts[1:])
    return starts

"""The worker's side of a spool: tensors mapped from the inherited files, rows taken by index."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sparktrain.shards.arrow import Array
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.sparse import SparseRows
from sparktrain.shards.tensors import Role, TensorSpec


@dataclass(frozen=True)
class Shard:
    """One rank's rows as mapped arrays, each of shape (rows, *row shape).

    The order of rows is the order of arrival, which Spark doesn't repeat: always go through
    `sparktrain.shards.plan`, which orders by `keys`.
    """

    tensors: tuple[TensorSpec, ...]
    arrays: tuple[Array, ...]

    def by_role(self, role: Role) -> list[Array]:
        """The arrays of a role, in the user's order; a padded input's are its items."""
        return [array for spec, array in zip(self.tensors, self.arrays, strict=True) if spec.role == role]

    def specs(self, role: Role) -> list[TensorSpec]:
        return [spec for spec in self.tensors if spec.role == role]

    @property
    def inputs(self) -> list[Array | Ragged]:
        lengths = iter(self.by_role("length"))
        return [
            array if spec.pad is None else Ragged.of(array, next(lengths), spec.pad)
            for spec, array in zip(self.tensors, self.arrays, strict=True)
            if spec.role == "input"
        ]

    @property
    def sparse_rows(self) -> SparseRows | None:
        """The input whose rows may be sparse vectors, where there is one."""
        found = [(array, spec) for spec, array in zip(self.tensors, self.arrays, strict=True) if spec.sparse]
        if not found:
            return None
        (values, spec), (lengths, _), (positions, _) = found
        assert spec.shape is not None
        return SparseRows(values, positions, lengths, spec.shape[0])

    @property
    def labels(self) -> list[Array]:
        return self.by_role("label")

    @property
    def weights(self) -> Array | None:
        found = self.by_role("weight")
        return found[0] if found else None

    @property
    def validation(self) -> Array | None:
        found = self.by_role("validation")
        return found[0] if found else None

    @property
    def keys(self) -> Array:
        return self.by_role("key")[0]


def open_shard(tensors: Sequence[TensorSpec], fds: Sequence[int], rows: int) -> Shard:
    """Map the files of a finished spool.

    Pages are private to this process when written to, so a model that changes its input in place
    changes no other epoch's data on disk.
    """
    arrays = tuple(_mapped(spec, fd, rows) for spec, fd in zip(tensors, fds, strict=True))
    return Shard(tuple(tensors), arrays)


def _mapped(spec: TensorSpec, fd: int, rows: int) -> Array:
    assert spec.shape is not None, "shapes are agreed on before a shard is opened"
    dtype = np.dtype(spec.dtype)
    if spec.pad is not None:  # the file tells how many items the rows have
        rows = os.fstat(fd).st_size // (prod(spec.shape) * dtype.itemsize)
    shape = (rows, *spec.shape)
    if spec.sparse and spec.role != "length":
        shape = (os.fstat(fd).st_size // dtype.itemsize,)
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype=dtype)
    return np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=dtype).reshape(shape)

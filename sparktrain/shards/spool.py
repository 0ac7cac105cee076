"""The spool: Arrow batches to raw tensors in unlinked local files, in constant memory.

Each tensor has one file that holds its rows back to back, so the worker maps it and takes a batch by
row index. The files have no name (`sparktrain.shards.disk`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa

from sparktrain.errors import DataError, GangError
from sparktrain.shards.arrow import Array, Faults
from sparktrain.shards.assemble import assemble, assemble_sparse
from sparktrain.shards.disk import is_full, local_directory, unnamed_file
from sparktrain.shards.sparse import SparseRows
from sparktrain.shards.tensors import TensorSpec

NO_ROWS = "the DataFrame has no rows: nothing to train on"


@dataclass(frozen=True)
class SpoolReport:
    """What a rank says of its shard at the rendezvous: rows, and each tensor's row shape (None: no rows)."""

    rows: int
    shapes: tuple[tuple[int, ...] | None, ...]


class Spool:
    """Writes one rank's shard.

    Parameters
    ----------
    tensors : sequence of TensorSpec
        What to write, one file each.
    directory : str
        Where; defaults to `local_directory()`.
    """

    def __init__(self, tensors: Sequence[TensorSpec], directory: str | None = None) -> None:
        self._directory = directory or local_directory()
        self._tensors = tuple(tensors)
        self._files: list[IO[bytes]] = [unnamed_file(self._directory) for _ in tensors]
        self._shapes: list[tuple[int, ...] | None] = [None] * len(self._tensors)
        self._rows = 0
        self._sparse: SparseRows | None = None  # of the batch at hand: its lengths and positions are written next
        self._faults = Faults()

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors, one a tensor, for the worker to inherit."""
        return tuple(file.fileno() for file in self._files)

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Append a batch of columns; rows that can't become tensors are counted, for `finish` to report."""
        if not len(columns[0]):
            return
        self._rows += len(columns[0])
        self._sparse = None
        try:
            for number in range(len(self._tensors)):
                self._write_tensor(number, columns)
        except OSError as error:
            raise self._disk_error(error) from error

    def _write_tensor(self, number: int, columns: Sequence[pa.Array]) -> None:
        spec = self._tensors[number]
        if spec.sparse:
            self._write_sparse(number, columns)
            return
        rows = assemble(spec, columns, self._faults)
        if spec.pad is not None and rows is not None and not len(rows):
            return  # empty arrays: no item that would tell its shape
        if rows is not None and self._same_shape(number, rows) and not self._faults:
            self._files[number].write(np.ascontiguousarray(rows).data)

    def _write_sparse(self, number: int, columns: Sequence[pa.Array]) -> None:
        """One of the three tensors that hold sparse rows; the input's own comes first."""
        spec = self._tensors[number]
        if spec.role == "input":
            self._sparse = assemble_sparse(spec, columns, self._faults)
        if self._sparse is None:
            return
        parts = {"input": self._sparse.values, "length": self._sparse.lengths, "position": self._sparse.positions}
        shape = (self._sparse.width,) if spec.role == "input" else ()
        if self._agrees(number, shape, len(columns[0])) and not self._faults:
            self._files[number].write(np.ascontiguousarray(parts[spec.role]).data)

    def _same_shape(self, number: int, rows: Array) -> bool:
        return self._agrees(number, rows.shape[1:], len(rows))

    def _agrees(self, number: int, shape: tuple[int, ...], rows: int) -> bool:
        known = self._shapes[number]
        if known is None:
            self._shapes[number] = shape
        elif known != shape:
            self._faults.add(self._tensors[number].name, f"rows of shape {shape} after rows of shape {known}", rows)
            return False
        return True

    def finish(self, rank: int) -> SpoolReport:
        """Flush; raise what was wrong with the rows.

        Raises
        ------
        DataError
            Names each faulty column, what is wrong and how many rows of this shard are affected.
        """
        if self._faults:
            raise DataError(f"{self._faults} (of {self._rows:,} rows in the shard of rank {rank})")
        try:
            for file in self._files:
                file.flush()
        except OSError as error:
            raise self._disk_error(error) from error
        return SpoolReport(self._rows, tuple(self._shapes))

    def _disk_error(self, error: OSError) -> Exception:
        if not is_full(error):
            return error
        written = sum(os.fstat(fd).st_size for fd in self.fds)
        return GangError(
            f"no space left in {self._directory} to spool a rank's shard, after {written:,} bytes and "
            f"{self._rows:,} rows; free space there, set spark.local.dir to a larger disk, or raise num_proc "
            "on more hosts"
        )

    def close(self) -> None:
        """Drop this process's hold on the files."""
        for file in self._files:
            with contextlib.suppress(OSError):  # a buffer that a full disk did not take: nothing left to save
                file.close()


def agree_on_shapes(tensors: Sequence[TensorSpec], reports: Sequence[SpoolReport]) -> tuple[TensorSpec, ...]:
    """Each tensor with the row shape that all ranks found; a rank without rows takes its peers'.

    Raises
    ------
    DataError
        Where there are no rows at all, or ranks found different shapes.
    """
    if not sum(report.rows for report in reports):
        raise DataError(NO_ROWS)
    agreed = []
    for number, spec in enumerate(tensors):
        found = {
            report.shapes[number]: rank for rank, report in enumerate(reports) if report.shapes[number] is not None
        }
        if len(found) > 1:
            seen = ", ".join(f"{shape} on rank {rank}" for shape, rank in found.items())
            raise DataError(f"column {spec.name!r} has rows of different shapes: {seen}; pad or cut them to one length")
        shape = next(iter(found), ())  # of padded arrays that are all empty, no item is there to tell
        assert shape is not None
        agreed.append(spec.with_shape(shape))
    return tuple(agreed)

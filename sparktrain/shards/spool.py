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
from sparktrain.shards.assemble import assemble
from sparktrain.shards.disk import is_full, local_directory, unnamed_file
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
        self._faults = Faults()

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors, one a tensor, for the worker to inherit."""
        return tuple(file.fileno() for file in self._files)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch; rows that can't become tensors are counted, for `finish` to report."""
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        try:
            for number in range(len(self._tensors)):
                self._write_tensor(number, batch)
        except OSError as error:
            raise self._disk_error(error) from error

    def _write_tensor(self, number: int, batch: pa.RecordBatch) -> None:
        spec = self._tensors[number]
        rows = assemble(spec, batch.columns, self._faults)
        if spec.pad is not None and rows is not None and not len(rows):
            return  # empty arrays: no item that would tell its shape
        if rows is not None and self._same_shape(number, rows) and not self._faults:
            self._files[number].write(np.ascontiguousarray(rows).data)

    def _same_shape(self, number: int, rows: Array) -> bool:
        known = self._shapes[number]
        if known is None:
            self._shapes[number] = rows.shape[1:]
        elif known != rows.shape[1:]:
            what = f"rows of shape {rows.shape[1:]} after rows of shape {known}"
            self._faults.add(self._tensors[number].name, what, len(rows))
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

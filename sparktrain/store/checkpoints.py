"""A run's checkpoints: a directory each, of which a reader sees all or nothing.

::

    RUN/checkpoints/epoch-000002-step-000000000/rank-0.data
                                                rank-0.json    size and SHA-256 of the data, written after it

A checkpoint counts where each of its ranks has such a manifest, all of one attempt of the gang. So it needs no
renaming, which object stores don't have, and what is cut short, or damaged later, is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from sparktrain.store.store import filesystem_of

_NAME = re.compile(r"epoch-(\d{6,})-step-(\d{9,})")
Facts = dict[str, Any]


class DamagedCheckpoint(Exception):
    """A checkpoint is not what was written."""


@dataclass(frozen=True, order=True)
class Position:
    """How far a fit has come.

    Parameters
    ----------
    epoch : int
        Finished epochs.
    step : int
        Finished steps of the next one.
    """

    epoch: int
    step: int = 0

    @property
    def name(self) -> str:
        return f"epoch-{self.epoch:06d}-step-{self.step:09d}"

    def __str__(self) -> str:
        return f"after epoch {self.epoch}" if not self.step else f"after step {self.step} of epoch {self.epoch + 1}"


@dataclass(frozen=True)
class CheckpointSpec:
    """What a rank is told of them.

    Parameters
    ----------
    run_url : str
        The run's directory.
    attempt : str
        Names this launch of the gang.
    every_n_epochs : int
    every_n_steps : int or None
    every_n_minutes : float or None
        Besides the epochs' ends.
    keep_last : int
    keep_best : str or None
        A key of history: the checkpoint where it was least is kept as well.
    resume : bool
        Whether to go on from the newest one.
    """

    run_url: str
    attempt: str
    every_n_epochs: int = 1
    every_n_steps: int | None = None
    every_n_minutes: float | None = None
    keep_last: int = 2
    keep_best: str | None = None
    resume: bool = False


class Checkpoints:
    """Those of one run.

    Parameters
    ----------
    run_url : str
        Of the run's directory, on any of fsspec's file systems.
    """

    def __init__(self, run_url: str) -> None:
        self._filesystem, root = filesystem_of(run_url)
        self._root = posixpath.join(root, "checkpoints")

    def write(
        self, position: Position, rank: int, ranks: int, attempt: str, save: Callable[[IO[bytes]], None], facts: Facts
    ) -> None:
        """A rank's part: of one where each of `ranks` writes one.

        Parameters
        ----------
        position : Position
        rank, ranks : int
        attempt : str
        save : callable
            Writes the data to the file that it is given.
        facts : dict
            Plain values, for whoever reads it.
        """
        data, manifest = self._files(position, rank)
        self._filesystem.makedirs(posixpath.dirname(data), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(manifest)
        with self._filesystem.open(data, "wb") as file:
            hashing = _Hashing(file)
            save(cast("IO[bytes]", hashing))
        told = {
            "of": f"{position.name} rank {rank}",
            "sha256": hashing.digest,
            "bytes": hashing.size,
            "ranks": ranks,
            "attempt": attempt,
            "facts": facts,
        }
        self._filesystem.pipe_file(manifest, json.dumps(told).encode())

    def positions(self) -> list[Position]:
        """Complete ones, newest first."""
        return sorted((one for one in self._found() if self._manifests(one)), reverse=True)

    def facts(self, position: Position) -> Facts:
        """Of its first part.

        Raises
        ------
        DamagedCheckpoint
            Where it is not complete.
        """
        manifests = self._manifests(position)
        if not manifests:
            raise DamagedCheckpoint(f"the checkpoint {position} is not complete")
        facts: Facts = manifests[0]["facts"]
        return facts

    def read(self, position: Position, rank: int) -> bytes:
        """A rank's data.

        Raises
        ------
        DamagedCheckpoint
            Where it is not what was written.
        """
        data, _ = self._files(position, rank)
        manifest = self._manifest(position, rank)
        if manifest is None:
            raise DamagedCheckpoint(f"the checkpoint {position} has no part of rank {rank}")
        try:
            found: bytes = self._filesystem.cat_file(data)
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"the checkpoint {position} lacks {posixpath.basename(data)}") from error
        if len(found) != manifest["bytes"] or hashlib.sha256(found).hexdigest() != manifest["sha256"]:
            raise DamagedCheckpoint(f"the checkpoint {position}: {posixpath.basename(data)} is not what was written")
        return found

    def keep(self, last: int, best: Position | None) -> None:
        """Remove all but the newest `last`, the newest at an epoch's end and `best`, and older ones left incomplete."""
        complete = self.positions()
        if not complete:
            return
        at_ends = [one for one in complete if not one.step]
        kept = {*complete[:last], *at_ends[:1], best}
        for position in self._found():
            if position not in kept and position < complete[0]:
                self._remove(position)

    def remove_after(self, position: Position | None) -> None:
        """Remove those that a fit which goes on from there will write anew; None: all."""
        for one in self._found():
            if position is None or one > position:
                self._remove(one)

    def _remove(self, position: Position) -> None:
        directory = posixpath.join(self._root, position.name)
        with contextlib.suppress(FileNotFoundError):
            manifests = [one for one in self._filesystem.ls(directory, detail=False) if one.endswith(".json")]
            for path in manifests:  # first: what is left of it then counts for nothing
                self._filesystem.rm_file(path)
            self._filesystem.rm(directory, recursive=True)

    def _found(self) -> list[Position]:
        self._filesystem.invalidate_cache()
        try:
            names = [posixpath.basename(one.rstrip("/")) for one in self._filesystem.ls(self._root, detail=False)]
        except FileNotFoundError:
            return []
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        return [Position(int(match[1]), int(match[2])) for match in matches]

    def _manifests(self, position: Position) -> list[Facts]:
        """Of all its parts; none where it is not complete."""
        first = self._manifest(position, 0)
        if first is None:
            return []
        rest = [self._manifest(position, rank) for rank in range(1, first["ranks"])]
        complete = [first, *(one for one in rest if one is not None and one["attempt"] == first["attempt"])]
        return complete if len(complete) == first["ranks"] else []

    def _manifest(self, position: Position, rank: int) -> Facts | None:
        try:
            found = json.loads(self._filesystem.cat_file(self._files(position, rank)[1]))
        except (FileNotFoundError, ValueError):
            return None
        kinds = {"sha256": str, "bytes": int, "ranks": int, "attempt": str, "facts": dict}
        if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
            return None
        return found if found.get("of") == f"{position.name} rank {rank}" else None

    def _files(self, position: Position, rank: int) -> tuple[str, str]:
        directory = posixpath.join(self._root, position.name)
        return posixpath.join(directory, f"rank-{rank}.data"), posixpath.join(directory, f"rank-{rank}.json")


class _Hashing:
    """A file that is written to, and what has passed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        part = memoryview(data).cast("B")
        self._hash.update(part)
        self._file.write(part)
        self.size += len(part)
        return len(part)

    def flush(self) -> None:
        self._file.flush()


class Background:
    """Does one thing at a time in a thread of its own, while the caller goes on.

    Attributes
    ----------
    trouble : Exception or None
        What went wrong last.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.trouble: Exception | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin it, when what was begun before is done."""
        self.finish()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True, name="sparktrain-checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until it is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.trouble = None
        except Exception as error:
            self.trouble = error

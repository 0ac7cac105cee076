"""What a rank's worker prints: to the driver while it runs, to the run's directory, or to the executor's own log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

logger = logging.getLogger(__name__)
Event = dict[str, Any]

TAIL_BYTES = 1 << 20
"""So much of its end is kept for a driver that can't be reached meanwhile."""
PIECE = 1 << 14
"""Characters of a line that go in one event."""
LAST_S = 1.0
"""So long the last word on lines that were left out may wait for its turn."""


class RankLog:
    """Takes the lines of one rank.

    Parameters
    ----------
    rank : int
    send : callable or None
        Sends an event to the driver; False: it did not take it. None: lines go to this process's stderr.
    url : str or None
        A file to keep all of them in, on any of fsspec's file systems.
    """

    def __init__(self, rank: int, send: Callable[[Event], bool] | None = None, url: str | None = None) -> None:
        self._rank, self._send = rank, send
        self._lock = threading.Lock()
        self._missed = 0
        self._tail = bytearray()
        self._file = None if url is None else self._opened(url)

    def _opened(self, url: str) -> IO[bytes] | None:
        from sparktrain.store.store import filesystem_of

        try:
            filesystem, path = filesystem_of(url)
            filesystem.makedirs(filesystem._parent(path), exist_ok=True)
            file: IO[bytes] = filesystem.open(path, "wb")
        except Exception as error:  # of whatever file system: a log is no reason to end a run
            logger.warning("rank %d's log can't be kept at %s: %s", self._rank, url, error)
            return None
        return file

    def write(self, line: str) -> None:
        """One line, its end included."""
        with self._lock:
            data = line.encode(errors="replace")
            self._tail += data
            del self._tail[:-TAIL_BYTES]
            if self._file is not None:
                self._keep(self._file, data)
            if self._send is None:
                sys.stderr.write(f"[rank {self._rank}] {line}")
            else:
                self._tell(self._send, line)

    def _keep(self, file: IO[bytes], data: bytes) -> None:
        try:
            file.write(data)
            file.flush()
        except (OSError, ValueError) as error:
            logger.warning("rank %d's log is kept no further: %s", self._rank, error)
            self._file = None

    def _tell(self, send: Callable[[Event], bool], line: str) -> None:
        text = line.rstrip("\n")
        for start in range(0, max(len(text), 1), PIECE):
            note = f" ({self._missed} lines before this one came too fast to be shown)" if self._missed else ""
            event = {"kind": "log", "rank": self._rank, "text": text[start : start + PIECE] + note}
            if send(event):
                self._missed = 0
            else:
                self._missed += 1

    @property
    def tail(self) -> bytes:
        with self._lock:
            return bytes(self._tail)

    def close(self) -> None:
        """Later lines are not kept; of those that were not shown last the driver is told."""
        deadline = time.monotonic() + LAST_S
        while self._missed and self._send is not None and time.monotonic() < deadline:
            text = f"({self._missed} more lines came too fast to be shown)"
            if self._send({"kind": "log", "rank": self._rank, "text": text}):
                self._missed = 0
            time.sleep(0.05)
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                try:
                    file.close()
                except Exception as error:
                    logger.warning("rank %d's log could not be kept: %s", self._rank, error)

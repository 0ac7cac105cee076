"""Ends a worker's whole process group when its task is gone, whatever the worker is doing.

Spark ends a cancelled task's Python worker with SIGKILL, so nothing runs there to clean up. The
worker forks a guard before it imports anything heavy: a process that waits for the task's end of a
pipe to close (or for the worker to end), then kills the group: the worker, also deep in a C call
that holds the GIL, and what the worker started (DataLoader workers, orted).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys

POLL_S = 0.5


def start(lifeline_fd: int, scratch: str) -> None:
    """Fork the guard; call it first thing in a process that leads its own group.

    Parameters
    ----------
    lifeline_fd : int
    scratch : str
        A directory of this worker's, removed with it where it was made.
    """
    worker = os.getpid()
    die_with_parent()
    if os.fork():
        return
    try:
        _close_all_but(lifeline_fd)
        _wait(lifeline_fd, worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)  # first the one that writes; the whole group has this process in it
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)
        os._exit(0)


def _wait(lifeline_fd: int, worker: int) -> None:
    while os.getppid() == worker:
        readable, _, _ = select.select([lifeline_fd], [], [], POLL_S)
        if readable and not os.read(lifeline_fd, 1):
            return


def _close_all_but(keep: int) -> None:
    """The guard must hold no spool file, socket or log pipe open."""
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(0, keep)
    os.closerange(keep + 1, min(limit, 65536) if limit > 0 else 65536)


def die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent thread ends (PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)

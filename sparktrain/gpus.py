"""In Spark's Python worker: the task's GPUs, and how many models a GPU of this host takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from typing import IO


def free_slot(gpu: str, limit: int, directory: str | None = None) -> IO[bytes] | None:
    """A lock on one of a GPU's `limit` slots on this host, held until it is closed or its process ends."""
    for slot in range(limit):
        name = f"sparktrain-gpu-{os.getuid()}-{gpu.replace(os.sep, '_')}-{slot}.lock"
        file = open(os.path.join(directory or tempfile.gettempdir(), name), "wb")  # noqa: SIM115 - the caller's to close
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        file.close()
    return None


def task_gpus() -> tuple[str, ...]:
    """The GPU addresses that Spark assigned to the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = context.resources().get("gpu") if context is not None else None
    return tuple(gpu.addresses) if gpu else ()

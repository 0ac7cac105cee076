"""Where a model computes in `transform`: on the GPU that Spark assigned to the task, few copies a GPU, else on the CPU.

Spark's Python workers are reused by tasks, and outlive them with their models loaded. So the device is chosen by
ordinal, since CUDA reads ``CUDA_VISIBLE_DEVICES`` once a process; and a copy on a GPU holds a lock file until its
process ends or drops it, so that fractional GPU tasks don't fill the GPU with copies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import torch

from sparktrain.gang.resources import device_ordinal

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Seat:
    """A device, and the lock that makes it this process's."""

    device: torch.device
    lock: IO[bytes] | None = None

    def leave(self) -> None:
        """Let another have it; nothing in this process may still use the model."""
        if self.lock is not None:
            torch.cuda.empty_cache()
            self.lock.close()


def take_seat(assigned: Sequence[str], limit: int) -> Seat:
    """A place on the task's GPU where there is one and it has less than `limit` copies, else the CPU."""
    ordinal = device_ordinal(assigned, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if ordinal is None or not torch.cuda.is_available() or ordinal >= torch.cuda.device_count():
        return Seat(CPU)
    lock = free_slot(assigned[0].partition(",")[0].strip(), limit)
    if lock is None:
        logger.warning("GPU %s has its max_models_per_gpu=%d models; this task predicts on the CPU", assigned[0], limit)
        return Seat(CPU)
    return Seat(torch.device("cuda", ordinal), lock)


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

"""Where a model computes in `transform`: on the GPU that Spark assigned to the task, few copies a GPU, else on the CPU.

Spark's Python workers are reused by tasks, and outlive them with their models loaded. So the device is chosen by
ordinal, since CUDA reads ``CUDA_VISIBLE_DEVICES`` once a process; and a copy on a GPU holds a lock file until its
process ends or drops it, so that fractional GPU tasks don't fill the GPU with copies.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import torch

from sparktrain.gang.resources import device_ordinal
from sparktrain.gpus import free_slot

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

"""Rank 0's progress: an event every now and then, for the driver's bar."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparktrain.gang.worker import Event
from sparktrain.torch.metrics import EpochMeans
from sparktrain.torch.spec import TrainSpec

PROGRESS_S = 0.2


class Progress:
    """Emits a progress event every `PROGRESS_S` seconds, and at each epoch's end.

    Parameters
    ----------
    emit : callable
        Takes the events.
    epoch : int
        Counted from 1.
    spec : TrainSpec
    steps : int
        Of an epoch.
    active : bool
        False: emits nothing (ranks other than 0).
    """

    def __init__(self, emit: Callable[[Event], None], epoch: int, spec: TrainSpec, steps: int, *, active: bool) -> None:
        self._emit, self._epoch, self._spec, self._steps, self._active = emit, epoch, spec, steps, active
        self._started = self._last = time.perf_counter()
        self._rows = 0

    def report(self, step: int, rows: int, means: EpochMeans) -> None:
        """`step` steps are done, the last one with `rows` rows on all ranks."""
        if not self._active:
            return
        self._rows += rows
        now = time.perf_counter()
        if now - self._last < PROGRESS_S and step < self._steps:
            return
        self._last = now
        self._emit(
            {
                "kind": "progress",
                "epoch": self._epoch,
                "epochs": self._spec.epochs,
                "step": step,
                "steps": self._steps,
                "metrics": {"loss": means.local_loss(self._spec.loss_weights)},
                "rows_per_s": self._rows / (now - self._started),
            }
        )

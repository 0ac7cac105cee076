"""Callbacks: the user's code at fixed points of a fit, on every rank, in the worker processes.

::

    on_train_begin
        on_epoch_begin
            on_step_end          after each optimizer step
        on_epoch_end             validation is done; state.history[-1] is this epoch's entry
    on_train_end

A callback is pickled with the estimator, so every rank of every fit starts with a copy of its own, and what it keeps
in itself stays there: to bring a value back, add it to ``state.history[-1]``. What it must remember where a fit goes on
from a checkpoint it gives by `state_dict` and takes by `load_state_dict`; an epoch that goes on in its middle has begun
already, and `on_epoch_begin` is not called again. What it prints is in the executors'
logs, behind ``[rank N]``. With ``lr_scheduler_interval="step"`` the scheduler has stepped before `on_step_end`. What it
changes in the model or optimizer it must change alike on all ranks; `TrainState` says which rank this is.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparktrain.errors import ParamError


@dataclass
class TrainState:
    """Where a fit stands: what callbacks read, and may change.

    Attributes
    ----------
    rank, world_size : int
    model : Module
        The module in training, on this rank's device. After an epoch all ranks' are the same.
    optimizer : Optimizer
    epochs : int
        How many there will be at most.
    epoch : int
        The current one, from 1.
    steps : int
        Optimizer steps of an epoch, the same on all ranks.
    step : int
        Those done in this epoch.
    history : list of dict
        One entry for each finished epoch; ``on_epoch_end`` may add numbers to the last one. The values that the
        trainer put there are global: the same on all ranks.
    should_stop : bool
        Set it, on any rank, to end training after this epoch on all of them.
    """

    rank: int
    world_size: int
    model: nn.Module
    optimizer: Optimizer
    epochs: int
    epoch: int = 0
    steps: int = 0
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    should_stop: bool = False


class Callback:
    """Base of callbacks: override what you need. What they are given is described in `TrainState`.

    Examples
    --------
    >>> class WarmUp(Callback):
    ...     def on_epoch_begin(self, state):
    ...         for group in state.optimizer.param_groups:
    ...             group["lr"] = 1e-3 * min(1.0, state.epoch / 5)
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
                raise ParamError(f"{cls.__name__}.{name} would never be called; {hint}")

    def on_train_begin(self, state: TrainState) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, state: TrainState) -> None:
        """Before an epoch's first step."""

    def on_step_end(self, state: TrainState) -> None:
        """After an optimizer step; also on a rank that had no rows in it."""

    def on_epoch_end(self, state: TrainState) -> None:
        """After an epoch's steps and validation."""

    def on_train_end(self, state: TrainState) -> None:
        """After the last epoch, before the model is handed over."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: tensors, numbers, strings, lists and dicts. Rank 0's counts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; called on every rank, after `on_train_begin`."""


class EarlyStopping(Callback):
    """Ends training when a value of ``history`` has stopped getting better, and restores the best model.

    Parameters
    ----------
    monitor : str, default "val_loss"
        A key of ``history``'s entries. It is global, so all ranks decide the same.
    patience : int, default 3
        Epochs without improvement after which training ends.
    min_delta : float, default 0.0
        What counts as an improvement: more than this.
    mode : str, default "min"
        ``"min"`` or ``"max"``: whether less or more is better.
    restore_best : bool, default True
        The fitted model has the weights and buffers of the best epoch, also where training ran to its last
        epoch. They are kept in memory beside the model's. False: those of the last epoch.

    Notes
    -----
    NaN is never an improvement. `monitor` and `patience` are those of
    `lightning.pytorch.callbacks.EarlyStopping`, `restore_best` is Keras's ``restore_best_weights``.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "min",
        restore_best: bool = True,
    ) -> None:
        if mode not in ("min", "max"):
            raise ParamError(f"EarlyStopping mode: expected 'min' or 'max', got {mode!r}")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ParamError(f"EarlyStopping patience: expected a whole number of at least 1, got {patience!r}")
        if not min_delta >= 0:
            raise ParamError(f"EarlyStopping min_delta: expected a number of at least 0, got {min_delta!r}")
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, float(min_delta), mode
        self.restore_best = restore_best

    def on_train_begin(self, state: TrainState) -> None:
        self._best = math.inf
        self._best_epoch = 0
        self._best_tensors: dict[str, Tensor] = {}

    def on_epoch_end(self, state: TrainState) -> None:
        entry = state.history[-1]
        if self.monitor not in entry:
            raise ParamError(f"EarlyStopping monitor={self.monitor!r} is not in history, which has {sorted(entry)}")
        value = entry[self.monitor] if self.mode == "min" else -entry[self.monitor]
        if value < self._best - self.min_delta:
            self._best, self._best_epoch = value, state.epoch
            if self.restore_best:
                self._best_tensors = {name: tensor.detach().clone() for name, tensor in _tensors(state.model)}
        elif state.epoch - self._best_epoch >= self.patience:
            state.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "best_epoch": self._best_epoch, "best_tensors": self._best_tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_epoch = state["best"], state["best_epoch"]
        self._best_tensors = dict(state["best_tensors"])

    def on_train_end(self, state: TrainState) -> None:
        if self._best_epoch == state.epoch:
            return
        with torch.no_grad():
            for name, tensor in _tensors(state.model):
                if name in self._best_tensors:
                    tensor.copy_(self._best_tensors[name])


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]

"""The user's callbacks on a gang, and the trainer's own among them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from sparktrain.errors import ParamError
from sparktrain.gang.worker import Event
from sparktrain.keras.batchnorm import MovingAverages
from sparktrain.keras.feed import Batches
from sparktrain.keras.lockstep import Lockstep, plain_logs
from sparktrain.keras.peers import Peers

PROGRESS_S = 0.2
HOOKS = (
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)


def writers() -> tuple[type, ...]:
    """Callbacks that only write: rank 0's do."""
    names = ("ModelCheckpoint", "BackupAndRestore", "TensorBoard", "CSVLogger", "RemoteMonitor", "OrbaxCheckpoint")
    return tuple(found for name in names if (found := getattr(keras.callbacks, name, None)) is not None)


def of_rank(
    callbacks: list[keras.callbacks.Callback], peers: Peers, *, spread: bool = False
) -> list[keras.callbacks.Callback]:
    """Those that run on this rank.

    On JAX a variable that is made or set is compared over all ranks. So a writer, which may make some, is not told of
    the gang; and where `BackupAndRestore` takes up an interrupted run, each rank reads the backup.

    Parameters
    ----------
    callbacks : list of Callback
    peers : Peers
    spread : bool
        Whether the model's variables are spread over the ranks, who then save it together.

    Raises
    ------
    ParamError
        Where some ranks find a backup and others none.
    """
    if peers.world_size == 1:
        return callbacks
    if keras.backend.backend() != "jax":
        return [one for one in callbacks if peers.rank == 0 or not isinstance(one, writers())]
    chosen = []
    for one in callbacks:
        if spread and isinstance(one, keras.callbacks.BackupAndRestore):
            raise ParamError(
                "callbacks: BackupAndRestore can't save a model that is spread over the ranks; use ModelCheckpoint"
            )
        if spread and isinstance(one, keras.callbacks.ModelCheckpoint):
            chosen.append(one)
            continue
        if isinstance(one, keras.callbacks.BackupAndRestore):
            found = peers.gather(int(os.path.exists(one._weights_path)))
            if len(set(found)) > 1:
                raise ParamError(
                    f"callbacks: BackupAndRestore finds {one.backup_dir} on some hosts alone; on JAX all must see it"
                )
            _limit(one, keep=HOOKS if peers.rank == 0 else ("on_train_begin",), alone=HOOKS[1:])
        elif isinstance(one, writers()):
            if peers.rank:
                continue
            _limit(one, keep=HOOKS, alone=HOOKS)
        chosen.append(one)
    return chosen


def _limit(callback: keras.callbacks.Callback, *, keep: tuple[str, ...], alone: tuple[str, ...]) -> None:
    """Leave a callback these hooks, and call some of them without the gang's distribution."""
    for name in HOOKS:
        if name not in keep:
            setattr(callback, name, lambda *arguments, **keywords: None)
        elif name in alone:
            setattr(callback, name, _undistributed(getattr(callback, name)))


def _undistributed(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        distribution = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            return hook(*arguments, **keywords)
        finally:
            keras.distribution.set_distribution(distribution)

    return call


class First(keras.callbacks.Callback):  # type: ignore[misc]
    """Before the user's: the epoch's order of rows, and moving averages that all ranks share.

    Parameters
    ----------
    feed : Batches
    averages : MovingAverages or None
        None: the backend shares them by itself.
    lockstep : Lockstep or None
    """

    def __init__(self, feed: Batches, averages: MovingAverages | None, lockstep: Lockstep | None) -> None:
        super().__init__()
        self._feed, self._averages, self._lockstep = feed, averages, lockstep

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._feed.epoch = epoch

    def on_test_begin(self, logs: Any = None) -> None:
        if self._averages is not None:
            self._averages.equalise()
        if self._lockstep is not None:
            self._lockstep.phase = "test"

    def on_test_end(self, logs: Any = None) -> None:
        if self._lockstep is not None:
            self._lockstep.phase = "train"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._averages is not None:
            self._averages.equalise()


class Last(keras.callbacks.Callback):  # type: ignore[misc]
    """After the user's: what a rank decides, all do; history, and the driver's progress bar.

    Parameters
    ----------
    peers : Peers
    lockstep : Lockstep or None
    rows : int
        Of an epoch, on all ranks.
    epochs, steps : int
    emit : callable
        Takes events; rank 0's reach the driver.
    """

    def __init__(
        self,
        peers: Peers,
        lockstep: Lockstep | None,
        *,
        rows: int,
        epochs: int,
        steps: int,
        emit: Callable[[Event], None],
    ) -> None:
        super().__init__()
        self.async_safe = lockstep is None  # Keras then need not wait for each step's loss
        self._peers, self._lockstep, self._emit = peers, lockstep, emit
        self._rows, self._epochs, self._steps = rows, epochs, steps
        self._epoch = self._done = 0
        self._started = self._trained = self._reported = 0.0
        self._rate = 0.0
        self.history: list[dict[str, Any]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._share_backup()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._done = epoch, 0
        self._started = time.perf_counter()
        rate = getattr(self.model.optimizer, "learning_rate", None)
        self._rate = float("nan") if rate is None else float(keras.ops.convert_to_numpy(rate))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        lockstep = self._lockstep
        if lockstep is not None:
            lockstep.wishes_to_stop = lockstep.wishes_to_stop or self.model.stop_training
            self.model.stop_training = lockstep.stops
        self._done = batch + 1
        self._trained = time.perf_counter()
        if self._peers.rank == 0 and (self._trained - self._reported >= PROGRESS_S or self._done == self._steps):
            self._reported = self._trained
            self._report(logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wish = self.model.stop_training or (self._lockstep is not None and self._lockstep.wishes_to_stop)
        self.model.stop_training = any(self._peers.gather(int(bool(wish))))
        now = time.perf_counter()
        logs = plain_logs(logs or {})
        values = {name: np.asarray(value).tolist() for name, value in logs.items() if name != "learning_rate"}
        entry = {"epoch": epoch + 1, **values, "lr": self._rate}
        share = self._done / self._steps
        entry["rows_per_s"] = self._rows * share / max(self._trained - self._started, 1e-9)
        entry["seconds"] = now - self._started
        self.history.append(entry)

    def _report(self, logs: Any) -> None:
        self._emit(
            {
                "kind": "progress",
                "epoch": self._epoch + 1,
                "epochs": self._epochs,
                "step": self._done,
                "steps": self._steps,
                "metrics": {"loss": _number(logs["loss"])} if "loss" in logs else {},
                "rows_per_s": self._rows * self._done / self._steps / max(self._trained - self._started, 1e-9),
            }
        )

    def _share_backup(self) -> None:
        """Where rank 0 took up an interrupted run, all do."""
        model = self.model
        begun = max(self._peers.gather(model._initial_epoch or 0))
        if not begun or self._peers.world_size == 1:
            return
        variables = [*model.variables, *(model.optimizer.variables if model.optimizer is not None else [])]
        values = self._peers.from_rank(0, [keras.ops.convert_to_numpy(one) for one in variables])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        model._initial_epoch = begun


def _number(value: Any) -> float:
    return float(keras.ops.convert_to_numpy(value))

"""What every rank does in `test_training`: one function a topic, on each backend."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from sparktrain.keras import archive
from sparktrain.keras.layout import set_distribution
from sparktrain.keras.trainer import Trainer, TrainObjects
from tests.keras.cases import CASES, FEATURES, SPEC, built, sgd, shard_of

SPLIT = (7, 0, 5)
PLAIN = next(case for case in CASES if case.name == "mse")
VALIDATED = next(case for case in CASES if case.name == "early_stopping")


def fit(
    peers: Any, tensors: Any, callbacks: list[Any], model: keras.Model | None = None, optimizer: Any = None, **spec: Any
) -> tuple[Trainer, list[dict[str, float]]]:
    layout = set_distribution(None, peers.world_size) if tensors is None else None
    keras.utils.set_random_seed(SPEC.seed)  # on JAX the ranks compare what variables start with
    case = VALIDATED if "validation_freq" in spec else PLAIN
    compiled = {"optimizer": optimizer or sgd(), "loss": "mse"}
    objects = TrainObjects(model or built(case), compiled, callbacks)
    objects = archive.loads(archive.dumps(objects))
    keras.utils.set_random_seed(SPEC.seed)
    shard = shard_of(case, SPLIT, peers.rank)
    spec_of_fit = dataclasses.replace(SPEC, **spec)
    trainer = Trainer(spec_of_fit, objects, shard, peers, tensors, lambda event: None, layout)
    return trainer, trainer.fit()


class StopOnOne(keras.callbacks.Callback):
    """Rank 2 alone asks to stop, in the second epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if os.environ["TEST_RANK"] == "2" and epoch == 1:
            self.model.stop_training = True


class Breaks(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise KeyboardInterrupt


def topics(peers: Any, tensors: Any) -> dict[str, Any]:
    os.environ["TEST_RANK"] = str(peers.rank)
    shared = Path(tempfile.gettempdir(), f"sparktrain-test-{os.getppid()}")
    shared.mkdir(exist_ok=True)
    found: dict[str, Any] = {}

    # what one rank asks for, all do
    found["stopped"] = len(fit(peers, tensors, [StopOnOne()], epochs=5)[1])

    # a NaN ends training on all ranks, whoever has it first
    found["nan"] = len(fit(peers, tensors, [keras.callbacks.TerminateOnNaN()], optimizer=sgd(1e30), epochs=5)[1])

    # validation every second epoch; the schedule's rate is in history
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    history = fit(peers, tensors, [schedule], epochs=4, validation_freq=2)[1]
    found["validated"] = ["val_loss" in entry for entry in history]
    found["rates"] = [entry["lr"] for entry in history]

    # the same seed gives the same model, dropout included
    dropping = keras.Sequential([layers.Input((FEATURES,)), layers.Dense(8), layers.Dropout(0.5), layers.Dense(1)])
    runs = [fit(peers, tensors, [], model=dropping)[0].values()["model"] for _ in range(2)]
    found["repeated"] = all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    found["weights"] = runs[0]

    # writers write once, and read as Keras's own
    writers = [
        keras.callbacks.CSVLogger(str(shared / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), save_best_only=False),
    ]
    trained, history = fit(peers, tensors, writers)
    found["lines"] = len((shared / "log.csv").read_text().splitlines()) if peers.rank == 0 else None
    if peers.rank == 0:
        keras.distribution.set_distribution(None)
        kept = keras.saving.load_model(shared / "2.keras")
        found["kept"] = all(
            np.allclose(a, b) for a, b in zip(archive.values_of(kept.variables), trained.values()["model"], strict=True)
        )
        found["kept_loss"] = kept.loss

    # an interrupted run goes on where it was
    whole = fit(peers, tensors, [], epochs=4)[0].values()["model"]
    backup = keras.callbacks.BackupAndRestore(str(shared / "backup"))
    try:
        fit(peers, tensors, [backup, Breaks()], epochs=4)
    except KeyboardInterrupt:
        found["interrupted"] = True
    backup = keras.callbacks.BackupAndRestore(str(shared / "backup"))
    resumed, history = fit(peers, tensors, [backup], epochs=4)
    found["resumed"] = [entry["epoch"] for entry in history]
    found["same"] = all(np.allclose(a, b, atol=1e-5) for a, b in zip(whole, resumed.values()["model"], strict=True))

    found["tf_config"] = json.loads(os.environ.get("TF_CONFIG", "null"))
    return found

"""What every rank does in `test_checkpoint`: a fit as a whole, and again from each of its checkpoints."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from sparktrain.store.checkpoints import Checkpoints, CheckpointSpec, Position
from sparktrain.torch.callbacks import Callback, EarlyStopping, TrainState
from sparktrain.torch.collective import Collective
from sparktrain.torch.trainer import Trainer, TrainObjects
from tests.torch.features import FEATURES, SPEC, shard

EPOCHS = 4


class Counts(Callback):
    """Remembers steps over restarts, and moves the learning rate by them."""

    def on_train_begin(self, state: TrainState) -> None:
        self.steps = 0

    def on_step_end(self, state: TrainState) -> None:
        self.steps += 1
        state.optimizer.param_groups[0]["lr"] *= 0.99

    def on_epoch_end(self, state: TrainState) -> None:
        state.history[-1]["counted"] = self.steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def fit(collective: Collective, run: Path, *, resume: bool, kept: Any = None, **more: Any) -> dict[str, Any]:
    """Dropout, moving averages, Adam, a scheduler by steps, metrics with states, early stopping."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    callbacks = [Counts(), EarlyStopping("val_loss", patience=1, min_delta=0.05)]
    objects = TrainObjects(
        model,
        optimizer,
        [nn.BCEWithLogitsLoss()],
        {"auc": BinaryAUROC(), "accuracy": BinaryAccuracy(), "mean": lambda output, target: output.mean()},
        lr_scheduler=torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.03, 5, cycle_momentum=False),
        callbacks=callbacks,
    )
    spec = replace(SPEC, epochs=EPOCHS, lr_scheduler_interval="step", **more)
    when = {"every_n_steps": 4, **(kept or {})}
    checkpoints = CheckpointSpec(f"file://{run}", "one", keep_last=100, resume=resume, **when)
    rows = shard("binary", collective.rank, validation=True)
    trainer = Trainer(spec, objects, rows, collective, torch.device("cpu"), lambda event: None, checkpoints=checkpoints)
    history = trainer.fit()
    weights = [tensor.detach().clone() for tensor in model.state_dict().values()]
    return {"weights": weights, "history": history, "warnings": trainer.warnings, "outputs": trainer.output_shapes}


def from_each(collective: Collective, **more: Any) -> dict[str, Any]:
    """The whole fit, and those that go on from each of its checkpoints alone, by name."""
    base = Path(os.environ["SPARKTRAIN_TEST_RUN"])
    found = {"whole": fit(collective, base / "whole", resume=False, **more)}
    collective.gather(0)  # all have written theirs
    for position in Checkpoints(f"file://{base}/whole").positions():
        run = base / position.name
        if collective.rank == 0:
            part = Path("checkpoints", position.name)
            shutil.copytree(base / "whole" / part, run / part)
        collective.gather(0)
        found[position.name] = fit(collective, run, resume=True, **more)
    return found


def plainly(collective: Collective) -> dict[str, Any]:
    return from_each(collective)


def in_half_precision(collective: Collective) -> dict[str, Any]:
    return from_each(collective, mixed_precision="fp16")


def in_other_ways(collective: Collective) -> dict[str, Any]:
    """By the clock, which rank 0's alone is; and where nothing can be written."""
    base = Path(os.environ["SPARKTRAIN_TEST_RUN"])
    fit(collective, base / "clock", resume=False, kept={"every_n_steps": None, "every_n_minutes": 1e-9})
    if collective.rank == 0:
        (base / "full").mkdir()
        (base / "full" / "checkpoints").touch()
    collective.gather(0)
    return {
        "positions": Checkpoints(f"file://{base}/clock").positions(),
        "full": fit(collective, base / "full", resume=False),
    }


def of_others(collective: Collective) -> dict[str, Any]:
    """Checkpoints that are damaged, or within an epoch of other batches, are passed over."""
    base = Path(os.environ["SPARKTRAIN_TEST_RUN"])
    whole = fit(collective, base, resume=False)
    collective.gather(0)
    positions = Checkpoints(f"file://{base}").positions()
    if collective.rank == 0:
        for position in positions:
            if position > Position(2):
                path = base / "checkpoints" / position.name / "rank-0.data"
                path.write_bytes(path.read_bytes()[:-1])
    collective.gather(0)
    damaged = fit(collective, base, resume=True)
    if collective.rank == 0:
        for position in positions:
            if position.step == 0:
                shutil.rmtree(base / "checkpoints" / position.name)
    collective.gather(0)
    return {"whole": whole, "damaged": damaged, "others": fit(collective, base, resume=True, seed=9)}

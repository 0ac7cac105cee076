"""What every rank does in `test_training`: one function a topic, run by `tests.torch.rank`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import nn
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAccuracy, MulticlassF1Score

from sparktrain.shards.reader import Shard
from sparktrain.shards.tensors import KEY, TensorSpec
from sparktrain.torch.callbacks import Callback, EarlyStopping, TrainState
from sparktrain.torch.collective import Collective
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.trainer import Trainer, TrainObjects

SPLIT = (31, 0, 10)
FEATURES, CLASSES = 4, 3
SPEC = TrainSpec(
    batch_size=4,
    gradient_accumulation_steps=1,
    max_grad_norm=None,
    epochs=3,
    seed=2,
    shuffle=True,
    validation=None,
    loss_weights=(1.0,),
    lr_scheduler_interval="epoch",
    sync_batchnorm=False,
    mixed_precision=None,
    find_unused_parameters=False,
)


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All ranks' rows: features, shape (rows, FEATURES), and labels, shape (rows,)."""
    generator = np.random.default_rng(4)
    features = generator.normal(size=(sum(SPLIT), FEATURES)).astype(np.float32)
    signal = features @ generator.normal(size=FEATURES)
    if kind == "binary":
        return features, (signal > 0).astype(np.float32)
    if kind == "class":
        return features, np.digitize(signal, [-0.5, 0.5]).astype(np.int64)
    return features, signal.astype(np.float32)


def shard(kind: str, rank: int, validation: bool = False) -> Shard:
    features, labels = data(kind)
    mine = slice(sum(SPLIT[:rank]), sum(SPLIT[: rank + 1]))
    keys = np.arange(sum(SPLIT), dtype=np.int64)
    tensors = [
        (TensorSpec("features", "input", (), "float32", (FEATURES,)), features[mine]),
        (TensorSpec("label", "label", (), str(labels.dtype), ()), labels[mine]),
        (TensorSpec(KEY, "key", (), "int64", ()), keys[mine]),
    ]
    if validation:
        tensors.append((TensorSpec("held out", "validation", (), "bool", ()), (keys % 4 == 0)[mine]))
    specs, arrays = zip(*tensors, strict=True)
    return Shard(specs, arrays)


def network(outputs: int = 1) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))


def train(collective: Collective, rows: Shard, loss: Any, outputs: int = 1, **more: Any) -> tuple[nn.Module, list]:
    """A fit on this rank; `more` are fields of the spec, or metrics, callbacks, rate and model."""
    model = more.pop("model", None) or network(outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=more.pop("rate", 0.05))
    objects = TrainObjects(model, optimizer, [loss], more.pop("metrics", {}), callbacks=more.pop("callbacks", []))
    spec = replace(SPEC, **more)
    history = Trainer(spec, objects, rows, collective, torch.device("cpu"), lambda event: None).fit()
    return model, history


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def metric_objects(collective: Collective) -> dict[str, Any]:
    """Torchmetrics of states of every kind: sums, lists of predictions, a mean, a collection."""
    binary = {
        "auc": BinaryAUROC(),
        "counts": torchmetrics.MetricCollection({"auc": BinaryAUROC(thresholds=20), "accuracy": BinaryAccuracy()}),
        "mean": lambda output, target: output.mean(),
    }
    frozen = {"rate": 0.0, "epochs": 2, "model": nn.Linear(FEATURES, 1)}
    with torch.no_grad():
        frozen["model"].weight.copy_(torch.tensor([[0.3, -1.0, 0.5, 0.2]]))
        frozen["model"].bias.fill_(0.7)
    rows = shard("binary", collective.rank, validation=True)
    _, one = train(collective, rows, nn.BCEWithLogitsLoss(), metrics=binary, **frozen)
    classes = {"f1": MulticlassF1Score(CLASSES, average="macro")}
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.copy_(torch.arange(12.0).reshape(3, 4).sin())
        model.bias.zero_()
    _, many = train(
        collective, shard("class", collective.rank), nn.CrossEntropyLoss(), metrics=classes, rate=0.0, model=model
    )
    return {"binary": one, "class": many}


class Record(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_begin(self, state: TrainState) -> None:
        self.calls.append(f"train {state.rank}/{state.world_size}")

    def on_epoch_begin(self, state: TrainState) -> None:
        self.calls.append(f"epoch {state.epoch}/{state.epochs}")

    def on_step_end(self, state: TrainState) -> None:
        self.calls.append(f"step {state.step}/{state.steps}")

    def on_epoch_end(self, state: TrainState) -> None:
        state.history[-1]["added"] = torch.tensor(float(state.epoch))
        state.should_stop = state.rank == 1 and state.epoch == 2

    def on_train_end(self, state: TrainState) -> None:
        self.calls.append("end")


def callbacks(collective: Collective) -> dict[str, Any]:
    """A callback that stops on rank 1, which has no rows, after the second epoch."""
    record = Record()
    _, history = train(collective, shard("value", collective.rank), nn.MSELoss(), callbacks=[record], epochs=5)
    return {"calls": record.calls, "history": history}


class Worse(Callback):
    """From the third epoch on, spoils the model; keeps the weights of the second."""

    def on_epoch_begin(self, state: TrainState) -> None:
        if state.epoch >= 3:
            with torch.no_grad():
                for parameter in state.model.parameters():
                    parameter.add_(1.0)

    def on_epoch_end(self, state: TrainState) -> None:
        if state.epoch == 2:
            self.best = weights(state.model)


def early_stopping(collective: Collective) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, epochs, restore in (("stopped", 9, True), ("ran out", 3, True), ("kept", 9, False)):
        worse = Worse()
        stopping = EarlyStopping("val_loss", patience=2, restore_best=restore)
        model, history = train(
            collective,
            shard("value", collective.rank, validation=True),
            nn.MSELoss(),
            callbacks=[worse, stopping],
            epochs=epochs,
        )
        found[name] = {"best": worse.best, "weights": weights(model), "history": history}
    return found


class Overflow(Callback):
    """Makes one rank's gradient overflow in the second step."""

    def on_step_end(self, state: TrainState) -> None:
        state.model.factor = 1e30 if state.step == 1 and state.epoch == 1 and state.rank == 2 else 1.0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.factor, self.dtypes = nn.Linear(FEATURES, 1), 1.0, set()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output = self.net(features)
        self.dtypes.add(str(output.dtype))
        return output * self.factor


def precisions(collective: Collective) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mixed in (None, "bf16", "fp16"):
        torch.manual_seed(1)
        model = Scaled()
        _, history = train(
            collective,
            shard("value", collective.rank),
            nn.MSELoss(),
            model=model,
            mixed_precision=mixed,
            max_grad_norm=5.0,
            callbacks=[Overflow()] if mixed == "fp16" else [],
        )
        dtypes = {str(p.dtype) for p in model.parameters()}
        found[str(mixed)] = {"weights": weights(model), "history": history, "outputs": model.dtypes, "dtypes": dtypes}
    _, history = train(
        collective, shard("value", collective.rank), nn.MSELoss(), mixed_precision="bf16", sync_batchnorm=True
    )
    found["batchnorm"] = history
    return found


class Unused(nn.Module):
    """`never` is not used, `once` in the first step only: a rank has no rows in the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.used, self.once, self.never = (nn.Linear(FEATURES, 1) for _ in range(3))
        self.register_buffer("small", torch.tensor(3, dtype=torch.int16))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.used(features) + (self.once(features) if len(features) == 16 else 0)


def unused_parameters(collective: Collective) -> dict[str, Any]:
    """With weight decay and momentum, a gradient of zero is not none."""
    model = Unused()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    spec = replace(SPEC, epochs=1, batch_size=16, find_unused_parameters=True)
    objects = TrainObjects(model, optimizer, [nn.MSELoss()], {})
    rows = shard("value", collective.rank)
    Trainer(spec, objects, rows, collective, torch.device("cpu"), lambda event: None).fit()
    return {"before": before, "after": {name: p.detach().clone() for name, p in model.named_parameters()}}


def large_batchnorm(collective: Collective) -> list[torch.Tensor]:
    """Gradients of several buckets beside BatchNorm's sums, with a rank that has no rows."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(FEATURES, 700), nn.BatchNorm1d(700), nn.Linear(700, 700), nn.BatchNorm1d(700), nn.Linear(700, 1)
    )
    rows = shard("value", collective.rank)
    model, _ = train(collective, rows, nn.MSELoss(), model=model, sync_batchnorm=True, rate=1e-3, epochs=2)
    return weights(model)


def classwise(collective: Collective) -> list[dict[str, float]]:
    """A wrapper that shows its inner metric's states as its own."""
    accuracy = MulticlassAccuracy(CLASSES, average=None)
    metrics = {"c": torchmetrics.wrappers.ClasswiseWrapper(accuracy), "a": MulticlassAccuracy(CLASSES, average="macro")}
    torch.manual_seed(1)
    rows, model = shard("class", collective.rank), nn.Linear(FEATURES, CLASSES)
    return train(collective, rows, nn.CrossEntropyLoss(), metrics=metrics, rate=0.0, model=model)[1]


def run_all(collective: Collective) -> dict[str, Any]:
    """All topics in one gang: its start is what takes time."""
    topics = (metric_objects, callbacks, early_stopping, precisions, unused_parameters, large_batchnorm, classwise)
    return {topic.__name__: topic(collective) for topic in topics}

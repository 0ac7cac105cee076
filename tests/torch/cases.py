"""The semantic matrix: one model, loss and split of rows a case, run by N ranks and by plain PyTorch.

Each case trains twice on the gang, with the rows of every shard arriving in another order, as they do
from Spark. Legend: R rows of all shards, F features, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sparktrain.shards.reader import Shard
from sparktrain.shards.tensors import KEY, TensorSpec
from sparktrain.torch.collective import Collective
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.trainer import Trainer, TrainObjects

FEATURES, CLASSES, SEED = 5, 3, 11
SPLITS: dict[int, list[tuple[int, ...]]] = {
    1: [(12,)],
    2: [(6, 6), (11, 1), (0, 12)],
    3: [(4, 4, 4), (11, 0, 1)],
}
BATCH_SIZES = (2, 5)


@dataclass(frozen=True)
class Problem:
    """A loss, and the labels and optimizer that go with it."""

    name: str
    loss: Callable[[], nn.Module | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
    outputs: int
    labels: str
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    weightable: bool = True
    batchnorm: bool = False


def _row_losses(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).abs().squeeze(1) ** 1.5


def _scalar_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, second = list(model.parameters())[:2], list(model.parameters())[2:]
    return torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.02}], lr=0.1, momentum=0.9)


PROBLEMS = [
    Problem("mse", nn.MSELoss, 1, "float", _adam),
    Problem("cross_entropy", nn.CrossEntropyLoss, CLASSES, "class", _two_groups),
    Problem(
        "weighted_cross_entropy",
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]), ignore_index=2),
        CLASSES,
        "class",
        _two_groups,
    ),
    Problem("ignored_labels", lambda: nn.CrossEntropyLoss(ignore_index=1), CLASSES, "class", _two_groups),
    Problem("bce_logits", nn.BCEWithLogitsLoss, 1, "binary", _two_groups),
    Problem(
        "sum", lambda: nn.MSELoss(reduction="sum"), 1, "float", lambda m: torch.optim.SGD(m.parameters(), lr=0.003)
    ),
    Problem("callable_by_row", lambda: _row_losses, 1, "float", _adam),
    # SGD: the bias before a BatchNorm has no gradient but rounding noise, which Adam would scale up
    Problem("batchnorm", nn.MSELoss, 1, "float", _two_groups, batchnorm=True),
    Problem("callable_scalar", lambda: _scalar_loss, 1, "float", _adam, weightable=False),
]


@dataclass(frozen=True)
class Case:
    problem: Problem
    split: tuple[int, ...]
    batch_size: int
    weighted: bool
    accumulate: int = 1
    max_norm: float | None = None
    epochs: int = 3

    @property
    def name(self) -> str:
        rows = "/".join(map(str, self.split))
        more = f" x {self.accumulate}, norm {self.max_norm}" if self.accumulate > 1 else ""
        return f"{self.problem.name} {rows} batch {self.batch_size}{more}{' weighted' if self.weighted else ''}"

    @property
    def step_rows(self) -> int:
        return self.batch_size * self.accumulate

    def spec(self) -> TrainSpec:
        return TrainSpec(
            batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulate,
            max_grad_norm=self.max_norm,
            epochs=self.epochs,
            seed=SEED,
            shuffle=True,
            validation=None,
            loss_weights=(1.0,),
            lr_scheduler_interval="epoch",
            sync_batchnorm=self.problem.batchnorm,
            mixed_precision=None,
            find_unused_parameters=False,
        )

    def model(self) -> nn.Module:
        torch.manual_seed(3)
        if self.problem.batchnorm:
            return nn.Sequential(
                nn.Linear(FEATURES, 7),
                nn.BatchNorm1d(7),
                nn.Tanh(),
                nn.Linear(7, 7),
                nn.BatchNorm1d(7),
                nn.Linear(7, 1),
            )
        return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, self.problem.outputs))


def cases(world_size: int) -> Iterator[Case]:
    for problem, split, size, weighted in itertools.product(PROBLEMS, SPLITS[world_size], BATCH_SIZES, (False, True)):
        if problem.batchnorm:  # no global batch of a single row: BatchNorm can't train on that
            if size == BATCH_SIZES[0]:
                yield Case(problem, split, 4, weighted)
        elif problem.weightable or not weighted:
            yield Case(problem, split, size, weighted)
            if size == BATCH_SIZES[0]:
                yield Case(problem, split, size, weighted, accumulate=3, max_norm=0.3)


def brief(world_size: int) -> Iterator[Case]:
    """Those with the most uneven shards, in small batches."""
    for case in cases(world_size):
        if case.split == SPLITS[world_size][-1] and case.batch_size != BATCH_SIZES[-1]:
            yield case


@dataclass(frozen=True)
class Rows:
    """One rank's rows in the order of their keys."""

    keys: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def rows_of(case: Case, rank: int) -> Rows:
    """The rows of a rank; labels of every class occur in the whole, not in every shard."""
    total, start = sum(case.split), sum(case.split[:rank])
    generator = np.random.default_rng(5)
    features = generator.normal(size=(total, FEATURES)).astype(np.float32)
    labels = {
        "float": generator.normal(size=total).astype(np.float32),
        "class": generator.integers(0, CLASSES, size=total),
        "binary": generator.integers(0, 2, size=total).astype(np.float32),
    }[case.problem.labels]
    weights = generator.uniform(0.1, 4.0, size=total).astype(np.float32)
    weights[3] = 0.0
    mine = slice(start, start + case.split[rank])
    keys = np.arange(total, dtype=np.int64) * 7 + 1000
    return Rows(keys[mine], features[mine], labels[mine], weights[mine])


def shard_of(case: Case, rank: int, arrival: int) -> Shard:
    """A rank's shard with its rows in an order of arrival of their own."""
    rows = rows_of(case, rank)
    order = np.random.default_rng(arrival).permutation(len(rows.keys))
    tensors = [
        (TensorSpec("features", "input", (), "float32", (FEATURES,)), rows.features[order]),
        (TensorSpec("label", "label", (), str(rows.labels.dtype), ()), rows.labels[order]),
        (TensorSpec(KEY, "key", (), "int64", ()), rows.keys[order]),
    ]
    if case.weighted:
        tensors.append((TensorSpec("weight", "weight", (), "float32", ()), rows.weights[order]))
    specs, arrays = zip(*tensors, strict=True)
    return Shard(specs, arrays)


def run_case(case: Case, collective: Collective, arrival: int) -> dict[str, object]:
    model = case.model()
    objects = TrainObjects(model, case.problem.optimizer(model), [case.problem.loss()], {})
    shard = shard_of(case, collective.rank, arrival)
    trainer = Trainer(case.spec(), objects, shard, collective, torch.device("cpu"), lambda event: None)
    history = trainer.fit()
    return {
        "weights": [t.detach().clone() for t in model.state_dict().values()],
        "loss": [entry["loss"] for entry in history],
    }


def run_all(collective: Collective) -> dict[str, list[dict[str, object]]]:
    """Every case of that world size, trained twice."""
    return _run(cases(collective.world_size), collective)


def run_brief(collective: Collective) -> dict[str, list[dict[str, object]]]:
    """Likewise, of the chosen few."""
    return _run(brief(collective.world_size), collective)


def _run(chosen: Iterator[Case], collective: Collective) -> dict[str, list[dict[str, object]]]:
    return {
        case.name: [run_case(case, collective, arrival=10 * run + collective.rank) for run in range(2)]
        for case in chosen
    }

"""N ranks end with the weights of one plain PyTorch process on the same global batches (design, rule 1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparktrain.shards import plan
from tests.backends import OTHERS
from tests.torch.cases import SEED, Case, brief, cases, rows_of
from tests.torch.rank import run_ranks


def plain_pytorch(case: Case) -> tuple[list[torch.Tensor], list[float]]:
    """The same training in one process, written as a PyTorch user writes it."""
    shards = [rows_of(case, rank) for rank in range(len(case.split))]
    model = case.model()
    optimizer = case.problem.optimizer(model)
    history = []
    for epoch in range(case.epochs):
        orders = [
            plan.epoch_order(
                np.arange(len(shard.keys)),
                seed=SEED,
                epoch=epoch,
                shard_digest=plan.digest(shard.keys, np.arange(len(shard.keys))),
                shuffle=True,
            )
            for shard in shards
        ]
        numerator = denominator = 0.0
        for start in range(0, max(case.split), case.step_rows):
            picked = [order[start : start + case.step_rows] for order in orders]

            def batch(name: str, picked: list = picked) -> torch.Tensor:
                parts = [getattr(shard, name)[rows] for shard, rows in zip(shards, picked, strict=True)]
                return torch.from_numpy(np.concatenate(parts))

            optimizer.zero_grad()
            output = model(batch("features"))
            loss, share = plain_loss(case, output, batch("labels"), batch("weights"))
            loss.backward()
            if case.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            numerator, denominator = numerator + loss.item() * share, denominator + share
        history.append(numerator / denominator)
    return [tensor.detach() for tensor in model.state_dict().values()], history


def plain_loss(
    case: Case, output: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The loss of a batch, and what it counts for in the epoch's mean."""
    loss = case.problem.loss()
    target = labels if output.shape[1] > 1 else labels.unsqueeze(1)
    reduction = getattr(loss, "reduction", "mean")
    class_weight = getattr(loss, "weight", None)
    counts = torch.ones(len(labels))
    if case.problem.labels == "class":
        counts = counts if class_weight is None else class_weight[labels]
        counts = torch.where(labels == loss.ignore_index, 0.0, counts)
    if not case.weighted:
        value = loss(output, target)
        if value.ndim:
            value = value.mean()
        if not counts.sum():
            value = output.sum() * 0  # where torch divides 0 by 0, a batch without labels changes nothing
        return value, 1.0 if reduction == "sum" else float(counts.sum())
    if hasattr(loss, "reduction"):
        loss.reduction = "none"
    rows = loss(output, target).reshape(len(labels))
    if reduction == "sum":
        return (rows * weights).sum(), 1.0
    total = (counts * weights).sum()
    return (rows * weights).sum() / total.clamp(min=1e-30), float(total)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gang_equals_one_process(world: int, tmp_path: Path) -> None:
    assert_all_same("native", world, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_over_other_backends(world: int, backend: str, tmp_path: Path) -> None:
    assert_all_same(backend, world, tmp_path)


def assert_all_same(backend: str, world: int, out: Path) -> None:
    results = run_ranks("tests.torch.cases:run_all", world, out, timeout_s=280, backend=backend)
    assert assert_same(cases(world), results) == {1: 47, 2: 141, 3: 94}[world]


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_uneven_shards_over_other_backends(world: int, backend: str, tmp_path: Path) -> None:
    results = run_ranks("tests.torch.cases:run_brief", world, tmp_path, backend=backend)
    assert assert_same(brief(world), results) == 32


def assert_same(chosen: Iterator[Case], results: list[Any]) -> int:
    """How many cases ended as in one process."""
    checked = 0
    for case in chosen:
        expected, losses = plain_pytorch(case)
        runs = [run for rank in results for run in rank[case.name]]
        first = runs[0]["weights"]
        for run in runs:  # every rank, and the second run, in which rows arrive in another order
            for weight, same in zip(run["weights"], first, strict=True):
                assert torch.equal(weight, same), f"{case.name}: ranks or runs differ"
        for weight, reference in zip(first, expected, strict=True):
            torch.testing.assert_close(weight, reference, rtol=0, atol=1e-5, msg=lambda m, c=case: f"{c.name}: {m}")
        assert runs[0]["loss"] == pytest.approx(losses, abs=1e-5), case.name
        checked += 1
    return checked

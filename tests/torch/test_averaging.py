"""`Averaging` gives what `DistributedDataParallel` gives: on two ranks over torch.distributed, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparktrain.errors import ParamError
from sparktrain.torch.averaging import Averaging
from sparktrain.torch.collective import Collective
from sparktrain.torch.strategy import DataParallel, Strategy
from tests.backends import BACKENDS
from tests.torch.rank import run_ranks

ROWS = 6


class Loss(nn.Module):
    """As `LossStep`: a loss, and something else."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(5, 3, sparse=sparse)
        self.wide = nn.Linear(3, 2).double()
        self.single, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)
        self.embed.weight.requires_grad_(True)
        self.wide.bias.requires_grad_(False)

    def forward(self, ids: torch.Tensor, everything: bool) -> tuple[torch.Tensor, str]:
        if not len(ids):
            return torch.stack([p.flatten()[:0].sum().float() for p in self.parameters() if p.requires_grad]).sum(), ""
        out = self.single(self.wide(self.embed(ids).double()).float())
        return ((out + self.unused(out.new_ones(2))) if everything else out).square().sum(), "more"


def gradients(
    strategy: Strategy, ids: list[torch.Tensor], *, everything: bool = True, sparse: bool = False
) -> dict[str, Any]:
    """Of one step: all batches but the last are local."""
    step = Loss(sparse=sparse)
    wrapped = strategy.wrap(step)
    for one in ids[:-1]:
        with strategy.local_gradients(wrapped):
            wrapped(one, everything)[0].backward()
    wrapped(ids[-1], everything)[0].backward()
    return {name: None if p.grad is None else p.grad.to_dense() for name, p in step.named_parameters()}


def batches(collective: Collective) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(collective.rank)
    return [torch.randint(0, 4, (ROWS,), generator=generator) for _ in range(3)]


def topics(collective: Collective) -> dict[str, Any]:
    own = batches(collective)
    empty = [*own[:2], own[0][:0]] if collective.rank else own
    found: dict[str, Any] = {
        "accumulated": gradients(Averaging(collective, False), own),
        "without rows": gradients(Averaging(collective, False), empty[2:]),
        "unused": gradients(Averaging(collective, True), own, everything=False),
        "unused on one": gradients(Averaging(collective, True), own, everything=collective.rank == 1),
        "half": gradients(Averaging(collective, False, "fp16"), own),
        "sparse": gradients(Averaging(collective, False), own, sparse=True),
        "sparse without rows": gradients(Averaging(collective, False), empty[2:], sparse=True),
        "every": [one.tolist() for one in own],
    }
    try:
        gradients(Averaging(collective, False), own, everything=False)
    except ParamError as error:
        found["error"] = str(error)
    return found


def by_torch(collective: Collective) -> dict[str, Any]:
    """The same by DDP, where it can."""
    own = batches(collective)
    return {
        "accumulated": gradients(DataParallel(collective, False), own),
        "without rows": gradients(DataParallel(collective, False), own[2:] if collective.rank == 0 else [own[0][:0]]),
        "unused": gradients(DataParallel(collective, True), own, everything=False),
        "unused on one": gradients(DataParallel(collective, True), own, everything=collective.rank == 1),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_of_ddp(backend: str, tmp_path: Path) -> None:
    expected = run_ranks("tests.torch.test_averaging:by_torch", 2, tmp_path)[0]
    for found in run_ranks("tests.torch.test_averaging:topics", 2, tmp_path, backend=backend):
        for topic, gradients in expected.items():
            assert_same(found[topic], gradients, topic)
        assert_same(found["half"], expected["accumulated"], "half", rtol=2e-3)
        assert not torch.equal(found["half"]["embed.weight"], expected["accumulated"]["embed.weight"])
        assert_same(found["sparse"], expected["accumulated"], "sparse")
        assert_same(found["sparse without rows"], expected["without rows"], "sparse without rows")
        assert found["unused"]["unused.weight"] is None
        assert found["unused on one"]["unused.weight"] is not None
        assert "unused.weight, unused.bias got no gradient. Set find_unused_parameters=True" in found["error"]


def assert_same(found: dict[str, Any], expected: dict[str, Any], topic: str, rtol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, f"{topic}: {name}"
        else:
            close = torch.allclose(found[name], gradient, rtol=rtol, atol=rtol * float(gradient.abs().max()))
            assert close, f"{topic}: {name}: {found[name]}, expected {gradient}"

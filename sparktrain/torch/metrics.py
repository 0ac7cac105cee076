"""Epoch means over all ranks, weighted by real rows: losses and the user's metric functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparktrain.torch.collective import Collective

MetricFunction = Callable[[Any, Any], Any]


class EpochMeans:
    """Sums of one pass over the data; one all-reduce at its end makes them global.

    Parameters
    ----------
    losses : int
        How many losses there are.
    metrics : mapping of str to callable
        ``metric(output, target)``, a mean over the batch; with several labels it gets lists.
    """

    def __init__(self, losses: int, metrics: Mapping[str, MetricFunction]) -> None:
        self._metrics = dict(metrics)
        self._numerators = torch.zeros(losses, dtype=torch.float64)
        self._denominators = torch.zeros(losses, dtype=torch.float64)
        self._sums = torch.zeros(len(self._metrics), dtype=torch.float64)
        self._rows = 0

    def add_loss(self, numerators: Tensor, denominators: Tensor) -> None:
        """Add a batch's sums, each of shape (losses,)."""
        if self._numerators.device != numerators.device:  # the first batch on a GPU
            self._numerators = self._numerators.to(numerators.device)
            self._denominators = self._denominators.to(numerators.device)
        self._numerators += numerators
        self._denominators += denominators

    def add_metrics(self, outputs: Sequence[Tensor], targets: Sequence[Tensor], rows: int) -> None:
        """Evaluate the metrics on a batch of `rows` rows."""
        self._rows += rows
        if not self._metrics:
            return
        pair = (outputs[0], targets[0]) if len(outputs) == 1 else (list(outputs), list(targets))
        with torch.no_grad():
            for position, (name, metric) in enumerate(self._metrics.items()):
                value = torch.as_tensor(metric(*pair)).detach()
                if value.numel() != 1:
                    raise ValueError(f"metric {name!r} must return one number a batch, got shape {tuple(value.shape)}")
                self._sums[position] += float(value) * rows

    def local_loss(self, weights: Sequence[float]) -> float:
        """This rank's loss so far, for live progress."""
        return _weighted(self._numerators.cpu(), self._denominators.cpu(), weights)

    @property
    def local_rows(self) -> int:
        return self._rows

    def reduce(self, collective: Collective, weights: Sequence[float], prefix: str = "") -> dict[str, float]:
        """The global means by name, ``loss`` first; every rank calls it, also one that saw no rows."""
        rows = torch.tensor([self._rows], dtype=torch.float64)
        flat = torch.cat([self._numerators.cpu(), self._denominators.cpu(), self._sums, rows])
        collective.sum(flat)
        losses, metrics = len(self._numerators), len(self._metrics)
        numerators, denominators, sums, total = torch.split(flat, [losses, losses, metrics, 1])
        means = {f"{prefix}loss": _weighted(numerators, denominators, weights)}
        for name, value in zip(self._metrics, sums.tolist(), strict=True):
            means[f"{prefix}{name}"] = value / float(total) if total else float("nan")
        return means


def _weighted(numerators: Tensor, denominators: Tensor, weights: Sequence[float]) -> float:
    means = numerators / denominators
    return float((means * torch.tensor(weights, dtype=torch.float64)).sum())

"""`Lockstep`'s operations on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from keras import tree

from sparktrain.torch.collective import Collective


class TorchTensors:
    """Gradients are summed where they are: by gloo in memory, by nccl on a GPU."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def sum(self, vector: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
        values = vector.detach().clone()
        before(values)
        self._collective.sum(values)
        after(values)
        return values

    def differentiable_sum(self, vector: Any, exchange: Callable[[Any], Any]) -> Any:
        return _Sum.apply(vector, exchange)  # type: ignore[no-untyped-call]

    def rows(self, data: Any) -> Any:
        first = next(one for one in tree.flatten(data) if one is not None)
        return torch.tensor(float(len(first)), device=first.device)

    def choose(self, rows: Any, work: Callable[[], Any], idle: Callable[[], Any]) -> Any:
        return work() if rows else idle()

    def blank(self, logs: Any) -> Any:
        return logs

    def dense(self, gradient: Any) -> Any:
        return gradient.to_dense() if gradient.is_sparse else gradient


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, vector: Any, exchange: Callable[[Any], Any]) -> Any:
        context.exchange = exchange
        return exchange(vector)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return context.exchange(gradients[0]), None

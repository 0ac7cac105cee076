"""Synchronised BatchNorm: every rank normalises by the moments of the global batch.

On GPUs it is torch's own `SyncBatchNorm`. That one refuses CPU tensors, and knows torch's process groups alone;
elsewhere the moments are added up by a differentiable all-reduce, in two passes (mean, then squared distances from it)
so that nothing cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparktrain.torch.collective import Collective, TorchDistributed


def synchronise(model: nn.Module, collective: Collective, device: torch.device) -> nn.Module:
    """`model` with its BatchNorm layers synchronised; parameters and buffers stay the same objects."""
    if collective.world_size == 1:
        return model
    if device.type == "cuda" and isinstance(collective, TorchDistributed):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if layers:
        collective = collective.channel()  # beside the gradients' exchange, which runs at the same time
    for module in layers:
        module.forward = GlobalBatchNorm(module, collective)  # type: ignore[method-assign, assignment]
    return model


@dataclass(frozen=True)
class GlobalBatchNorm:
    """The forward of a BatchNorm layer in training, over the rows of all ranks; one without rows joins in.

    N rows of a rank, C channels, L everything after them.
    """

    layer: _BatchNorm
    collective: Collective

    def __call__(self, x: Tensor) -> Tensor:
        """x : Tensor, shape (N, C, *L) -> the same shape."""
        layer = self.layer
        if not layer.training:
            return type(layer).forward(layer, x)
        if x.dtype in (torch.float16, torch.bfloat16):  # under autocast: moments in float32, as torch's own layers
            with torch.autocast(x.device.type, enabled=False):
                return self(x.float()).to(x.dtype)
        others = [0, *range(2, x.ndim)]
        count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
        sums = self._add_up(torch.cat([x.sum(others), count]))
        total = sums[-1].detach()
        if total <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got {int(total)} over all ranks")
        mean = self._per_channel(sums[:-1] / total, x)
        variance = self._add_up(((x - mean) ** 2).sum(others)) / total
        self._track(mean.detach().flatten(), variance.detach() * total / (total - 1))
        normal = (x - mean) * torch.rsqrt(self._per_channel(variance, x) + layer.eps)
        if layer.affine:
            normal = normal * self._per_channel(layer.weight, x) + self._per_channel(layer.bias, x)
        return normal

    def _add_up(self, values: Tensor) -> Tensor:
        added: Tensor = _AddUp.apply(values, self.collective)  # type: ignore[no-untyped-call]
        return added

    @staticmethod
    def _per_channel(values: Tensor, like: Tensor) -> Tensor:
        return values.view(1, -1, *[1] * (like.ndim - 2))

    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        """Running statistics, as `torch.nn.BatchNorm1d` documents them; momentum None is a plain average."""
        layer = self.layer
        if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
            return
        layer.num_batches_tracked += 1
        weight = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        with torch.no_grad():
            layer.running_mean.lerp_(mean, weight)
            layer.running_var.lerp_(unbiased, weight)


class _AddUp(torch.autograd.Function):
    """All-reduce by sum; what flows back to one rank's values is the sum of what flows to the total on all."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, collective: Collective) -> Tensor:
        ctx.collective = collective
        return collective.sum(values.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.collective.sum(gradient.contiguous().clone()), None

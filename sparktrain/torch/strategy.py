"""How one step is computed over the gang and the model laid out; the trainer is given one of these."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from sparktrain.errors import ParamError
from sparktrain.torch.collective import Collective
from sparktrain.torch.spec import GradientCompression

# Every rank starts from the same tensors, and buffers stay its own between steps; torch 2.13 renamed that argument.
_DDP_ARGUMENTS = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_SYNC: dict[str, Any] = {
    **({"init_sync": False} if "init_sync" in _DDP_ARGUMENTS else {}),
    "forward_sync_buffers" if "forward_sync_buffers" in _DDP_ARGUMENTS else "broadcast_buffers": False,
}


class Strategy(Protocol):
    """A seat for others: FSDP, tensor and pipeline parallel, local SGD."""

    def wrap(self, step: nn.Module) -> nn.Module:
        """The module to call instead of `step`: its backward leaves every rank the mean gradient."""

    def local_gradients(self, wrapped: nn.Module) -> AbstractContextManager[object]:
        """Inside, backward adds to this rank's own gradients; the next one outside exchanges them all."""

    def end_epoch(self, model: nn.Module, rows: int) -> None:
        """Make every rank's model the same; `rows` is what this rank trained on in the epoch."""


class Replicas:
    """A full copy of the model a rank, and what makes the copies equal after an epoch."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def end_epoch(self, model: nn.Module, rows: int) -> None:
        """BatchNorm's running statistics become their mean over ranks, weighted by rows; other buffers
        become those of the rank with the most rows."""
        if self._collective.world_size == 1:
            return
        counts = self._collective.gather(sum(1 for _ in model.buffers()))
        if len(set(counts)) > 1:
            raise ParamError(
                f"model: the ranks have {counts} buffers: its forward makes some, and some ranks had no rows to call "
                "it with. Make them in __init__"
            )
        rows_by_rank = self._collective.gather(rows)
        leader = rows_by_rank.index(max(rows_by_rank))
        averaged = list(_running_statistics(model))
        if averaged:
            share = rows / max(sum(rows_by_rank), 1)
            flat = torch.cat([buffer.flatten() for buffer in averaged]) * share
            self._collective.sum(flat)
            for buffer, mean in zip(averaged, torch.split(flat, [b.numel() for b in averaged]), strict=True):
                buffer.copy_(mean.view_as(buffer))
        done = {id(buffer) for buffer in averaged}
        for buffer in model.buffers():
            if id(buffer) not in done:
                self._collective.broadcast(buffer, leader)


class DataParallel(Replicas):
    """Gradients are averaged by `DistributedDataParallel`.

    Parameters
    ----------
    collective : Collective
        Over `torch.distributed`, or alone.
    find_unused_parameters : bool
    compression : str or None
        ``"fp16"``: in which precision gradients travel.
    """

    def __init__(
        self, collective: Collective, find_unused_parameters: bool, compression: GradientCompression | None = None
    ) -> None:
        super().__init__(collective)
        self._find_unused_parameters = find_unused_parameters
        self._compression = compression

    def wrap(self, step: nn.Module) -> nn.Module:
        if self._collective.world_size == 1 or not any(p.requires_grad for p in step.parameters()):
            return step
        wrapped = DistributedDataParallel(step, find_unused_parameters=self._find_unused_parameters, **_NO_SYNC)
        trained = [one for one in step.parameters() if one.requires_grad]
        if self._compression == "fp16":
            wrapped.register_comm_hook(None, fp16_compress_hook)
        elif not trained[0].is_cuda and self._collective.is_small(sum(one.nbytes for one in trained)):
            wrapped.register_comm_hook(self._collective, lambda state, bucket: _mean_at_once(state, bucket))
        return wrapped

    def local_gradients(self, wrapped: nn.Module) -> AbstractContextManager[object]:
        if isinstance(wrapped, DistributedDataParallel):
            context: AbstractContextManager[object] = wrapped.no_sync()
            return context
        return nullcontext()


def _mean_at_once(collective: Collective, bucket: Any) -> torch.futures.Future[Tensor]:
    """In the place of DDP's own exchange, which has gloo's threads do it meanwhile: too little to be worth that."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(collective.sum(bucket.buffer()).div_(collective.world_size))
    return future


def _running_statistics(model: nn.Module) -> list[Tensor]:
    return [
        buffer
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]

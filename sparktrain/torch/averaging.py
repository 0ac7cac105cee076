"""Data parallelism over any `Collective`: the ranks' gradients are averaged when backward has made all of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from sparktrain.errors import ParamError
from sparktrain.torch.collective import Collective
from sparktrain.torch.spec import GradientCompression
from sparktrain.torch.strategy import Replicas


class Averaging(Replicas):
    """As `DataParallel`, without `torch.distributed`: one sum a step of the gradients in one piece.

    Parameters
    ----------
    collective : Collective
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
        return _Averaged(step, lambda: self._average(step))

    def local_gradients(self, wrapped: nn.Module) -> AbstractContextManager[object]:
        return wrapped.local() if isinstance(wrapped, _Averaged) else contextlib.nullcontext()

    def _average(self, step: nn.Module) -> None:
        """Every parameter's gradient, of all that backward has added up since it was last cleared."""
        named = [(name, one) for name, one in step.named_parameters() if one.requires_grad]
        trained = [one for _, one in named]
        if self._find_unused_parameters:
            used = torch.tensor([float(one.grad is not None) for one in trained])
            trained = list(itertools.compress(trained, self._collective.sum(used) > 0))
        elif unused := [name for name, one in named if one.grad is None]:
            raise ParamError(
                f"a forward pass did not use every parameter: {', '.join(unused)} got no gradient. Set "
                "find_unused_parameters=True"
            )
        sparse = self._sparse(step, trained)
        for one in sparse:
            self._average_sparse(one)
        done = {id(one) for one in sparse}
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for one in trained:
            if id(one) not in done:
                kinds.setdefault((one.dtype, one.device), []).append(one)
        for parameters in kinds.values():
            self._average_dense(parameters)

    def _average_dense(self, parameters: Sequence[nn.Parameter]) -> None:
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([one.detach().reshape(-1) for one in parts]).div_(self._collective.world_size)
        if self._compression == "fp16" and flat.is_floating_point():
            flat = self._collective.sum(flat.half()).to(flat.dtype)
        else:
            self._collective.sum(flat)
        for one, mean in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
            if one.grad is None:
                one.grad = mean.view_as(one).clone()
            else:
                one.grad.copy_(mean.view_as(one))

    def _sparse(self, step: nn.Module, trained: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Parameters that have sparse gradients on some rank: one without rows has dense zeros."""
        modules = [one for one in step.modules() if getattr(one, "sparse", False) is True]
        declared = {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}
        found = [one for one in trained if id(one) in declared]
        if not found:
            return []
        flags = torch.tensor([float(one.grad is not None and one.grad.is_sparse) for one in found])
        return list(itertools.compress(found, self._collective.sum(flags) > 0))

    def _average_sparse(self, parameter: nn.Parameter) -> None:
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        own = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()
        rows, values = own.indices()[0].cpu(), own.values().cpu()
        all_rows = np.frombuffer(b"".join(self._collective.gather_bytes(rows.numpy().tobytes())), np.int64)
        data = b"".join(self._collective.gather_bytes(values.reshape(-1).view(torch.uint8).numpy().tobytes()))
        joined = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        gathered = joined.view(values.dtype).reshape(-1, *parameter.shape[1:]) / self._collective.world_size
        indices = torch.from_numpy(all_rows.copy())[None]
        parameter.grad = torch.sparse_coo_tensor(indices, gathered, parameter.shape).coalesce().to(parameter.device)


class _Averaged(nn.Module):
    """Calls a step; the backward of its loss ends with an exchange of gradients, unless inside `local`."""

    def __init__(self, step: nn.Module, average: Callable[[], None]) -> None:
        super().__init__()
        self.step = step
        self._average = average
        self._exchanges = True
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, *arguments: Any) -> tuple[Tensor, Any]:
        loss, result = self.step(*arguments)
        if self._exchanges:
            loss = _AtTheEnd.apply(loss, self._anchor, self._average)  # type: ignore[no-untyped-call]
        return loss, result

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True


class _AtTheEnd(torch.autograd.Function):
    """Has something done when the backward that passes here is over; it always passes, for the anchor's sake."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, anchor: Tensor, then: Callable[[], None]) -> Tensor:
        ctx.then = then
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None, None]:
        Variable._execution_engine.queue_callback(ctx.then)
        return gradients[0], None, None

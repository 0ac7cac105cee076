"""In which precision a step computes: float32, or automatic mixed precision on top of float32 weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparktrain.errors import ParamError
from sparktrain.torch.spec import MixedPrecision

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast around the forward pass; for fp16 a gradient scaler as well.

    Losses are computed in float32. Gradients are exchanged before they are unscaled, so an overflow on one
    rank is one on all, and all skip the same step.

    Parameters
    ----------
    mixed : str or None
        ``"bf16"``, ``"fp16"``, or None: as the model computes.
    device : torch.device

    Raises
    ------
    ParamError
        Where the GPU has no bf16.
    """

    def __init__(self, mixed: MixedPrecision | None, device: torch.device) -> None:
        self._dtype = None if mixed is None else _DTYPES[mixed]
        self._device = device
        if mixed == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ParamError("mixed_precision='bf16': this GPU has no bfloat16; use 'fp16'")
        self._scaler = torch.amp.GradScaler(device.type, enabled=mixed == "fp16")
        self._attempted = self._taken = 0

    def autocast(self) -> AbstractContextManager[object]:
        """Around the model's forward pass."""
        context: AbstractContextManager[object] = torch.autocast(
            self._device.type, dtype=self._dtype, enabled=self._dtype is not None
        )
        return context

    def outputs(self, outputs: list[Tensor]) -> list[Tensor]:
        """What autocast left in half precision, in float32; a model that computes in half by itself keeps it."""
        return [output.float() if output.dtype == self._dtype else output for output in outputs]

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to run backward from."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def watch(self, optimizer: Optimizer) -> None:
        """Count the steps that the optimizer really takes."""

        def taken(*_: object) -> None:
            self._taken += 1

        if self._scaler.is_enabled():
            optimizer.register_step_post_hook(taken)

    def skipped_steps(self) -> int | None:
        """Steps since the last call whose gradients overflowed; None where none is ever skipped."""
        if not self._scaler.is_enabled():
            return None
        skipped = self._attempted - self._taken
        self._attempted = self._taken = 0
        return skipped

    def state(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict(), "attempted": self._attempted, "taken": self._taken}

    def load(self, state: Mapping[str, Any]) -> None:
        self._scaler.load_state_dict(state["scaler"])
        self._attempted, self._taken = state["attempted"], state["taken"]

    def step(self, optimizer: Optimizer, parameters: Iterable[Tensor], max_norm: float | None) -> None:
        """Unscale, clip and apply the gradients; with fp16, skip the step where they overflowed."""
        if max_norm is not None:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, max_norm)
        self._attempted += 1
        self._scaler.step(optimizer)
        self._scaler.update()

"""Models for the tests; in a module, so that executors import them."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Line(nn.Module):
    """One weight and one bias."""

    def __init__(self, features: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features)


class Faulty(Line):
    """Fails in its own way in the third step of rank 1."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.steps = 0

    def forward(self, features: Tensor) -> Tensor:
        self.steps += 1
        if self.fault == "sleep":
            time.sleep(600)
        if self.fault == "c_call":
            ctypes.PyDLL(None).sleep(600)  # holds the GIL
        if self.steps == 3 and dist.get_rank() == 1:
            print("what rank 1 said last")
            if self.fault == "raise":
                raise ValueError("boom at step 3")
            os.kill(os.getpid(), getattr(signal, self.fault))
        return super().forward(features)


class TwoTowers(nn.Module):
    """An embedded id and a vector in, a class and a value out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.classes = nn.Linear(4 + 3, 3)
        self.value = nn.Linear(4 + 3, 1)

    def forward(self, item: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        assert item.dtype == torch.int64
        assert context.dtype == torch.float32
        joined = torch.cat([self.embed(item), context], dim=1)
        return self.classes(joined), self.value(joined)

"""Models for the tests; in a module, so that executors import them."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch
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
        if self.steps == 3 and os.environ["RANK"] == "1":
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


class AllKinds(nn.Module):
    """Takes a column of every kind by name; each must encode the same number k of its row, in its own way.

    One output a label: a value, a probability's logit, three classes, and an array of two, a grid of two by two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 6)
        self.value, self.flag, self.classes = nn.Linear(6, 1), nn.Linear(6, 1), nn.Linear(6, 3)
        self.pair, self.grid, self.vector = nn.Linear(6, 2), nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        k = inputs["long"]
        expected = encoded(k, inputs["padded"].shape[1])
        assert inputs.keys() == expected.keys(), inputs.keys() ^ expected.keys()
        for name, tensor in inputs.items():
            assert tensor.dtype == expected[name].dtype, f"{name}: {tensor.dtype}, expected {expected[name].dtype}"
            assert torch.equal(tensor, expected[name]), f"{name}: {tensor}, expected {expected[name]}"
        hidden = self.embed(k)
        return {
            "value": self.value(hidden),
            "flag": self.flag(hidden),
            "classes": self.classes(hidden),
            "pair": self.pair(hidden),
            "grid": self.grid(hidden).unflatten(1, (2, 2)),
            "vector": self.vector(hidden),
        }


def encoded(k: Tensor, length: int) -> dict[str, Tensor]:
    """What a model is to be given for the columns of `tests.integration.test_columns`.

    k : Tensor, shape (batch,), int64, from 0 to 4
    """
    column = k.unsqueeze(1)
    real = column.float()
    triple = torch.cat([real, real + 1, real / 4], dim=1)
    steps = torch.arange(length)
    return {
        **{name: k for name in ("byte", "short", "int", "long")},
        **{name: real / 4 for name in ("float", "double", "decimal")},
        "boolean": (real == 2).float(),
        "double64": column.double() / 4,
        "int_as_float": real,
        "reals": triple,
        "ints": torch.cat([column, column + 1], dim=1),
        "flags": torch.cat([column == 1, column == 2], dim=1).float(),
        "nested": torch.cat([real, real + 1, real + 2, real + 3], dim=1).unflatten(1, (2, 2)),
        "reshaped": torch.cat([real, real + 1, real + 2, real + 3], dim=1).unflatten(1, (2, 2)),
        "dense": triple,
        "sparse": torch.cat([real, torch.zeros_like(real), real + 1], dim=1),
        "mixed": torch.cat([real, torch.zeros_like(real), real + 1], dim=1),
        "image": torch.cat([column, column + 1, column + 2, column + 3], dim=1).to(torch.uint8).reshape(-1, 1, 2, 2),
        "samples": torch.cat([real, real + 0.5], dim=1),
        "joined": torch.cat([real, real / 4, (real == 2).float(), triple], dim=1),
        "padded": torch.where(steps < column, column + steps, 0),
        "padded_mask": steps < column,
    }


class Bag(nn.Module):
    """The mean of a row's embedded tokens, and an age: one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(9, 1)

    def forward(self, age: Tensor, ids: Tensor, attention_mask: Tensor) -> Tensor:
        weight = attention_mask.unsqueeze(2).float()
        mean = (self.embed(ids) * weight).sum(1) / weight.sum(1).clamp(min=1)
        return self.out(torch.cat([mean, age], dim=1))

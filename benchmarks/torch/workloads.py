"""What is trained, on both sides: networks, losses and settings; imports nothing that ``torchrun`` would wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FEATURES = 20


@dataclass(frozen=True)
class Workload:
    """A training, and its usual size.

    Parameters
    ----------
    title : str
    network : callable
        Makes the module; see `make_network`.
    loss : callable
        Makes a loss that is a mean over rows.
    learning_rate : float
        Of Adam.
    rows, epochs : int
    batch_size : int
        Rows that a rank brings to a step.
    """

    title: str
    network: Callable[[], nn.Module]
    loss: Callable[[], nn.Module]
    learning_rate: float
    rows: int
    epochs: int
    batch_size: int

    def make_network(self) -> nn.Module:
        """The network of both sides, with the same first weights whoever makes it."""
        torch.manual_seed(0)
        return self.network()


class DigitNet(nn.Module):
    """The network of ``examples/mnist.py``: two convolutions and two dense layers; 421,642 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, image: Tensor) -> Tensor:
        """image : uint8, shape (batch, 1, 28, 28) -> logits : float32, shape (batch, 10)"""
        return self.classifier(self.features(image.float() / 255))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))


WORKLOADS = {
    "mlp": Workload(f"MLP {FEATURES}-64-1", _mlp, nn.MSELoss, 1e-3, rows=200_000, epochs=3, batch_size=256),
    "cnn": Workload("CNN on MNIST digits", DigitNet, nn.CrossEntropyLoss, 1e-3, rows=10_000, epochs=2, batch_size=32),
}

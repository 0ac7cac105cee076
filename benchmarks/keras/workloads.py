"""What is trained, on both sides: networks, losses and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import layers

FEATURES = 20


@dataclass(frozen=True)
class Workload:
    """A training, and its usual size.

    Parameters
    ----------
    title : str
    network : callable
        Makes the model; see `make_network`.
    loss : str
    rows, epochs : int
    batch_size : int
        Rows that a rank brings to a step.
    """

    title: str
    network: Callable[[], keras.Model]
    loss: str
    rows: int
    epochs: int
    batch_size: int

    def make_network(self) -> keras.Model:
        """The network of both sides, with the same first weights whoever makes it."""
        keras.utils.set_random_seed(0)
        return self.network()


def _mlp() -> keras.Model:
    return keras.Sequential([layers.Input((FEATURES,)), layers.Dense(64, "relu"), layers.Dense(1)])


def _cnn() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(128, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )


WORKLOADS = {
    "mlp": Workload(f"MLP {FEATURES}-64-1", _mlp, "mse", rows=200_000, epochs=3, batch_size=256),
    "cnn": Workload(
        "CNN on MNIST digits", _cnn, "sparse_categorical_crossentropy", rows=10_000, epochs=2, batch_size=32
    ),
}

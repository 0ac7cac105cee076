"""What the Keras trainer is told, as frozen data; imports neither Keras nor pyspark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Backend = Literal["tensorflow", "jax", "torch"]
BACKENDS = ("tensorflow", "jax", "torch")

TRAINERS: dict[str, str] = {name: f"sparktrain.keras.on_{name}:train" for name in BACKENDS}
"""What a worker imports: each module settles Keras's backend first."""


@dataclass(frozen=True)
class TrainSpec:
    """A fit's settings.

    Parameters
    ----------
    batch_size : int
        Rows of a rank in a step.
    epochs, seed : int
    shuffle : bool
        Permute each shard anew every epoch; False keeps key order.
    validation : float or None
        Fraction of rows to hold out; a validation column is a tensor of the shard instead.
    validation_batch_size : int or None
        None: `batch_size`.
    validation_freq : int
        Epochs from one validation to the next.
    sync_batchnorm : bool
        BatchNormalization over the global batch.
    output_names : tuple of str or None
        The model's output of each label; None: by position.
    folder : str
        URL of the directory from which callbacks' relative paths go.
    gradient_compression : str or None
        ``"fp16"``: in which precision gradients travel.
    dtype_policy : dict or str
        Keras's global policy on the driver, as Keras serialises it.
    """

    batch_size: int
    epochs: int
    seed: int
    shuffle: bool
    validation: float | None
    validation_batch_size: int | None
    validation_freq: int
    sync_batchnorm: bool
    output_names: tuple[str, ...] | None
    folder: str = ""
    gradient_compression: Literal["fp16"] | None = None
    dtype_policy: Any = None

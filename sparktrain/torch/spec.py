"""What the PyTorch trainer is told, as frozen data; imports neither torch nor pyspark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interval = Literal["epoch", "step"]
MixedPrecision = Literal["bf16", "fp16"]
GradientCompression = Literal["fp16"]


@dataclass(frozen=True)
class TrainSpec:
    """A fit's settings.

    Parameters
    ----------
    batch_size : int
        Rows in a rank's forward pass.
    gradient_accumulation_steps : int
        Forward passes of a rank in one optimizer step.
    max_grad_norm : float or None
        Largest norm of the whole gradient.
    epochs, seed : int
    shuffle : bool
        Permute each shard anew every epoch; False keeps key order.
    validation : float or None
        Fraction of rows to hold out; a validation column is a tensor of the shard instead.
    loss_weights : tuple of float
        One a label.
    lr_scheduler_interval : str
        ``"epoch"`` or ``"step"``: when the scheduler steps.
    sync_batchnorm : bool
        BatchNorm over the global batch.
    mixed_precision : str or None
        ``"bf16"`` or ``"fp16"``: autocast around the forward pass.
    find_unused_parameters : bool
        As in `torch.nn.parallel.DistributedDataParallel`.
    gradient_compression : str or None
        ``"fp16"``: in which precision gradients travel.
    """

    batch_size: int
    gradient_accumulation_steps: int
    max_grad_norm: float | None
    epochs: int
    seed: int
    shuffle: bool
    validation: float | None
    loss_weights: tuple[float, ...]
    lr_scheduler_interval: Interval
    sync_batchnorm: bool
    mixed_precision: MixedPrecision | None
    find_unused_parameters: bool
    gradient_compression: GradientCompression | None = None

    @property
    def step_rows(self) -> int:
        """Rows a rank brings to one optimizer step; the global batch is num_proc times that."""
        return self.batch_size * self.gradient_accumulation_steps

"""One step's work on one rank: a batch through the model to a loss whose mean gradient is the global one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparktrain.arguments import Arguments, TransformBatch, argument_names, transformed
from sparktrain.shards.plan import Indices
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.reader import Shard
from sparktrain.torch.loss import Criterion, as_outputs, total
from sparktrain.torch.precision import Precision


@dataclass(frozen=True)
class Batch:
    """B rows on the trainer's device.

    Parameters
    ----------
    inputs : Arguments
        Of tensors of shape (B, …).
    targets : list of Tensor, each of shape (B, …)
    weight : Tensor or None, shape (B,)
    rows : int
    """

    inputs: Arguments
    targets: list[Tensor]
    weight: Tensor | None
    rows: int


class Feed:
    """Takes batches out of a shard by row index; pinned and copied asynchronously to a GPU.

    Parameters
    ----------
    shard : Shard
    device : torch.device
    transform_batch : callable or None
        See `transformed`; runs on the device.
    """

    def __init__(self, shard: Shard, device: torch.device, transform_batch: TransformBatch | None = None) -> None:
        self._transform_batch = transform_batch
        self._inputs = [one if isinstance(one, Ragged) else torch.from_numpy(one) for one in shard.inputs]
        self._names = argument_names(shard.specs("input"))
        self.labels = [torch.from_numpy(array) for array in shard.labels]
        self._weight = None if shard.weights is None else torch.from_numpy(shard.weights)
        self._device = device

    def batch(self, rows: Indices, *, training: bool) -> Batch:
        index = torch.from_numpy(rows)
        inputs: list[Tensor] = []
        for one in self._inputs:
            if isinstance(one, Ragged):
                inputs += [self._placed(torch.from_numpy(part)) for part in one.take(rows)]
            else:
                inputs.append(self._placed(one.index_select(0, index)))
        labels = [self._placed(tensor.index_select(0, index)) for tensor in self.labels]
        arguments, targets = transformed(
            self._transform_batch, Arguments(inputs, self._names), labels, training=training
        )
        weight = None if self._weight is None else self._placed(self._weight.index_select(0, index))
        return Batch(arguments, targets or [], weight, len(rows))

    def _placed(self, rows: Tensor) -> Tensor:
        if self._device.type == "cpu":
            return rows
        return rows.pin_memory().to(self._device, non_blocking=True)


@dataclass(frozen=True)
class StepResult:
    """What a forward pass gives beside the loss: detached, for the epoch's means.

    Parameters
    ----------
    outputs, targets : list of Tensor
        Aligned: a scalar label is (B, 1) against an output of that shape.
    numerators : Tensor, shape (losses,)
        Each loss's sum over the rows.
    """

    outputs: list[Tensor]
    targets: list[Tensor]
    numerators: Tensor


class LossStep(nn.Module):
    """Model and losses as the one module a strategy wraps.

    Parameters
    ----------
    model : Module
    criteria : sequence of Criterion
        One a label.
    loss_weights : sequence of float
    counted : sequence of bool
        Whether a loss's denominator counts elements of a row by itself (class weights, ignored labels).
    precision : Precision
        In which the model computes; losses are computed from float32 outputs.
    all_used : bool
        Every forward pass uses every parameter. If not, a rank without rows must not touch any of them: a
        gradient of zero is not none, since weight decay and momentum act on it.
    """

    def __init__(
        self,
        model: nn.Module,
        criteria: Sequence[Criterion],
        loss_weights: Sequence[float],
        counted: Sequence[bool],
        precision: Precision,
        all_used: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.presence = None if all_used else nn.Parameter(torch.zeros(()))  # no optimizer's: only there to be used
        self._precision = precision
        self.losses = nn.ModuleList(c.function for c in criteria if isinstance(c.function, nn.Module))
        self._criteria = list(criteria)
        self._loss_weights = list(loss_weights)
        self._counted = list(counted)

    def forward(self, batch: Batch | None, scales: Sequence[Tensor | float]) -> tuple[Tensor, StepResult | None]:
        """The loss to run backward from: each numerator times its scale and loss weight.

        Without rows (None) every parameter still takes part, with a gradient of exactly zero, so that
        this rank joins the all-reduce while model and BatchNorm statistics stay untouched. A batch of
        0 rows passes through the model instead, for the collectives that are inside it: its gradients must
        come up in the order of the peers'.
        """
        if batch is None or not batch.rows:
            return self._nothing(batch), None
        outputs, targets, numerators = self.evaluate(batch)
        parts = zip(numerators, scales, self._loss_weights, strict=True)
        loss = torch.stack([numerator * scale * weight for numerator, scale, weight in parts]).sum()
        if self.presence is not None:
            loss = loss + self.presence * 0
        return loss, StepResult(
            [output.detach() for output in outputs], targets, torch.stack([n.detach() for n in numerators])
        )

    def _nothing(self, batch: Batch | None) -> Tensor:
        """A loss of 0 that reaches the parameters."""
        outputs = [] if batch is None else [output.sum() for output in self._outputs(batch)]
        touched: Iterable[Tensor] = self.parameters() if batch is None else self.losses.parameters()
        if self.presence is not None:
            touched = [self.presence]
        return torch.stack([*outputs, *(p.flatten()[:0].sum() for p in touched if p.requires_grad)]).sum()

    def evaluate(self, batch: Batch) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Outputs, aligned targets and each loss's numerator."""
        outputs = self._outputs(batch)
        targets, numerators = [], []
        for criterion, counted, output, target in zip(
            self._criteria, self._counted, outputs, batch.targets, strict=True
        ):
            aligned = criterion.align(output, target)
            rows = criterion.numerators(output, aligned, summed_elements=counted)
            numerators.append(total(rows, batch.weight, batch.rows))
            targets.append(aligned)
        return outputs, targets, numerators

    def _outputs(self, batch: Batch) -> list[Tensor]:
        with self._precision.autocast():
            outputs = as_outputs(batch.inputs.call(self.model), len(batch.targets))
        return self._precision.outputs(outputs)

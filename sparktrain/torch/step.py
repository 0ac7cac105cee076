"""One step's work on one rank: a batch through the model to a loss whose mean gradient is the global one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparktrain.errors import ParamError
from sparktrain.shards.plan import Indices
from sparktrain.shards.reader import Shard
from sparktrain.torch.loss import Criterion, as_outputs, total
from sparktrain.torch.precision import Precision


@dataclass(frozen=True)
class Batch:
    """B rows on the trainer's device.

    Parameters
    ----------
    inputs, targets : list of Tensor, each of shape (B, …)
    weight : Tensor or None, shape (B,)
    rows : int
    """

    inputs: list[Tensor]
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
        self._inputs = [torch.from_numpy(array) for array in shard.inputs]
        self.labels = [torch.from_numpy(array) for array in shard.labels]
        self._weight = None if shard.weights is None else torch.from_numpy(shard.weights)
        self._device = device

    def batch(self, rows: Indices, *, training: bool) -> Batch:
        index = torch.from_numpy(rows)
        take = [self._take(tensor, index) for tensor in (*self._inputs, *self.labels)]
        split = len(self._inputs)
        inputs, targets = transformed(self._transform_batch, take[:split], take[split:], training=training)
        weight = None if self._weight is None else self._take(self._weight, index)
        return Batch(inputs, targets or [], weight, len(rows))

    def _take(self, tensor: Tensor, index: Tensor) -> Tensor:
        rows = tensor.index_select(0, index)
        if self._device.type == "cpu":
            return rows
        return rows.pin_memory().to(self._device, non_blocking=True)


TransformBatch = Callable[[Any, Any, bool], tuple[Any, Any]]


def transformed(
    transform_batch: TransformBatch | None, inputs: list[Tensor], labels: list[Tensor] | None, *, training: bool
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Inputs and labels after the user's ``transform_batch(inputs, labels, training)``.

    A single input or label is given, and given back, as a tensor, several as a list; without labels
    (inference) they are None.

    Raises
    ------
    ParamError
        Where it gives back something else than (inputs, labels).
    """
    if transform_batch is None:
        return inputs, labels
    single = inputs[0] if len(inputs) == 1 else inputs
    label = labels[0] if labels is not None and len(labels) == 1 else labels
    result = transform_batch(single, label, training)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ParamError(f"transform_batch: expected it to return (inputs, labels), got {type(result).__name__}")
    new_inputs, new_labels = (None if one is None else _as_list(one) for one in result)
    if new_inputs is None or (labels is not None and (new_labels is None or len(new_labels) != len(labels))):
        raise ParamError("transform_batch: expected inputs, and labels where there are labels, got None or other ones")
    return new_inputs, new_labels if labels is not None else None


def _as_list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


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
    """

    def __init__(
        self,
        model: nn.Module,
        criteria: Sequence[Criterion],
        loss_weights: Sequence[float],
        counted: Sequence[bool],
        precision: Precision,
    ) -> None:
        super().__init__()
        self.model = model
        self._precision = precision
        self.losses = nn.ModuleList(c.function for c in criteria if isinstance(c.function, nn.Module))
        self._criteria = list(criteria)
        self._loss_weights = list(loss_weights)
        self._counted = list(counted)

    def forward(self, batch: Batch | None, scales: Sequence[Tensor | float]) -> tuple[Tensor, StepResult | None]:
        """The loss to run backward from: each numerator times its scale and loss weight.

        Without rows (None) every parameter still takes part, with a gradient of exactly zero, so that
        this rank joins the all-reduce while model and BatchNorm statistics stay untouched. A batch of
        0 rows passes through the model as well, for the collectives that are inside it.
        """
        if batch is None or not batch.rows:
            nothing = [p.flatten()[:0].sum() for p in self.parameters() if p.requires_grad]
            if batch is not None:
                nothing += [output.sum() for output in self._outputs(batch)]
            return torch.stack(nothing).sum(), None
        outputs, targets, numerators = self.evaluate(batch)
        parts = zip(numerators, scales, self._loss_weights, strict=True)
        loss = torch.stack([numerator * scale * weight for numerator, scale, weight in parts]).sum()
        return loss, StepResult(
            [output.detach() for output in outputs], targets, torch.stack([n.detach() for n in numerators])
        )

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
            outputs = as_outputs(self.model(*batch.inputs), len(batch.targets))
        return self._precision.outputs(outputs)

"""Losses over a global batch: each as a numerator and a denominator a row, reduced by us.

A mean over the global batch is ``sum(w * l) / sum(w * d)`` over the rows of all ranks, where ``l`` is a
row's loss, ``w`` its sample weight and ``d`` the loss's own denominator: 1, or for class-weighted and
ignoring losses what `torch.nn.CrossEntropyLoss` divides by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparktrain.errors import ColumnError, ParamError

LossFunction = Callable[[Tensor, Tensor], Tensor]
LabelKind = Literal["class", "float", "as_is"]
Link = Literal["sigmoid", "softmax"]
CHECKED_ROWS = 1 << 18

_CLASS_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss)
_SAME_SHAPE_MODULES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.KLDivLoss,
    nn.HingeEmbeddingLoss,
    nn.MultiLabelMarginLoss,
)
_CLASS_FUNCTIONS = (F.cross_entropy, F.nll_loss, F.multi_margin_loss, F.multilabel_margin_loss)
_FLOAT_FUNCTIONS = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.poisson_nll_loss,
    F.soft_margin_loss,
    F.hinge_embedding_loss,
    F.kl_div,
    F.multilabel_soft_margin_loss,
)


def label_kind(loss: Any) -> LabelKind:
    """What labels a loss takes: class ids, floating values, or whatever the column holds."""
    if isinstance(loss, _CLASS_MODULES) or loss in _CLASS_FUNCTIONS:
        return "class"
    if isinstance(loss, _SAME_SHAPE_MODULES) or loss in _FLOAT_FUNCTIONS:
        return "float"
    return "as_is"


class Criterion:
    """One output's loss.

    Parameters
    ----------
    loss : Module or callable
        A `torch.nn` loss is evaluated with ``reduction="none"``; its own reduction is what we reproduce.
        A callable returns shape (batch,), or a scalar: the mean over its rows.
    """

    def __init__(self, loss: Any) -> None:
        self.reduction = getattr(loss, "reduction", "mean") if isinstance(loss, nn.Module) else "mean"
        self.by_row = isinstance(loss, nn.Module) and hasattr(loss, "reduction")
        self.function: LossFunction = loss
        if self.by_row:
            self.function = copy.copy(loss)
            self.function.reduction = "none"  # type: ignore[attr-defined]
        self._same_shape = isinstance(loss, _SAME_SHAPE_MODULES) or loss in _FLOAT_FUNCTIONS
        self._classes = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))

    @property
    def link(self) -> Link | None:
        """What makes probabilities of the outputs, where the loss takes logits."""
        loss = self.function
        if isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy:
            return "softmax"
        if isinstance(loss, nn.BCEWithLogitsLoss) or loss is F.binary_cross_entropy_with_logits:
            return "sigmoid"
        return None

    @property
    def summed(self) -> bool:
        """``reduction="sum"``: the loss of a step is the plain sum over its rows."""
        return self.reduction == "sum"

    def ignores(self, labels: Tensor, *, any_label: bool = False) -> bool:
        """Whether a row of `labels` could count for other than 1 in the denominator.

        `any_label`: the labels are not final, they are still transformed batch by batch.
        """
        if not self._classes or self.summed:
            return False
        if any_label or labels.is_floating_point():
            return any_label
        ignored = self._ignore_index()
        parts = torch.split(
            labels, CHECKED_ROWS
        )  # all labels of a shard: compared at once they take a byte each of memory
        return self._class_weight() is not None or any(bool((part == ignored).any()) for part in parts)

    def align(self, output: Tensor, target: Tensor) -> Tensor:
        """View targets of shape (batch,) as (batch, 1) against outputs of that shape.

        Raises
        ------
        ColumnError
            Where an elementwise loss would broadcast two shapes.
        """
        if target.ndim == 1 and output.ndim == 2 and output.shape[1] == 1:
            target = target.unsqueeze(1)
        elif output.ndim == 1 and target.ndim == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if self._same_shape and output.shape != target.shape:
            raise ColumnError(
                f"{_name(self.function)} compares equal shapes, but the model's output has shape "
                f"{_batch_shape(output)} and the label {_batch_shape(target)}"
            )
        if self._classes and not target.is_floating_point() and target.ndim == 2 and target.shape[1] == 1:
            target = target.squeeze(1) if output.ndim == 2 else target
        return target

    def denominators(self, target: Tensor) -> Tensor:
        """Each row's own denominator, shape (batch,): class weights of labels that aren't ignored."""
        if target.is_floating_point():  # class probabilities: torch divides by the rows
            return torch.ones(len(target), device=target.device)
        counted = target != self._ignore_index()
        weight = self._class_weight()
        if weight is None:
            return counted.flatten(1).sum(1).float() if counted.ndim > 1 else counted.float()
        classes = torch.where(counted, target, torch.zeros_like(target))
        each = torch.where(counted, weight[classes], torch.zeros((), device=weight.device))
        return each.flatten(1).sum(1) if each.ndim > 1 else each

    def numerators(self, output: Tensor, target: Tensor, summed_elements: bool) -> Tensor:
        """Each row's loss, shape (batch,), or a scalar from a callable that reduces by itself.

        `summed_elements` adds up the elements of a row (its denominator counts them); else they are
        averaged.
        """
        losses = self.function(output, target)
        if not isinstance(losses, Tensor):
            raise ParamError(f"loss: expected a tensor of shape (batch,) or a scalar, got {type(losses).__name__}")
        if losses.ndim == 0 and not self.by_row:
            return losses
        if losses.ndim == 0 or losses.shape[0] != output.shape[0]:
            raise ParamError(
                f"loss: expected one value a row, shape ({output.shape[0]},), got shape {tuple(losses.shape)}"
            )
        rows = losses.flatten(1) if losses.ndim > 1 else losses.unsqueeze(1)
        if summed_elements or self.reduction in ("sum", "batchmean"):
            return rows.sum(1)
        return rows.mean(1)

    def _class_weight(self) -> Tensor | None:
        weight = getattr(self.function, "weight", None)
        return weight if isinstance(weight, Tensor) else None

    def _ignore_index(self) -> int:
        return int(getattr(self.function, "ignore_index", -100))


def total(rows: Tensor, weight: Tensor | None, count: int) -> Tensor:
    """Sum of row losses times weights; a scalar mean counts for its `count` rows.

    Raises
    ------
    ParamError
        For a scalar together with sample weights: the mean is already taken.
    """
    if rows.ndim == 0:
        if weight is not None:
            raise ParamError(
                "loss returns a scalar, so sample_weight_col can't weight its rows; return one value a row, "
                "shape (batch,), or use a torch.nn loss"
            )
        return rows * count
    return rows.sum() if weight is None else (rows * weight).sum()


def as_outputs(result: Any, labels: int) -> list[Tensor]:
    """A model's result as one tensor a label.

    Raises
    ------
    ParamError
        Where the model gives another number of outputs.
    """
    if isinstance(result, Tensor):
        outputs = [result]
    elif isinstance(result, dict):
        outputs = list(result.values())
    elif isinstance(result, Sequence):
        outputs = list(result)
    else:
        raise ParamError(f"model: expected a tensor, or a tuple or dict of tensors, got {type(result).__name__}")
    if labels and len(outputs) != labels:
        raise ParamError(f"model gives {len(outputs)} outputs, but label_cols names {labels} labels")
    return outputs


def _name(loss: Any) -> str:
    return type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "the loss")


def _batch_shape(tensor: Tensor) -> str:
    return "(batch" + "".join(f", {size}" for size in tensor.shape[1:]) + ("" if tensor.ndim > 1 else ",") + ")"

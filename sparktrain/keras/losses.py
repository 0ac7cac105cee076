"""Losses and metrics over the rows of all ranks, though each rank sees only its own.

A step's gradient and its loss are joined as the mean over ranks weighted by rows. That is right as it stands for a
loss that Keras divides by the batch size. For the others (``"sum"``, ``"mean_with_sample_weight"``, or outputs with a
mask) what a rank computes is scaled by what all ranks together divide by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree
from keras.src.backend import get_keras_mask
from keras.src.losses.losses import LossFunctionWrapper

from sparktrain.errors import ParamError

Count = Callable[[Any], Any]
"""Adds up a small vector over all ranks; no gradient passes through."""


class Rows:
    """The rows of the step that is being traced or run.

    Attributes
    ----------
    count : tensor
        Of this rank; on JAX of all ranks.
    present : tensor or None, shape (batch,)
        1 for a row, 0 for padding; None: there is no padding.
    add_up : callable
    """

    def __init__(self, add_up: Count) -> None:
        self.count: Any = None
        self.present: Any = None
        self.add_up = add_up


class GlobalLoss(keras.losses.Loss):  # type: ignore[misc]
    """A loss whose mean over ranks, weighted by rows, is the loss of the global batch.

    Parameters
    ----------
    inner : Loss
    rows : Rows
    """

    def __init__(self, inner: keras.losses.Loss, rows: Rows) -> None:
        super().__init__(name=inner.name, reduction=inner.reduction, dtype=inner.dtype)
        self.inner = inner
        self._rows = rows

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        rows = self._rows
        masked = get_keras_mask(y_pred) is not None or _ignores(self.inner)
        usual = self.reduction in ("mean", "sum_over_batch_size") and not masked and rows.present is None
        if rows.count is None or usual or type(self.inner).__call__ is not keras.losses.Loss.__call__:
            return self.inner(y_true, y_pred, sample_weight=sample_weight)
        numerator, denominator = self._parts(y_true, y_pred, sample_weight)
        total, count = ops.unstack(rows.add_up(ops.stack([denominator, ops.cast(rows.count, self.dtype)])), 2)
        return numerator / ops.where(total == 0, 1.0, total) * count / ops.maximum(ops.cast(rows.count, self.dtype), 1)

    def _parts(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any]:
        """The sum over this rank's rows, and this rank's part of what the sum over all is divided by; 0: by nothing."""
        mask = get_keras_mask(y_pred)
        y_pred = tree.map_structure(lambda one: ops.convert_to_tensor(one, dtype=self.dtype), y_pred)
        y_true = tree.map_structure(lambda one: ops.convert_to_tensor(one, dtype=self.dtype), y_true)
        values = self.inner.call(y_true, y_pred)
        own_mask = get_keras_mask(values)
        masks = [one for one in (mask, own_mask) if one is not None]
        if len(values.shape) == 0:  # a mean already
            count = ops.cast(self._rows.count, self.dtype)
            return values * count, count
        weight = ops.ones_like(values)
        for one in [*masks, *([] if self._rows.present is None else [self._rows.present])]:
            weight = weight * aligned(ops.cast(one, self.dtype), values)
        valid = ops.sum(weight)
        if sample_weight is not None:
            weight = weight * aligned(ops.cast(sample_weight, self.dtype), values)
        numerator = ops.sum(ops.where(weight == 0, 0.0, values) * weight)
        if self.reduction == "sum":
            return numerator, ops.zeros_like(numerator)
        return numerator, ops.sum(weight) if self.reduction == "mean_with_sample_weight" else valid

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.inner.call(y_true, y_pred)


def _ignores(loss: keras.losses.Loss) -> bool:
    return getattr(loss, "ignore_class", None) is not None or "ignore_class" in getattr(loss, "_fn_kwargs", {})


def aligned(weight: Any, values: Any) -> Any:
    """`weight` with as many axes as `values`."""
    while len(weight.shape) > len(values.shape) and weight.shape[-1] == 1:
        weight = ops.squeeze(weight, -1)
    while len(weight.shape) < len(values.shape):
        weight = ops.expand_dims(weight, -1)
    return weight


def global_losses(loss: Any, rows: Rows) -> Any:
    """What ``compile(loss=…)`` was given, each loss in it as a `GlobalLoss`.

    Raises
    ------
    ParamError
        For a loss that reduces nothing.
    """

    def wrapped(one: Any) -> Any:
        if one is None:
            return None
        found = keras.losses.get(one)
        if not isinstance(found, keras.losses.Loss):
            found = LossFunctionWrapper(found, name=one if isinstance(one, str) else _name(found))
        if found.reduction in (None, "none"):
            raise ParamError(f"loss: {found.name} has reduction={found.reduction!r}; training needs one number")
        return GlobalLoss(found, rows)

    if isinstance(loss, str) and loss in ("crossentropy", "ce"):
        return loss  # Keras settles on one by the shapes
    return tree.map_structure(wrapped, loss)


def metrics_by_row(metrics: Any) -> Any:
    """What ``compile(metrics=…)`` was given; a user's function counts each row once, also where it gives one number
    for a batch."""

    def by_row(one: Any) -> Any:
        if not callable(one) or isinstance(one, keras.metrics.Metric) or type(one).__module__.startswith("keras."):
            return one
        if (getattr(one, "__module__", None) or "").startswith("keras."):
            return one
        return keras.metrics.MeanMetricWrapper(ByRow(one), name=_name(one))

    return tree.map_structure(by_row, metrics)


class ByRow:
    """A function of (y_true, y_pred) that gives a value for each row of a batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        values = ops.convert_to_tensor(self._function(y_true, y_pred))
        if len(values.shape):
            return values
        if keras.backend.backend() == "jax":  # where a batch may hold padding, which must not enter a mean
            return ops.vectorized_map(self._of_row, (y_true, y_pred))
        return ops.broadcast_to(values, (ops.shape(tree.flatten(y_pred)[0])[0],))

    def _of_row(self, pair: tuple[Any, Any]) -> Any:
        y_true, y_pred = tree.map_structure(lambda one: ops.expand_dims(one, 0), pair)
        return self._function(y_true, y_pred)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))

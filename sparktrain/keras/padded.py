"""Padded batches on the JAX backend: its ranks are one program over one global batch, so each brings as many rows.

A batch that is short is filled up with copies, and every loss and metric is told which rows are there. That goes along
as ``(weights, present)`` in the place of Keras's sample weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops, tree
from keras.src.backend import get_keras_mask

from sparktrain.errors import ParamError
from sparktrain.keras.batchnorm import batchnorms_of, present_moments
from sparktrain.keras.losses import Rows, aligned
from sparktrain.keras.overrides import Overrides

Array = np.ndarray[Any, Any]


def filled_up(size: int, spare: tuple[Any, Any, Any]) -> Callable[[Any, Any, Any, int], tuple[Any, ...]]:
    """A step's (x, y, weights, rows) as one of `size` rows, those that it lacks being copies of a spare one."""

    def finish(x: Any, y: Any, weights: Any, rows: int) -> tuple[Any, ...]:
        present = np.zeros(size, np.float32)
        present[:rows] = 1
        missing = size - rows
        if missing:
            x, y = tree.map_structure(
                lambda one, row: np.concatenate([one, np.repeat(row[:1], missing, axis=0)]), (x, y), spare[:2]
            )
        whole = np.ones(size, np.float32)
        if weights is not None:
            whole[:rows] = weights
        return x, y, (whole, present)

    return finish


class Padded:
    """What a compiled and built model does with padded batches.

    Parameters
    ----------
    model : Model
    rows : Rows
        Told of each step's rows as it is traced.
    weighted : bool
        Whether the rows have weights of their own.
    """

    def __init__(self, model: keras.Model, rows: Rows, *, weighted: bool) -> None:
        self._model, self._rows, self._weighted = model, rows, weighted

    def install(self, overrides: Overrides) -> None:
        """From here on the model is given padded batches.

        Raises
        ------
        ParamError
            For a model with a step of its own.
        """
        model, put = self._model, overrides.put
        if _is_own(model, "train_step") or _is_own(model, "compute_metrics"):
            raise ParamError(
                f"model: {type(model).__name__} has a train_step or compute_metrics of its own, which would take "
                "padding for rows: on the JAX backend it trains on shards of equal size alone. Use "
                "keras_backend='tensorflow' or 'torch', or drop rows yourself"
            )
        put(model, "train_step", self._step(model.train_step))
        put(model, "test_step", self._step(model.test_step))
        trackers = [model._loss_tracker, *(model._compile_loss.metrics if model._compile_loss is not None else [])]
        for tracker in trackers:
            put(tracker, "update_state", self._of_rows(tracker.update_state))
        for metric in _compiled_metrics(model):
            put(metric, "update_state", self._of_present(metric.update_state))
        for layer in model._flatten_layers():
            if layer.activity_regularizer is not None:
                own = layer.activity_regularizer
                overrides.callback(setattr, layer, "activity_regularizer", own)
                layer.activity_regularizer = self._of_rows_present(own)
                put(layer, "get_config", partial(_config_with, layer, own))  # for a checkpoint
        for layer in batchnorms_of(model):
            put(layer, "_moments", present_moments(layer, lambda: self._rows.present))

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def informed(state: Any, data: Any) -> Any:
            x, y, (weights, present) = data
            self._rows.present, self._rows.count = present, ops.sum(present)
            try:
                return step(state, (x, y, weights) if self._weighted else (x, y))
            finally:
                self._rows.present = self._rows.count = None

        return informed

    def _of_rows_present(self, penalty: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Keras sums a penalty on outputs over a batch, and divides it by the batch."""

        def penalised(output: Any) -> Any:
            if self._rows.present is None:
                return penalty(output)
            present = aligned(ops.cast(self._rows.present, output.dtype), output)
            return penalty(output * present) * output.shape[0] / ops.cast(self._rows.count, output.dtype)

        return penalised

    def _of_rows(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """A tracker of a loss counts rows, not the batch."""
        return lambda values, sample_weight=None: update(values, sample_weight=self._rows.count)

    def _of_present(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def masked(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            mask = get_keras_mask(y_pred)
            present = self._rows.present
            if mask is not None:
                present = aligned(present, mask) * ops.ones_like(ops.cast(mask, present.dtype))
            weight = present if sample_weight is None else aligned(sample_weight, present) * present
            return update(y_true, y_pred, sample_weight=weight)

        return masked


def _config_with(layer: keras.Layer, activity_regularizer: Any) -> dict[str, Any]:
    """A layer's config with this regularizer in the place of the present one."""
    present = layer.activity_regularizer
    layer.activity_regularizer = activity_regularizer
    try:
        config: dict[str, Any] = type(layer).get_config(layer)
        return config
    finally:
        layer.activity_regularizer = present


def _is_own(model: keras.Model, name: str) -> bool:
    return not getattr(type(model), name).__module__.startswith("keras.")


def _compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    compiled = model._compile_metrics
    return [] if compiled is None else list(compiled.metrics)

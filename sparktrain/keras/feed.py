"""Batches of a shard as Keras takes them: a `keras.utils.PyDataset` whose order is the plan's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import tree

from sparktrain.arguments import Arguments, TransformBatch, transformed
from sparktrain.errors import ParamError
from sparktrain.keras.signature import structured
from sparktrain.shards.plan import Indices
from sparktrain.shards.ragged import Ragged

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Columns:
    """A shard's arrays, and how a batch of them is laid out.

    Parameters
    ----------
    model : Model
        Whose inputs they are.
    inputs : sequence of ndarray or Ragged
    names : tuple of str or None
        As in `Arguments`.
    labels : sequence of ndarray
    outputs : tuple of str or None
        The model's outputs of the labels; None: by position.
    weights : ndarray or None, shape (rows,)
    transform_batch : callable or None
    as_column : tuple of bool
        Of each label: whether a scalar one, shape (batch,), is for an output of shape (batch, 1), and gets that shape.
    """

    model: keras.Model
    inputs: Sequence[Array | Ragged]
    names: tuple[str, ...] | None
    labels: Sequence[Array]
    outputs: tuple[str, ...] | None
    weights: Array | None
    transform_batch: TransformBatch | None
    as_column: tuple[bool, ...] = ()

    def take(self, rows: Indices, *, training: bool) -> tuple[Any, Any, Any]:
        """Inputs, labels and weights (None without a column) of rows, after transform_batch."""
        values: list[Array] = []
        for one in self.inputs:
            values += one.take(rows) if isinstance(one, Ragged) else [one[rows]]
        labels = [labels[rows] for labels in self.labels]
        weights = None if self.weights is None else self.weights[rows]
        return (*self._laid_out(values, labels, training), weights)

    def zeros(self, rows: int) -> tuple[Any, Any, Any]:
        """As `take`, of made-up rows."""
        values: list[Array] = []
        for one in self.inputs:
            if isinstance(one, Ragged):
                length = one.pad if isinstance(one.pad, int) else 1
                values += [
                    np.zeros((rows, length, *one.items.shape[1:]), one.items.dtype),
                    np.ones((rows, length), bool),
                ]
            else:
                values.append(np.zeros((rows, *one.shape[1:]), one.dtype))
        labels = [np.zeros((rows, *one.shape[1:]), one.dtype) for one in self.labels]
        weights = None if self.weights is None else np.ones(rows, np.float32)
        return (*self._laid_out(values, labels, True), weights)

    def _laid_out(self, values: list[Array], labels: list[Array], training: bool) -> tuple[Any, Any]:
        arguments, targets = transformed(self.transform_batch, Arguments(values, self.names), labels, training=training)
        x = structured(self.model, arguments.values, arguments.names)
        assert targets is not None
        for place, wide in enumerate(self.as_column):
            if wide and targets[place].ndim == 1:
                targets[place] = targets[place][:, None]
        if self.outputs is not None:
            return x, dict(zip(self.outputs, targets, strict=True))
        return x, targets[0] if len(targets) == 1 else targets


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """The steps of an epoch on one rank; as many as on the others, the last ones perhaps without rows.

    Parameters
    ----------
    columns : Columns
    order : callable
        Takes the epoch, counted from 0, and gives its order of rows.
    batch_size, steps : int
    finish : callable or None
        Turns (x, y, weights, rows) into what Keras is given.
    training : bool
    """

    def __init__(
        self,
        columns: Columns,
        order: Callable[[int], Indices],
        batch_size: int,
        steps: int,
        *,
        training: bool,
        finish: Callable[[Any, Any, Any, int], tuple[Any, ...]] | None = None,
    ) -> None:
        super().__init__(workers=0)
        self._columns, self._order, self._batch_size, self._steps = columns, order, batch_size, steps
        self._training, self._finish = training, finish or _plain
        self._epoch, self._rows = -1, order(0)
        self.epoch = 0

    @property
    def num_batches(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> tuple[Any, ...]:
        if self.epoch != self._epoch:
            self._epoch, self._rows = self.epoch, self._order(self.epoch)
        rows = self._rows[step * self._batch_size : (step + 1) * self._batch_size]
        batch = self._finish(*self._columns.take(rows, training=self._training), len(rows))
        laid_out: tuple[Any, ...] = tree.lists_to_tuples(batch)  # tf.data takes a list for a tensor
        return laid_out


def _plain(x: Any, y: Any, weights: Any, rows: int) -> tuple[Any, ...]:
    return (x, y) if weights is None else (x, y, weights)


def row_weights(weights: Array | None, labels: Sequence[Array], by_class: Mapping[int, float] | None) -> Array | None:
    """Each row's weight: the column's, times its class's.

    Raises
    ------
    ParamError
        Where there is more than one label, or one is in no class of `by_class`.
    """
    if by_class is None:
        return weights
    if len(labels) != 1:
        raise ParamError(f"class_weight takes one label column, got {len(labels)}")
    ids = labels[0].argmax(-1) if labels[0].ndim > 1 and labels[0].shape[-1] > 1 else labels[0].reshape(len(labels[0]))
    known, where = np.unique(ids, return_inverse=True)
    missing = [one for one in known.tolist() if one not in by_class]
    if missing:
        raise ParamError(f"class_weight has no weight for class {missing[0]:g}; it has {sorted(by_class)}")
    found = np.array([by_class[one] for one in known.tolist()], np.float32)[where]
    return found if weights is None else found * weights

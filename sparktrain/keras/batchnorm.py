"""Normalisation over the rows of all ranks, and moving averages that all ranks agree on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from sparktrain.errors import ParamError
from sparktrain.keras.peers import Peers

Moments = Callable[[Any, Any], tuple[Any, Any]]
SEED_STATE = "seed_generator_state"


def batchnorms_of(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """The BatchNormalization layers of a model.

    Raises
    ------
    ParamError
        Where this Keras does not ask a layer for its ``_moments(inputs, mask)``.
    """
    layers = [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization)]
    if layers and not hasattr(layers[0], "_moments"):
        raise ParamError(f"sync_batchnorm: not with Keras {keras.__version__}; sparktrain knows 3.0 to 3.15")
    return layers


def joint_moments(layer: keras.layers.BatchNormalization, add_up: Callable[[Any], Any]) -> Moments:
    """Mean and variance over all ranks, in two passes so that nothing cancels.

    Parameters
    ----------
    layer : BatchNormalization
    add_up : callable
        Adds up a vector over all ranks, gradients too.
    """

    def moments(inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = layer._reduction_axes
        weight = ops.ones_like(inputs) if mask is None else _spread(mask, inputs)
        count = ops.sum(weight, axis=axes)
        mean, total = _halves(add_up(ops.concatenate([ops.sum(inputs * weight, axis=axes), count])))
        total = ops.stop_gradient(total)
        mean = mean / total
        distance = ops.square(inputs - ops.reshape(mean, _broadcast(inputs, layer))) * weight
        return mean, add_up(ops.sum(distance, axis=axes)) / total

    return moments


def present_moments(layer: keras.layers.BatchNormalization, present: Callable[[], Any]) -> Moments:
    """Mean and variance without the padding of a batch.

    Parameters
    ----------
    layer : BatchNormalization
    present : callable
        Gives the step's mask, shape (batch,): 1 for a row, 0 for padding.
    """

    def moments(inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = layer._reduction_axes
        weight = _spread(present(), inputs)
        if mask is not None:
            weight = weight * _spread(mask, inputs)
        total = ops.sum(weight, axis=axes)
        mean = ops.sum(inputs * weight, axis=axes) / total
        distance = ops.square(inputs - ops.reshape(mean, _broadcast(inputs, layer))) * weight
        return mean, ops.sum(distance, axis=axes) / total

    return moments


def _spread(mask: Any, inputs: Any) -> Any:
    mask = ops.cast(mask, inputs.dtype)
    return ops.reshape(mask, (*mask.shape, *[1] * (len(inputs.shape) - len(mask.shape)))) * ops.ones_like(inputs)


def _halves(vector: Any) -> tuple[Any, Any]:
    half = vector.shape[0] // 2
    return vector[:half], vector[half:]


def _broadcast(inputs: Any, layer: keras.layers.BatchNormalization) -> list[int]:
    return [1 if axis in layer._reduction_axes else size for axis, size in enumerate(inputs.shape)]


class MovingAverages:
    """Gives all ranks the same values of what a forward pass changes, after each epoch.

    A rank's BatchNormalization has averaged its own rows' moments: the ranks' averages are averaged, weighted by rows.
    Synchronised ones are those of the rank that took part in most steps.

    Parameters
    ----------
    model : Model
    peers : Peers
    rows_by_rank : list of int
    synchronised : bool
    """

    def __init__(self, model: keras.Model, peers: Peers, rows_by_rank: list[int], *, synchronised: bool) -> None:
        self._peers, self._rows, self._synchronised = peers, rows_by_rank, synchronised
        self._variables = [one for one in model.non_trainable_variables if one.name != SEED_STATE]
        self._seeds = [one for one in model.non_trainable_variables if one.name == SEED_STATE]
        for seed in self._seeds:  # rows of different ranks are dropped out by different draws
            seed.assign(ops.convert_to_numpy(seed) + np.array([peers.rank, 0], np.uint32))

    def equalise(self) -> None:
        """Of the model's variables that aren't trained, make those equal that differ."""
        values = [ops.convert_to_numpy(one) for one in self._variables]
        if not values:
            return
        sums = np.array([zlib.crc32(one.tobytes()) for one in values], np.float64)
        differing = self._peers.sum(sums) != sums * self._peers.world_size
        differing = self._peers.sum(differing.astype(np.float64)) > 0
        chosen = [(v, x) for v, x, other in zip(self._variables, values, differing, strict=True) if other]
        most = self._rows.index(max(self._rows))
        share = self._rows[self._peers.rank] / sum(self._rows)
        averaged = [x for _, x in chosen if not self._synchronised and x.dtype.kind == "f"]
        joint = iter([self._peers.sum(np.asarray(x, np.float64) * share).astype(x.dtype) for x in averaged])
        given = iter(self._peers.from_rank(most, [x for _, x in chosen]))
        for variable, x in chosen:
            copied = next(given)
            variable.assign(next(joint) if not self._synchronised and x.dtype.kind == "f" else copied)

    def finish(self) -> None:
        """Rank 0's seeds for all."""
        values = self._peers.from_rank(0, [ops.convert_to_numpy(one) for one in self._seeds])
        for seed, value in zip(self._seeds, values, strict=True):
            seed.assign(value)

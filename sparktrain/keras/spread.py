"""Variables of which no rank holds all: read whole, and a model of them saved, by all ranks together. JAX only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np

from sparktrain.keras.overrides import Overrides
from sparktrain.keras.peers import Peers

Array = np.ndarray[Any, Any]


def is_spread(variable: keras.Variable) -> bool:
    """Whether this process holds but a part of it."""
    value = variable.value
    return keras.backend.backend() == "jax" and not (value.is_fully_addressable or value.is_fully_replicated)


def whole(variable: keras.Variable) -> Array:
    """All of its value; where it is spread, all ranks call this together."""
    if not is_spread(variable):
        return np.asarray(keras.ops.convert_to_numpy(variable))
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))


def save_together(model: keras.Model, peers: Peers, overrides: Overrides) -> None:
    """From here on all ranks call a spread model's get_weights, save and save_weights together; rank 0 writes."""
    for name in ("save", "save_weights"):
        overrides.put(model, name, partial(_written_by_first, model, getattr(model, name), peers))
    overrides.put(model, "get_weights", lambda: [whole(one) for one in model.weights])


def _written_by_first(model: keras.Model, write: Callable[..., Any], peers: Peers, *args: Any, **keywords: Any) -> None:
    import jax

    variables = [*model.variables, *(model.optimizer.variables if model.optimizer is not None else [])]
    values = []
    for variable in variables:
        value = whole(variable)
        if peers.rank == 0:
            values.append(value)
    if peers.rank:
        return
    distribution, spread = keras.distribution.distribution(), [one._value for one in variables]
    keras.distribution.set_distribution(None)
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):  # one device may not hold the model
            for variable, value in zip(variables, values, strict=True):
                variable._value = jax.numpy.asarray(value)
            write(*args, **keywords)
    finally:
        for variable, value in zip(variables, spread, strict=True):
            variable._value = value
        keras.distribution.set_distribution(distribution)

"""Keras objects as bytes that every Keras backend reads: what configs say, and values as NumPy arrays.

A process that reads them may have another backend than the one that wrote them, so no variable is pickled. Classes and
functions that are not Keras's own go along, by reference where they can be imported and by value where not
(``__main__``, a notebook), under the names by which Keras looks them up.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import keras
import numpy as np

from sparktrain.errors import ParamError
from sparktrain.keras.skeleton import (
    CustomObjects,
    Skeleton,
    check_origin,
    custom_objects_of,
    is_keras,
    model_of,
    serialized,
    skeleton_of,
)
from sparktrain.keras.spread import whole

Unpickler = Callable[[io.BytesIO], pickle.Unpickler]
Values = list[np.ndarray[Any, Any]]
"""Of a model's or an optimizer's variables, in their order."""


def compiled_with(model: keras.Model) -> dict[str, Any] | None:
    """The keywords that `Model.compile` was given; None: it was not called."""
    kept = getattr(model, "_compile_config", None)
    return None if kept is None else dict(kept.config)


def values_of(variables: list[Any]) -> Values:
    """What is in variables; all ranks call this together where some are spread over them."""
    return [whole(one) for one in variables]


def assign(variables: list[Any], values: Values, whose: str) -> None:
    """Put `values` into variables.

    Raises
    ------
    ParamError
        Where they are others by number or shape.
    """
    own, given = [tuple(one.shape) for one in variables], [tuple(one.shape) for one in values]
    if own != given:
        raise ParamError(
            f"{whose}: made anew from its config or attributes it has {len(own)} variables where there were "
            f"{len(given)}, or of other shapes; make layers and weights in __init__ or build, or write get_config()"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def dumps(
    value: Any, *, weights: bool = True, compiled: bool = False, custom_objects: CustomObjects | None = None
) -> bytes:
    """A pickle in which Keras's objects are their configs and values, for `loads`.

    Parameters
    ----------
    value : object
    weights : bool, default True
        False: without the values of models.
    compiled : bool, default False
        True: models are compiled again with what they were compiled with, optimizer state included.
    custom_objects : mapping, optional
        Classes and functions that the configs name and that are not seen in the objects themselves.

    Raises
    ------
    ParamError
        Where something in it can't be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, weights, compiled, dict(custom_objects or {})).dump(value)
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise ParamError(
            "the model, optimizer, loss, metrics, callbacks or another object can't be pickled to travel to the "
            f"executors: {error}"
        ) from error
    return buffer.getvalue()


def loads(data: bytes, unpickler: Unpickler | None = None, *, safe_mode: bool = False) -> Any:
    """What `dumps` was given, made anew with this process's backend.

    Parameters
    ----------
    data : bytes
    unpickler : callable or None
        For bytes of somebody else's: one that admits only what it should.
    safe_mode : bool
        Whether Keras refuses lambdas.
    """
    reader = (unpickler or _Unpickler)(io.BytesIO(data))
    reader.persistent_load = _Restore(safe_mode)  # type: ignore[method-assign]
    return reader.load()


class _Unpickler(pickle.Unpickler):
    """For what came from this run's own driver; unlike the C class it takes a `persistent_load`."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Gives each Keras object a persistent id: what it is, a number to know it again by,
    its config, its values, and the custom objects in it."""

    def __init__(self, buffer: io.BytesIO, weights: bool, compiled: bool, custom_objects: dict[str, Any]) -> None:
        super().__init__(buffer)
        self._weights, self._compiled, self._custom_objects = weights, compiled, custom_objects
        self._numbers: dict[int, int] = {}
        self._keep: list[Any] = []  # alive, so that no id is used twice

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        kind = None if isinstance(obj, type) else _kind(obj)
        if kind is None:
            return None
        if id(obj) in self._numbers:
            return ("again", self._numbers[id(obj)], None, None, {}, None)
        self._keep.append(obj)
        number = self._numbers[id(obj)] = len(self._numbers)
        if kind == "layer":
            holds = self._weights and isinstance(obj, keras.Model) and obj.built
            values = values_of(obj.variables) or None if holds else None  # `built` may be said before weights are made
            keywords = compiled_with(obj) if self._compiled and isinstance(obj, keras.Model) else None
            return (kind, number, skeleton_of(obj), values, self._custom(obj), keywords)
        values = values_of(obj.variables) if kind == "optimizer" and obj.built else None
        return (kind, number, serialized(obj), values, self._custom(obj), None)

    def _custom(self, obj: Any) -> dict[str, Any]:
        return self._custom_objects | custom_objects_of(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)):
            return super().reducer_override(obj)
        if isinstance(obj, (keras.callbacks.Callback, keras.losses.Loss)):  # a callback that was used holds its model
            state = {name: value for name, value in vars(obj).items() if name not in ("_model", "model")}
            state |= {"_model": None} if hasattr(obj, "set_model") else {}
            return copyreg.__newobj__, (type(obj),), state  # type: ignore[attr-defined]
        for plain in (list, dict, set, tuple):  # Keras wraps the containers that its objects hold
            if type(obj) is not plain and isinstance(obj, plain) and type(obj).__name__.startswith(("Tracked", "_")):
                return plain, (list(obj.items() if isinstance(obj, dict) else obj),)
        return NotImplemented


def _kind(obj: Any) -> str | None:
    if isinstance(obj, keras.Layer):
        return "layer"
    if isinstance(obj, keras.optimizers.Optimizer):
        return "optimizer"
    if isinstance(obj, (keras.metrics.Metric, keras.random.SeedGenerator)):
        return "object"
    return "object" if hasattr(obj, "get_config") and is_keras(type(obj)) else None


class _Restore:
    """Resolves persistent ids; the same number gives the same object."""

    def __init__(self, safe_mode: bool) -> None:
        self._safe_mode = safe_mode
        self._made: dict[int, Any] = {}

    def __call__(self, pid: tuple[Any, ...]) -> Any:
        kind, number, content, values, custom_objects, compiled = pid
        if number not in self._made:
            with keras.saving.custom_object_scope(custom_objects):
                made = self._made[number] = self._make(kind, content, values, custom_objects)
            if compiled is not None:
                keras.Model.compile(made, **compiled)
                if made.built and made.optimizer is not None:
                    with_values(made.optimizer, made.trainable_variables)
        return self._made[number]

    def _make(self, kind: str, content: Any, values: Values | None, custom_objects: CustomObjects) -> Any:
        if self._safe_mode:
            check_origin(content.config if isinstance(content, Skeleton) else content, custom_objects)
        if kind == "layer":
            made = model_of(content, safe_mode=self._safe_mode)
            if values is not None:
                assign(made.variables, values, "model")
            return made
        made = keras.saving.deserialize_keras_object(content, safe_mode=self._safe_mode)
        if values is not None:
            made.sparktrain_values = values  # its variables come with a model's: see `with_values`
        return made


def with_values(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
    """Give an optimizer that was read the values that it had when it was written, for the variables it trains.

    Raises
    ------
    ParamError
        Where it was used for another model.
    """
    values = vars(optimizer).pop("sparktrain_values", None)
    if values is not None:
        optimizer.build(variables)
        assign(optimizer.variables, values, "optimizer")

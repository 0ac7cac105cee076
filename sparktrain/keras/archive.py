"""Keras objects as bytes that every Keras backend reads: what configs say, and values as NumPy arrays.

A process that reads them may have another backend than the one that wrote them, so no variable is pickled. Classes and
functions that are not Keras's own go along, by reference where they can be imported and by value where not
(``__main__``, a notebook), under the names by which Keras looks them up.

Keras makes a subclass anew only from a config with all that its ``__init__`` takes, and few classes have one. Those
that leave ``get_config`` to Keras travel by their attributes instead, and their ``__init__`` does not run again.
"""

from __future__ import annotations

import copyreg
import inspect
import io
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import keras
import numpy as np

from sparktrain.errors import ParamError

Unpickler = Callable[[io.BytesIO], pickle.Unpickler]
CustomObjects = Mapping[str, Any]
Config = dict[str, Any]
Values = list[np.ndarray[Any, Any]]
"""Of a model's or an optimizer's variables, in their order."""


def custom_objects_of(*values: Any) -> dict[str, Any]:
    """Classes and functions in `values` that are not Keras's own, by the names that Keras gives them in configs."""
    found: dict[str, Any] = {}
    for one in _foreign(values, {}):
        name = getattr(one, "__name__", "<lambda>")
        if name != "<lambda>":
            found[name] = one
            found[keras.saving.get_registered_name(one)] = one
    return found


def _foreign(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen[id(value)] = value  # alive, so that no id is used twice
    if isinstance(value, (list, tuple, set)):
        for one in value:
            yield from _foreign(one, seen)
    elif isinstance(value, Mapping):
        yield from _foreign(list(value.values()), seen)
    elif isinstance(value, (type, types.FunctionType)):
        if not _is_keras(value):
            yield value
    elif hasattr(value, "get_config"):
        yield from _foreign(type(value), seen)
        layers = value._flatten_layers(include_self=False) if isinstance(value, keras.Layer) else ()
        own = [part for name, part in vars(value).items() if not hasattr(type(value), name)]  # not a wrapped method
        parts = [*layers, *(part for part in own if _may_hold(part))]
        yield from _foreign(parts, seen)


def _may_hold(part: Any) -> bool:
    return isinstance(part, (types.FunctionType, list, tuple, Mapping)) or (
        hasattr(part, "get_config") and not isinstance(part, type)
    )


def _is_keras(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in ("keras", "builtins")


@dataclass(frozen=True)
class Skeleton:
    """A model or layer without its values.

    Parameters
    ----------
    config : dict or None
        As Keras serialises it; None: by its attributes.
    kind : type or None
        With attributes: its class.
    parts : mapping
        Its attributes, those that Keras gives every layer left out.
    name : str
    dtype : str or dict
        Its policy.
    build_config : dict or None
        The shapes it was built with; None: not built.
    trainable : tuple of bool
        Of it and the layers inside, as Keras walks them.
    """

    config: Config | None
    kind: type | None
    parts: Mapping[str, Any]
    name: str
    dtype: Any
    build_config: Config | None
    trainable: tuple[bool, ...]


def skeleton_of(layer: keras.Layer) -> Skeleton:
    """What `layer` is made of."""
    trainable = tuple(one.trainable for one in layer._flatten_layers())
    built = layer.get_build_config() if layer.built else None
    policy = keras.dtype_policies.serialize(layer.dtype_policy)
    if goes_by_parts(layer):
        return Skeleton(None, type(layer), _parts(layer), layer.name, policy, built, trainable)
    config = serialized(layer)
    config.pop("compile_config", None)
    return Skeleton(config, None, {}, layer.name, policy, built, trainable)


def goes_by_parts(layer: keras.Layer) -> bool:
    """Whether Keras would have to guess the config of a user's class."""
    functional = isinstance(layer, keras.Model) and hasattr(layer, "_functional")
    sequential = isinstance(layer, keras.Sequential) or hasattr(layer, "_nodes")
    own = (getattr(type(layer).get_config, "__module__", None) or "").partition(".")[0] != "keras"
    return not (_is_keras(type(layer)) or functional or sequential or own)


def _parts(layer: keras.Layer) -> dict[str, Any]:
    """The attributes that the user's class has given it, in the order in which Keras has met the layers in them."""
    plain = keras.Model() if isinstance(layer, keras.Model) else keras.Layer()
    modules = getattr(layer, "_modules", {})  # on the torch backend a layer is a module, and keeps its layers here
    own = {name: value for name, value in {**vars(layer), **modules}.items() if name not in vars(plain)}
    left_out = ("optimizer", "stop_training", "_torch_params", "_compiled_trainable_state", "_compile_config")
    kept = {n: v for n, v in own.items() if n not in left_out and not n.startswith("_self_")}
    builds = (getattr(type(layer).build, "__module__", None) or "").partition(".")[0] != "keras"
    kept = {n: _Weight.of(v) if isinstance(v, keras.Variable) else v for n, v in kept.items()}
    if builds:  # its weights are made there
        kept = {name: value for name, value in kept.items() if not isinstance(value, _Weight)}
    order = {id(one): place for place, one in enumerate(layer._layers)}
    return dict(sorted(kept.items(), key=lambda item: order.get(id(item[1]), -1)))


@dataclass(frozen=True)
class _Weight:
    """A variable that an ``__init__`` has made."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @classmethod
    def of(cls, variable: keras.Variable) -> _Weight:
        return cls(variable.name, tuple(variable.shape), variable.dtype, variable.trainable)

    def add_to(self, layer: keras.Layer) -> keras.Variable:
        return layer.add_weight(
            name=self.name, shape=self.shape, dtype=self.dtype, trainable=self.trainable, initializer="zeros"
        )


def serialized(value: Any) -> Config:
    """The config of a Keras object, such that every backend and the classes in it can take it."""
    config: Config = _portable(keras.saving.serialize_keras_object(value), custom_objects_of(value))
    return config


def _portable(config: Any, custom: CustomObjects) -> Any:
    if isinstance(config, (list, tuple)):
        return [_portable(one, custom) for one in config]
    if not isinstance(config, dict):
        return config
    config = {key: _portable(value, custom) for key, value in config.items()}
    if str(config.get("module")).startswith("keras.src.backend.") and "class_name" in config:
        return {**config, "module": "keras.optimizers", "registered_name": None}  # torch's own form of an optimizer
    kind = custom.get(config.get("registered_name") or config.get("class_name") or "")
    if isinstance(kind, type) and isinstance(config.get("config"), dict):
        config["config"] = _accepted(kind, config["config"])
    return config


def _accepted(kind: type, config: Config) -> Config:
    """A config that Keras has guessed, without what it adds to every layer's and this ``__init__`` does not take."""
    guesses = getattr(kind, "get_config", None)
    if (getattr(guesses, "__module__", None) or "").partition(".")[0] != "keras":
        return config
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return config
    added = ("name", "trainable", "dtype", "activity_regularizer")
    return {key: value for key, value in config.items() if key not in added or key in parameters}


def model_of(skeleton: Skeleton, custom_objects: CustomObjects, *, safe_mode: bool) -> keras.Layer:
    """A model or layer like the one that `skeleton_of` was given, with values of its own."""
    if skeleton.config is not None:
        made = keras.saving.deserialize_keras_object(
            skeleton.config, custom_objects=dict(custom_objects), safe_mode=safe_mode
        )
    else:
        made = _of_parts(skeleton)
    if skeleton.build_config and not made.built:
        made.build_from_config(skeleton.build_config)
        made.built = True  # as `keras.saving` does: a model that was built by a call does not say so
    for layer, trainable in zip(made._flatten_layers(), skeleton.trainable, strict=True):
        if layer.trainable != trainable:
            layer.trainable = trainable
    return made


def _of_parts(skeleton: Skeleton) -> keras.Layer:
    kind: Any = skeleton.kind
    made = kind.__new__(kind)
    base = keras.Model if issubclass(kind, keras.Model) else keras.Layer
    base.__init__(made, name=skeleton.name, dtype=keras.dtype_policies.deserialize(skeleton.dtype))
    for name, value in skeleton.parts.items():
        setattr(made, name, value.add_to(made) if isinstance(value, _Weight) else value)
    return made


def compiled_with(model: keras.Model) -> dict[str, Any] | None:
    """The keywords that `Model.compile` was given; None: it was not called."""
    kept = getattr(model, "_compile_config", None)
    return None if kept is None else dict(kept.config)


def values_of(variables: list[Any]) -> Values:
    """What is in variables, whole where they are spread over devices."""
    return [np.asarray(keras.ops.convert_to_numpy(one)) for one in variables]


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


def dumps(value: Any, *, weights: bool = True, compiled: bool = False) -> bytes:
    """A pickle in which Keras's objects are their configs and values, for `loads`.

    Parameters
    ----------
    value : object
    weights : bool, default True
        False: without the values of models.
    compiled : bool, default False
        True: models are compiled again with what they were compiled with, optimizer state included.

    Raises
    ------
    ParamError
        Where something in it can't be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, weights, compiled).dump(value)
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

    def __init__(self, buffer: io.BytesIO, weights: bool, compiled: bool) -> None:
        super().__init__(buffer)
        self._weights, self._compiled = weights, compiled
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
            values = values_of(obj.variables) if holds else None
            keywords = compiled_with(obj) if self._compiled and isinstance(obj, keras.Model) else None
            return (kind, number, skeleton_of(obj), values, custom_objects_of(obj), keywords)
        values = values_of(obj.variables) if kind == "optimizer" and obj.built else None
        return (kind, number, serialized(obj), values, custom_objects_of(obj), None)

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
    return "object" if hasattr(obj, "get_config") and _is_keras(type(obj)) else None


def _check_origin(config: Any, custom_objects: CustomObjects) -> None:
    """Refuse classes that are neither Keras's own nor admitted by the unpickler: old Kerases import what they read."""
    if isinstance(config, (list, tuple)):
        config = dict(enumerate(config))
    if not isinstance(config, dict):
        return
    package = str(config.get("module") or "builtins").partition(".")[0]
    names = config.get("registered_name"), config.get("class_name"), config.get("config")
    admitted = any(isinstance(name, str) and name in custom_objects for name in names)
    if "class_name" in config and not admitted and package not in ("keras", "builtins", "numpy"):
        raise ValueError(
            f"a config names {config['module']}.{config['class_name']}, which the file does not bring along"
        )
    for value in config.values():
        _check_origin(value, custom_objects)


class _Restore:
    """Resolves persistent ids; the same number gives the same object."""

    def __init__(self, safe_mode: bool) -> None:
        self._safe_mode = safe_mode
        self._made: dict[int, Any] = {}

    def __call__(self, pid: tuple[Any, ...]) -> Any:
        kind, number, content, values, custom_objects, compiled = pid
        if number not in self._made:
            made = self._made[number] = self._make(kind, content, values, custom_objects)
            if compiled is not None:
                keras.Model.compile(made, **compiled)
                if made.built and made.optimizer is not None:
                    with_values(made.optimizer, made.trainable_variables)
        return self._made[number]

    def _make(self, kind: str, content: Any, values: Values | None, custom_objects: CustomObjects) -> Any:
        if self._safe_mode:
            _check_origin(content.config if isinstance(content, Skeleton) else content, custom_objects)
        if kind == "layer":
            made = model_of(content, custom_objects, safe_mode=self._safe_mode)
            if values is not None:
                assign(made.variables, values, "model")
            return made
        made = keras.saving.deserialize_keras_object(
            content, custom_objects=dict(custom_objects), safe_mode=self._safe_mode
        )
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

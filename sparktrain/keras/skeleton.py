"""Keras models and layers without their values: what configs say, in a form that every backend reads.

Keras makes a subclass anew only from a config with all that its ``__init__`` takes, and few classes have one. Those
that leave ``get_config`` to Keras travel by their attributes instead, and their ``__init__`` does not run again.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from sparktrain.keras.lean import without_tensorflow

CustomObjects = Mapping[str, Any]
Config = dict[str, Any]


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
        if not is_keras(value):
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


def is_keras(value: Any) -> bool:
    """Whether a class or function is Keras's or Python's own."""
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
    return not (is_keras(type(layer)) or functional or sequential or own)


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
    with without_tensorflow():
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


def model_of(skeleton: Skeleton, *, safe_mode: bool) -> keras.Layer:
    """A model or layer like the one that `skeleton_of` was given, with values of its own; called in the scope of its
    custom objects."""
    if skeleton.config is not None:
        made = keras.saving.deserialize_keras_object(skeleton.config, safe_mode=safe_mode)
    else:
        made = _of_parts(skeleton)
    if skeleton.build_config and not made.built:
        made.build_from_config(skeleton.build_config)
        made.built = True  # as `keras.saving` does: a model that was built by a call does not say so
    if isinstance(made, keras.Model):  # few configs say it; `compile` scales losses by it
        made.dtype_policy = keras.dtype_policies.deserialize(skeleton.dtype)
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


def check_origin(config: Any, custom_objects: CustomObjects) -> None:
    """Refuse classes that are neither Keras's own nor admitted by the unpickler: old Kerases import what they read.

    Raises
    ------
    ValueError
        Names the class.
    """
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
        check_origin(value, custom_objects)

"""What a Keras model takes and gives: its inputs' names, shapes and structure, the order and meaning of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras

_PASSING = ("ActivityRegularization", "Dropout", "Flatten", "Identity", "InputLayer", "Reshape")
"""Layers that leave probabilities what they are."""


@dataclass(frozen=True)
class Takes:
    """The inputs of a model that knows them.

    Parameters
    ----------
    names : tuple of str
    shapes : tuple of tuple of (int or None)
        Of one row each.
    form : str
        How it is called: with one array, a list, or a dict by name.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    form: Literal["one", "list", "dict"]


def takes(model: keras.Model) -> Takes | None:
    """The inputs of a functional model, or a Sequential one that is built; None: a model that does not tell."""
    if getattr(model, "inputs", None) is None:
        return None
    struct = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    form: Literal["one", "list", "dict"] = "one"
    if isinstance(struct, Mapping):
        form, names, tensors = "dict", list(struct), list(struct.values())
    else:
        form = "list" if isinstance(struct, (list, tuple)) else "one"
        tensors = list(struct) if form == "list" else [struct]
        names = [getattr(one, "name", "") for one in tensors]
    if not all(isinstance(one, keras.KerasTensor) for one in tensors):
        return None  # nested
    return Takes(tuple(names), tuple(tuple(one.shape[1:]) for one in tensors), form)


def structured(model: keras.Model, values: Sequence[Any], names: Sequence[str] | None) -> Any:
    """Inputs in the structure with which `model` is called.

    Parameters
    ----------
    model : Model
    values : sequence of arrays
    names : sequence of str or None
        Of each of them; None: by position.
    """
    expected = takes(model)
    if expected is not None:
        values, names = _without_masks(values, names, expected)
    if names is not None:
        by_name = dict(zip(names, values, strict=True))
        if expected is None or expected.form == "dict" or set(expected.names) != set(by_name):
            return by_name
        values = [by_name[name] for name in expected.names]
    elif expected is not None and expected.form == "dict" and len(values) == 1:
        return {expected.names[0]: values[0]}
    as_list = len(values) > 1 if expected is None else expected.form == "list"
    return list(values) if as_list or len(values) != 1 else values[0]


def _without_masks(
    values: Sequence[Any], names: Sequence[str] | None, expected: Takes
) -> tuple[Sequence[Any], Sequence[str] | None]:
    """Leave out the masks of padded inputs that a model does not take: an Embedding finds zeros itself."""
    if names is not None:
        kept = [(n, v) for n, v in zip(names, values, strict=True) if n in expected.names or not n.endswith("_mask")]
        return [value for _, value in kept], [name for name, _ in kept]
    if len(values) > len(expected.names):
        return [value for value in values if str(value.dtype) not in ("bool", "torch.bool")], None
    return values, None


def listed(result: Any, names: Sequence[str] | None) -> list[Any]:
    """What a model gave, as a list: of a dict, what is under `names`, in their order."""
    if isinstance(result, Mapping):
        return [result[name] for name in (names or result)]
    return list(result) if isinstance(result, (list, tuple)) else [result]


def output_names(model: keras.Model, result: Any) -> tuple[str, ...] | None:
    """The keys of a dict of outputs, in the model's order where it has one; None: outputs have no names."""
    if not isinstance(result, Mapping):
        return None
    declared = tuple(getattr(model, "output_names", None) or ())
    return declared if set(declared) == set(result) else tuple(result)


def outputs_kind(model: keras.Model, loss: Any = None) -> Literal["logits", "probabilities"] | None:
    """What the output is: by the last activation, else by what the loss takes; None: neither tells.

    Parameters
    ----------
    model : Model
    loss : object
        As ``Model.compile`` takes it; None: that of `model`, if it is compiled.
    """
    if _last_activation(model) in ("softmax", "sigmoid"):
        return "probabilities"
    from_logits = _from_logits(getattr(model, "loss", None) if loss is None else loss)
    if from_logits is None:
        return None
    return "logits" if from_logits else "probabilities"


def _last_activation(operation: Any) -> str | None:
    """The name of the function that an operation's (a layer's, a model's) result went through last."""
    if isinstance(operation, keras.Sequential):
        last = next((layer for layer in reversed(operation.layers) if type(layer).__name__ not in _PASSING), None)
        return None if last is None else _last_activation(last)
    if isinstance(operation, keras.Model):
        outputs = getattr(operation, "outputs", None)
        return _activation_of(outputs[0]) if outputs else None
    if hasattr(operation, "activation"):
        return getattr(operation.activation, "__name__", None)
    return type(operation).__name__.lower()  # keras.layers.Softmax, keras.ops.sigmoid


def _activation_of(tensor: Any) -> str | None:
    history = tensor._keras_history
    if type(history.operation).__name__ in _PASSING and history.operation._inbound_nodes:
        inputs = history.operation._inbound_nodes[history.node_index].input_tensors
        return _activation_of(inputs[0]) if inputs else None
    return _last_activation(history.operation)


def _from_logits(loss: Any) -> bool | None:
    if isinstance(loss, Mapping):
        loss = list(loss.values())
    if isinstance(loss, (list, tuple)):
        return _from_logits(loss[0]) if len(loss) == 1 else None
    if isinstance(loss, keras.losses.Loss):
        found = loss.get_config().get("from_logits")
        return None if found is None else bool(found)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    return False if "crossentropy" in name.lower().replace("_", "") else None

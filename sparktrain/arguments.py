"""What a model is called with, on the way from a shard or an Arrow batch through the user's transform_batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sparktrain.errors import ParamError
from sparktrain.shards.tensors import TensorSpec

TransformBatch = Callable[[Any, Any, bool], tuple[Any, Any]]


@dataclass(frozen=True)
class Arguments:
    """Inputs of a batch.

    Parameters
    ----------
    values : list of tensors or arrays, each of shape (batch, …)
    names : tuple of str or None
        The arguments or inputs of the model they are for; None: by position.
    """

    values: list[Any]
    names: tuple[str, ...] | None = None

    def call(self, model: Callable[..., Any]) -> Any:
        """As a PyTorch module takes them."""
        if self.names is None:
            return model(*self.values)
        return model(**dict(zip(self.names, self.values, strict=True)))


def argument_names(specs: Iterable[TensorSpec]) -> tuple[str, ...] | None:
    """The arguments that these inputs fill, each padded one's mask behind it; None: by position."""
    names: list[str] = []
    for spec in specs:
        if spec.argument is None:
            return None
        names += [spec.argument] if spec.pad is None else [spec.argument, f"{spec.argument}_mask"]
    return tuple(names)


def transformed(
    transform_batch: TransformBatch | None, inputs: Arguments, labels: list[Any] | None, *, training: bool
) -> tuple[Arguments, list[Any] | None]:
    """Inputs and labels after the user's ``transform_batch(inputs, labels, training)``.

    A single input or label is given, and given back, as a tensor, several as a list; inputs by name are a
    dict, whose keys may change. Without labels (inference) they are None.

    Raises
    ------
    ParamError
        Where it gives back something else than (inputs, labels), or another number of rows.
    """
    if transform_batch is None:
        return inputs, labels
    label = labels[0] if labels is not None and len(labels) == 1 else labels
    result = transform_batch(_as_given(inputs), label, training)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ParamError(f"transform_batch: expected it to return (inputs, labels), got {type(result).__name__}")
    new_inputs, new_labels = result
    arguments = _arguments(new_inputs, inputs.names is not None)
    rows = len(inputs.values[0])
    _check_rows(rows, arguments.values, "inputs")
    if labels is None:
        return arguments, None
    new_labels = None if new_labels is None else _as_list(new_labels)
    if new_labels is None or len(new_labels) != len(labels):
        raise ParamError(f"transform_batch: expected it to return {len(labels)} labels, got None or another number")
    _check_rows(rows, new_labels, "labels")
    return arguments, new_labels


def _check_rows(rows: int, values: list[Any], what: str) -> None:
    """A row must stay a row: others would be paired with labels, weights and predictions that aren't theirs."""
    for one in values:
        shape = tuple(getattr(one, "shape", (rows,)))
        if shape[:1] != (rows,):
            raise ParamError(
                f"transform_batch: it was given {rows} rows, and its {what} have shape {shape}; a single input or "
                "label is given as it is, several are a list"
            )


def _as_given(inputs: Arguments) -> Any:
    if inputs.names is not None:
        return dict(zip(inputs.names, inputs.values, strict=True))
    return inputs.values[0] if len(inputs.values) == 1 else inputs.values


def _arguments(inputs: Any, by_name: bool) -> Arguments:
    if by_name != isinstance(inputs, dict) or inputs is None:
        expected = "a dict by argument" if by_name else "a tensor or a list of them"
        raise ParamError(f"transform_batch: expected inputs to be {expected}, got {type(inputs).__name__}")
    if by_name:
        return Arguments(list(inputs.values()), tuple(inputs))
    return Arguments(_as_list(inputs))


def _as_list(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]

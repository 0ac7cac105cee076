"""Driver: which columns make which input of a module, against the signature of its ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType
from torch import nn

from sparktrain.arguments import argument_names
from sparktrain.errors import ColumnError
from sparktrain.shards.columns import kind_of
from sparktrain.shards.tensors import TensorSpec

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def join_scalars(model: nn.Module, groups: Any, schema: StructType) -> Any:
    """Several scalar columns for a model that takes one input are that input's columns, joined.

    Raises
    ------
    ColumnError
        Where the model takes one input and the columns can't be joined by this rule.
    """
    if isinstance(groups, Mapping) or len(groups) == 1 or not _takes_one_input(model):
        return groups
    types = {field.name: field.dataType for field in schema.fields}
    kinds = [kind_of(types[name]) if name in types else None for name in groups if isinstance(name, str)]
    if None in kinds:
        return groups  # a column that is missing or of an unsupported type: the planner says which
    if any(kind != "number" for kind in kinds):
        raise ColumnError(
            f"feature_cols names {len(groups)} inputs, but {type(model).__name__}.forward takes one; nest "
            f"the names in a list to join them ([[{', '.join(map(repr, groups))}]]), or use VectorAssembler"
        )
    if all(isinstance(name, str) for name in groups):
        return [groups]
    return groups


def check_signature(model: nn.Module, inputs: Sequence[TensorSpec], *, transforms: bool) -> None:
    """The inputs must be ones that ``forward`` takes.

    Parameters
    ----------
    model : Module
    inputs : sequence of TensorSpec
    transforms : bool
        A transform_batch may still change them: then only the order is looked at.

    Raises
    ------
    ColumnError
        For too many or too few inputs, unknown arguments, or columns that bear the names of arguments in
        another order than forward's.
    """
    parameters = _parameters(model)
    if parameters is None:
        return
    names = argument_names(inputs)
    if names is None:
        _check_order(model, inputs, parameters)
        if not transforms:
            _check_count(model, inputs, parameters)
    elif not transforms:
        _check_names(model, names, parameters)


def _check_order(model: nn.Module, inputs: Sequence[TensorSpec], parameters: list[inspect.Parameter]) -> None:
    """``feature_cols=["mask", "ids"]`` for ``forward(ids, mask)`` would feed each into the other's place."""
    known = [p.name for p in parameters]
    given = [spec.name for spec in inputs]
    if len(given) > 1 and set(given) <= set(known) and given != sorted(given, key=known.index):
        by_name = ", ".join(f"{name!r}: {name!r}" for name in given)
        raise ColumnError(
            f"feature_cols {given} are named like arguments of {_forward(model, parameters)}, in another order: give "
            f"them in its order, or by name: {{{by_name}}}"
        )


def _check_count(model: nn.Module, inputs: Sequence[TensorSpec], parameters: list[inspect.Parameter]) -> None:
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = sum(p.default is inspect.Parameter.empty for p in positional)
    many = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    given = [name for spec in inputs for name in (spec.name, *([f"{spec.name} mask"] if spec.pad else []))]
    if len(given) < required or (len(given) > len(positional) and not many):
        raise ColumnError(
            f"feature_cols{' and pad' if any(spec.pad for spec in inputs) else ''} give {len(given)} inputs "
            f"({', '.join(given)}), which {_forward(model, parameters)} doesn't take; nest names in a list to join "
            "them into one input, give a dict by argument, or let transform_batch leave some out"
        )


def _check_names(model: nn.Module, names: Sequence[str], parameters: list[inspect.Parameter]) -> None:
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    known = {p.name for p in parameters if p.kind in _NAMED}
    unknown = [name for name in names if name not in known]
    if unknown and not any_name:
        raise ColumnError(
            f"feature_cols: {_forward(model, parameters)} has no argument {unknown[0]!r}; for the mask of a padded "
            "input it is <argument>_mask, and transform_batch can rename it"
        )
    kinds = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    missing = [
        p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty and p.name not in names
    ]
    if missing:
        raise ColumnError(f"feature_cols: no column for argument {missing[0]!r} of {_forward(model, parameters)}")


def _forward(model: nn.Module, parameters: list[inspect.Parameter]) -> str:
    return f"{type(model).__name__}.forward({', '.join(str(p.name) for p in parameters)})"


def _parameters(model: nn.Module) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):  # compiled modules have none
        return None


def _takes_one_input(model: nn.Module) -> bool:
    parameters = _parameters(model)
    if parameters is None or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False
    return sum(p.kind in _POSITIONAL for p in parameters) == 1

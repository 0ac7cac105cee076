"""Which columns make which input of a module."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.types import StructType
from torch import nn

from sparktrain.errors import ColumnError
from sparktrain.shards.columns import kind_of


def join_scalars(model: nn.Module, groups: list[Any], schema: StructType) -> list[Any]:
    """Several scalar columns for a model that takes one input are that input's columns, joined.

    Raises
    ------
    ColumnError
        Where the model takes one input and the columns can't be joined by this rule.
    """
    if len(groups) == 1 or not _takes_one_input(model):
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


def _takes_one_input(model: nn.Module) -> bool:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional for p in parameters) == 1

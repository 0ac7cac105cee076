"""Driver: which columns make which input of a Keras model, against the inputs that the model declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import keras
from pyspark.sql.types import StructType

from sparktrain.arguments import argument_names
from sparktrain.errors import ColumnError
from sparktrain.keras.signature import Takes, takes
from sparktrain.shards.columns import kind_of
from sparktrain.shards.tensors import TensorSpec


def join_scalars(model: keras.Model, groups: Any, schema: StructType) -> Any:
    """Several scalar columns for a model that takes one input are that input's columns, joined.

    A model that does not tell its inputs (a subclass) is taken for one of one input where all columns are scalars.

    Raises
    ------
    ColumnError
        Where the model takes one input and the columns can't be joined by this rule.
    """
    expected = takes(model)
    if isinstance(groups, Mapping) or len(groups) == 1 or (expected is not None and len(expected.names) != 1):
        return groups
    types = {field.name: field.dataType for field in schema.fields}
    kinds = [kind_of(types[name]) if name in types else None for name in groups if isinstance(name, str)]
    if None in kinds:
        return groups  # a column that is missing or of an unsupported type: the planner says which
    if any(kind != "number" for kind in kinds):
        if expected is None:
            return groups
        raise ColumnError(
            f"feature_cols names {len(groups)} inputs, but {_describe(model, expected)}; nest the names in a list to "
            f"join them ([[{', '.join(map(repr, groups))}]]), or use VectorAssembler"
        )
    return [groups] if all(isinstance(name, str) for name in groups) else groups


def check_inputs(model: keras.Model, inputs: Sequence[TensorSpec], *, transforms: bool) -> None:
    """The inputs must be ones that the model takes, as far as it tells.

    Parameters
    ----------
    model : Model
    inputs : sequence of TensorSpec
    transforms : bool
        A transform_batch may still change them: then only the order is looked at.

    Raises
    ------
    ColumnError
        For too many or too few inputs, unknown names, rows of another size, or columns that bear the names of
        inputs in another order than the model's.
    """
    expected = takes(model)
    if expected is None:
        return
    names = argument_names(inputs)
    if names is None:
        _check_order(model, inputs, expected)
    if transforms:
        return
    if names is None:
        _check_count(model, inputs, expected)
    else:
        _check_names(model, names, expected)
    for spec, shape in _paired(inputs, expected):
        if spec.shape is not None and None not in shape and prod(spec.shape) != prod(_sizes(shape)):
            raise ColumnError(
                f"feature_cols: {spec.name!r} gives rows of shape {spec.shape}, but {_describe(model, expected)}"
            )


def shaped(model: keras.Model, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The inputs with the shapes that the model declares, where neither schema nor user has told."""
    expected = takes(model)
    told = {} if expected is None else {id(spec): shape for spec, shape in _paired(inputs, expected)}
    specs = []
    for spec in inputs:
        shape = told.get(id(spec))
        numbers = all(column.kind == "number" for column in spec.columns)
        if shape is None or None in shape or spec.declared or not (spec.shape is None or numbers):
            specs.append(spec)
        else:
            specs.append(replace(spec, shape=_sizes(shape)))
    return specs


def _paired(inputs: Sequence[TensorSpec], expected: Takes) -> Iterator[tuple[TensorSpec, tuple[int | None, ...]]]:
    """Each input that is not padded, with the shape of one row that the model declares."""
    by_name = dict(zip(expected.names, expected.shapes, strict=True))
    position = 0
    for spec in inputs:
        if spec.argument is not None:
            shape = by_name.get(spec.argument)
        else:
            shape = expected.shapes[position] if position < len(expected.shapes) else None
        if shape is not None and spec.pad is None:
            yield spec, shape
        position += 2 if spec.pad is not None and len(expected.names) > len(inputs) else 1


def _check_order(model: keras.Model, inputs: Sequence[TensorSpec], expected: Takes) -> None:
    given, known = [spec.name for spec in inputs], list(expected.names)
    misplaced = set(given) <= set(known) and given != sorted(given, key=known.index)
    if len(given) > 1 and (misplaced or expected.form == "dict"):
        by_name = ", ".join(f"{name!r}: …" for name in known)
        what = "are named like its inputs, in another order" if misplaced else "come without names"
        raise ColumnError(
            f"feature_cols {given} {what}: {_describe(model, expected)}; give a dict of columns by input: {{{by_name}}}"
        )


def _check_count(model: keras.Model, inputs: Sequence[TensorSpec], expected: Takes) -> None:
    given = [name for spec in inputs for name in (spec.name, *([f"{spec.name} mask"] if spec.pad else []))]
    if len(expected.names) not in (len(given), len(inputs)):  # masks may be left out
        raise ColumnError(
            f"feature_cols{' and pad' if any(spec.pad for spec in inputs) else ''} give {len(given)} inputs "
            f"({', '.join(given)}), but {_describe(model, expected)}; nest names in a list to join them into one "
            "input, give a dict by input, or let transform_batch leave some out"
        )


def _check_names(model: keras.Model, names: Sequence[str], expected: Takes) -> None:
    unknown = [name for name in names if name not in expected.names and not name.endswith("_mask")]
    missing = [name for name in expected.names if name not in names]
    if unknown:
        raise ColumnError(
            f"feature_cols: there is no input {unknown[0]!r}: {_describe(model, expected)}; for the mask of a padded "
            "input it is <input>_mask, and transform_batch can rename it"
        )
    if missing:
        raise ColumnError(f"feature_cols: no column for input {missing[0]!r}: {_describe(model, expected)}")


def _describe(model: keras.Model, expected: Takes) -> str:
    """``model 'functional' takes 2 inputs: item (), context (3,)``."""
    parts = [f"{name} {shape}" for name, shape in zip(expected.names, expected.shapes, strict=True)]
    return f"model {model.name!r} takes {len(parts)} input{'s' if len(parts) > 1 else ''}: {', '.join(parts)}"


def _sizes(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size is not None)

"""What a module that was not fitted here takes and gives: from one row's shapes and one forward pass on zeros."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from pyspark.sql import DataFrame
from torch import Tensor, nn

from sparktrain.errors import DataError, ParamError
from sparktrain.shards.arrow import Faults
from sparktrain.shards.assemble import assemble
from sparktrain.shards.columns import ColumnPlan, quoted
from sparktrain.shards.tensors import TensorSpec
from sparktrain.torch.arguments import Arguments, TransformBatch, argument_names, transformed
from sparktrain.torch.loss import as_outputs

Outputs = tuple[tuple[str, tuple[int, ...]], ...]


def input_shapes(plan: ColumnPlan, dataset: DataFrame) -> tuple[tuple[int, ...], ...]:
    """The shape of one row of each input: as declared, else as the first row has it (a Spark job).

    Raises
    ------
    ParamError
        For a stream, or a DataFrame without rows, where the schema does not tell.
    """
    specs = plan.specs("input")
    unknown = [spec.name for spec in specs if spec.shape is None]
    if not unknown:
        return tuple(spec.shape or () for spec in specs)
    rows = []
    if not dataset.isStreaming:
        first = dataset.select(*[quoted(name).alias(f"c{i}") for i, name in enumerate(plan.names)]).limit(1)
        rows = first.mapInArrow(partial(_shapes, specs), "shapes string").collect()
    if not rows:
        what = "a streaming" if dataset.isStreaming else "an empty"
        raise ParamError(
            f"feature_shapes: {what} DataFrame doesn't tell the shape of column {unknown[0]!r}, "
            "which a model that was not fitted needs; for example "
            f"feature_shapes={{{unknown[0]!r}: (20,)}}"
        )
    return tuple(tuple(shape) for shape in json.loads(rows[0]["shapes"]))


def _shapes(specs: Sequence[TensorSpec], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            faults = Faults()
            rows = [assemble(spec, batch.columns, faults) for spec in specs]
            if faults:
                raise DataError(f"transform: {faults} (in the first row)")
            shapes = [one.shape[1:] for one in rows if one is not None]
            yield pa.RecordBatch.from_arrays([pa.array([json.dumps(shapes)])], names=["shapes"])


def outputs(model: nn.Module, specs: Sequence[TensorSpec], transform_batch: TransformBatch | None) -> Outputs:
    """Dtype and row shape of each output, from a forward pass on one row of zeros.

    Raises
    ------
    ParamError
        Where the model fails on it.
    """
    given = Arguments([tensor for spec in specs for tensor in _zeros(spec)], argument_names(specs))
    try:
        with _evaluating(model), torch.inference_mode():
            batch, _ = transformed(transform_batch, given, None, training=False)
            found = as_outputs(batch.call(model), labels=0)
    except Exception as error:
        shapes = ", ".join(spec.describe() for spec in specs)
        raise ParamError(f"model: it failed on one row of zeros ({shapes}): {type(error).__name__}: {error}") from error
    return tuple((str(one.dtype).removeprefix("torch."), tuple(one.shape[1:])) for one in found)


def _zeros(spec: TensorSpec) -> list[Tensor]:
    dtype: Any = getattr(torch, spec.dtype)
    if spec.pad is None:
        return [torch.zeros(1, *(spec.shape or ()), dtype=dtype)]
    length = 1 if spec.pad == "longest" else spec.pad
    return [torch.zeros(1, length, *(spec.shape or ()), dtype=dtype), torch.ones(1, length, dtype=torch.bool)]


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for a while: the module is the user's."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

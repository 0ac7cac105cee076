"""What a module that was not fitted here gives: from one forward pass on zeros."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparktrain.arguments import Arguments, TransformBatch, argument_names, transformed
from sparktrain.errors import ParamError
from sparktrain.network import Outputs
from sparktrain.shards.tensors import TensorSpec
from sparktrain.torch.loss import as_outputs


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

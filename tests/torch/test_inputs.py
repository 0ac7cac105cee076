"""Which columns make which input of a module."""

from __future__ import annotations

import pytest
import torch
from pyspark.sql import types as T
from torch import nn

from sparktrain.errors import ColumnError
from sparktrain.shards.tensors import Pad, TensorSpec
from sparktrain.torch.inputs import check_signature, join_scalars

SCHEMA = T.StructType(
    [
        T.StructField("a", T.DoubleType()),
        T.StructField("b", T.IntegerType()),
        T.StructField("array", T.ArrayType(T.FloatType())),
        T.StructField("text", T.StringType()),
    ]
)


class Two(nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


def test_scalars_for_a_model_of_one_input_are_joined() -> None:
    assert join_scalars(nn.Linear(2, 1), ["a", "b"], SCHEMA) == [["a", "b"]]


def test_a_model_of_several_inputs_gets_them_one_by_one() -> None:
    assert join_scalars(Two(), ["a", "b"], SCHEMA) == ["a", "b"]


def test_nested_names_stay_as_they_are() -> None:
    assert join_scalars(Two(), [["a", "b"], "array"], SCHEMA) == [["a", "b"], "array"]


def test_an_array_among_scalars_must_be_joined_by_the_user() -> None:
    with pytest.raises(ColumnError, match=r"names 2 inputs, but Linear\.forward takes one; nest the names"):
        join_scalars(nn.Linear(2, 1), ["a", "array"], SCHEMA)


@pytest.mark.parametrize("other", ["text", "missing"])
def test_a_column_that_can_not_be_read_is_left_to_the_planner(other: str) -> None:
    assert join_scalars(nn.Linear(2, 1), ["a", other], SCHEMA) == ["a", other]


def test_columns_by_argument_stay_as_they_are() -> None:
    groups = {"input": ["a", "b"]}
    assert join_scalars(nn.Linear(2, 1), groups, SCHEMA) is groups


# Against forward's signature


class Masked(nn.Module):
    def forward(self, ids: torch.Tensor, ids_mask: torch.Tensor, age: torch.Tensor | None = None) -> torch.Tensor:
        return ids


class AnyName(nn.Module):
    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return inputs["ids"]


def inputs(*names: str, pad: Pad | None = None) -> list[TensorSpec]:
    """Inputs by position, the first padded."""
    return [TensorSpec(n, "input", (), "float32", (1,), pad=None if i else pad) for i, n in enumerate(names)]


def by_name(*names: str, pad: Pad | None = None) -> list[TensorSpec]:
    return [
        TensorSpec("column", "input", (), "float32", (1,), pad=None if i else pad, argument=n)
        for i, n in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Two(), inputs("x", "y")),
        (Two(), inputs("x", pad=3)),
        (Masked(), inputs("x", "y", pad="longest")),
        (Masked(), inputs("x", pad="longest")),
        (Masked(), by_name("ids", "age", pad=2)),
        (AnyName(), by_name("ids", "more", pad=2)),
        (nn.Sequential(nn.Linear(1, 1)), inputs("x")),
    ],
)
def test_what_forward_takes(model: nn.Module, given: list[TensorSpec]) -> None:
    check_signature(model, given, transforms=False)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Two(), inputs("x"), r"give 1 inputs \(x\), which Two.forward\(first, second\) doesn't take"),
        (nn.Linear(1, 1), inputs("x", pad=2), r"feature_cols and pad give 2 inputs \(x, x mask\)"),
        (Masked(), by_name("ids"), "no column for argument 'ids_mask' of Masked.forward"),
        (Masked(), by_name("ids", "aeg", pad=2), "has no argument 'aeg'"),
    ],
)
def test_what_forward_does_not_take_unless_transform_batch_changes_it(
    model: nn.Module, given: list[TensorSpec], message: str
) -> None:
    with pytest.raises(ColumnError, match=message):
        check_signature(model, given, transforms=False)
    check_signature(model, given, transforms=True)


def test_arguments_in_another_order_are_noticed() -> None:
    with pytest.raises(ColumnError, match=r"in another order: .* \{'second': 'second', 'first': 'first'\}"):
        check_signature(Two(), inputs("second", "first"), transforms=True)
    check_signature(Two(), inputs("first", "second"), transforms=True)

"""Which columns make which input of a module."""

from __future__ import annotations

import pytest
import torch
from pyspark.sql import types as T
from torch import nn

from sparktrain.errors import ColumnError
from sparktrain.torch.inputs import join_scalars

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

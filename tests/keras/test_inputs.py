"""Columns against the inputs that a Keras model declares."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from pyspark.sql import types as T

from sparktrain.errors import ColumnError
from sparktrain.keras.inputs import check_inputs, join_scalars, shaped
from sparktrain.keras.signature import structured
from sparktrain.shards.columns import ColumnPlanner
from sparktrain.shards.tensors import TensorSpec
from tests.keras import nets

SCHEMA = T.StructType(
    [
        *[T.StructField(name, T.FloatType()) for name in ("a", "b", "c", "d")],
        T.StructField("item", T.IntegerType()),
        T.StructField("context", T.ArrayType(T.FloatType())),
    ]
)
PAIR = nets.Pair(3)


def inputs(model: keras.Model, columns: object, **options: object) -> list[TensorSpec]:
    groups = join_scalars(model, columns, SCHEMA)
    return [spec for spec in ColumnPlanner(SCHEMA).inputs(groups, {}, {}, **options) if spec.role == "input"]


@pytest.mark.parametrize("model", [nets.dense(1), keras.Sequential([keras.layers.Dense(1)]), PAIR])
def test_scalars_are_joined_for_one_input(model: keras.Model) -> None:
    assert join_scalars(model, ["a", "b", "c", "d"], SCHEMA) == [["a", "b", "c", "d"]]
    assert join_scalars(model, [["a"], ["b"]], SCHEMA) == [["a"], ["b"]]


def test_what_is_not_joined() -> None:
    assert join_scalars(nets.towers(), ["item", "a"], SCHEMA) == ["item", "a"]
    assert join_scalars(PAIR, ["item", "context"], SCHEMA) == ["item", "context"], "a subclass may take a list"
    with pytest.raises(ColumnError, match=r"names 2 inputs, but model .* takes 1 input: .*; nest the names in a list"):
        join_scalars(nets.dense(1), ["item", "context"], SCHEMA)


def test_shapes_come_from_the_model() -> None:
    assert [spec.shape for spec in shaped(nets.towers(), inputs(nets.towers(), ["item", "context"]))] == [(), (3,)]
    column = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    assert shaped(column, inputs(column, ["item"]))[0].shape == (1,)
    unknown = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(3, 2)])
    assert shaped(unknown, inputs(unknown, ["context"]))[0].shape is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["context", "item"], "are named like its inputs, in another order"),
        (["item"], r"give 1 inputs \(item\), but model .* takes 2 inputs: item \(\), context \(3,\)"),
        ({"item": "item"}, "no column for input 'context'"),
        ({"item": "item", "context": "context", "more": "a"}, "there is no input 'more'"),
        ({"item": "item", "context": ["a", "b"]}, r"'a\+b' gives rows of shape \(2,\)"),
    ],
)
def test_columns_that_the_model_does_not_take(columns: object, message: str) -> None:
    net = nets.towers()
    with pytest.raises(ColumnError, match=message):
        check_inputs(net, inputs(net, columns), transforms=False)


def test_a_transform_batch_may_change_all_but_the_order() -> None:
    net = nets.towers()
    check_inputs(net, inputs(net, ["item"]), transforms=True)
    check_inputs(net, inputs(net, {"other": "item"}), transforms=True)
    with pytest.raises(ColumnError, match="another order"):
        check_inputs(net, inputs(net, ["context", "item"]), transforms=True)


def test_inputs_by_name_need_names() -> None:
    net = nets.towers("dict")
    with pytest.raises(ColumnError, match=r"come without names: .* give a dict of columns by input"):
        check_inputs(net, inputs(net, ["a", "b"]), transforms=False)


def test_a_padded_input_s_mask_goes_in_where_the_model_takes_it() -> None:
    net = nets.towers()
    check_inputs(net, inputs(net, ["context"], pad="longest"), transforms=False)
    check_inputs(net, inputs(net, ["item", "context"], pad="longest"), transforms=False)
    with pytest.raises(ColumnError, match=r"feature_cols and pad give 4 inputs \(item, item, context, context mask\)"):
        check_inputs(net, inputs(net, ["item", "item", "context"], pad="longest"), transforms=False)
    rows, mask = np.zeros((2, 3)), np.ones((2, 3), bool)
    assert structured(nets.dense(1), [rows, mask], None) is rows
    assert structured(net, [rows, mask], None)[1] is mask
    assert structured(nets.towers("dict"), [rows, rows, mask], ("item", "context", "context_mask")).keys() == {
        "item",
        "context",
    }


def test_the_structure_that_a_model_is_called_with() -> None:
    one, two = np.zeros((2, 1)), np.ones((2, 3))
    assert [part is given for part, given in zip(structured(nets.towers(), [one, two], None), (one, two), strict=True)]
    by_name = structured(nets.towers(), [two, one], ("context", "item"))
    assert by_name[0] is one
    assert by_name[1] is two
    assert structured(nets.towers("dict"), [one, two], ("item", "context")).keys() == {"item", "context"}
    assert structured(nets.dense(1), [two], None) is two
    assert structured(PAIR, [one, two], None)[1] is two
    listed = keras.Input((4,))
    assert structured(keras.Model([listed], keras.layers.Dense(1)(listed)), [two], None)[0] is two

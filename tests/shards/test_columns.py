"""The driver's plan: dtypes and shapes by the type of the column and what the loss takes."""

from typing import Any

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T

from sparktrain.errors import ColumnError
from sparktrain.shards.columns import ColumnPlanner, LabelKind
from sparktrain.shards.tensors import KEY, ColumnSpec, TensorSpec

SCHEMA = T.StructType(
    [
        T.StructField("byte", T.ByteType()),
        T.StructField("id", T.LongType()),
        T.StructField("price", T.DoubleType()),
        T.StructField("ratio", T.FloatType()),
        T.StructField("cents", T.DecimalType(10, 2)),
        T.StructField("flag", T.BooleanType()),
        T.StructField("vector", VectorUDT()),
        T.StructField("reals", T.ArrayType(T.FloatType())),
        T.StructField("tokens", T.ArrayType(T.IntegerType())),
        T.StructField("flags", T.ArrayType(T.BooleanType())),
        T.StructField("grid", T.ArrayType(T.ArrayType(T.DoubleType()))),
        T.StructField("image", T.BinaryType()),
        T.StructField("name", T.StringType()),
        T.StructField("day", T.DateType()),
        T.StructField("names", T.ArrayType(T.StringType())),
        T.StructField("pair", T.StructType([T.StructField("a", T.LongType())])),
        T.StructField("dotted.name", T.DoubleType()),
    ]
)


def one_input(*names: str, dtypes: dict[str, str] | None = None, shapes: dict[str, Any] | None = None) -> TensorSpec:
    group = names[0] if len(names) == 1 else list(names)
    (spec,) = ColumnPlanner(SCHEMA).inputs([group], dtypes or {}, shapes or {})
    return spec


def refused(*names: str, **more: Any) -> str:
    with pytest.raises(ColumnError) as caught:
        one_input(*names, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "shape"),
    [
        ("id", "number", "int64", ()),
        ("byte", "number", "int64", ()),
        ("price", "number", "float32", (1,)),
        ("ratio", "number", "float32", (1,)),
        ("cents", "number", "float32", (1,)),
        ("flag", "number", "float32", (1,)),
        ("dotted.name", "number", "float32", (1,)),
        ("vector", "vector", "float32", None),
        ("reals", "list", "float32", None),
        ("tokens", "list", "int64", None),
        ("flags", "list", "float32", None),
        ("grid", "list", "float32", None),
    ],
)
def test_an_input_of_its_own(name: str, kind: Any, dtype: str, shape: tuple[int, ...] | None) -> None:
    assert one_input(name) == TensorSpec(name, "input", (ColumnSpec(name, 0, kind),), dtype, shape)


@pytest.mark.parametrize("names", [("price", "ratio"), ("price", "id", "flag"), ("id", "byte")])
def test_joined_scalars_are_one_float32_row(names: tuple[str, ...]) -> None:
    spec = one_input(*names)
    assert (spec.dtype, spec.shape, spec.name) == ("float32", (len(names),), "+".join(names))
    assert [(column.name, column.field) for column in spec.columns] == [(name, i) for i, name in enumerate(names)]


def test_joined_with_arrays_the_data_tells_the_shape() -> None:
    spec = one_input("price", "vector", "tokens")
    assert (spec.dtype, spec.shape) == ("float32", None)
    assert [column.kind for column in spec.columns] == ["number", "vector", "list"]


def test_feature_dtypes_override() -> None:
    assert one_input("price", dtypes={"price": "float64"}).dtype == "float64"
    assert one_input("id", dtypes={"id": "float32"}).dtype == "float32"
    assert one_input("id", "byte", dtypes={"id": "int64", "byte": "int64"}).dtype == "int64"


def test_feature_shapes_override() -> None:
    spec = one_input("reals", shapes={"reals": (2, 3)})
    assert (spec.shape, spec.declared) == ((2, 3), True)


def test_a_binary_column_is_what_the_user_declares() -> None:
    spec = one_input("image", dtypes={"image": "uint8"}, shapes={"image": (1, 28, 28)})
    column = ColumnSpec("image", 0, "binary", "uint8")
    assert spec == TensorSpec("image", "input", (column,), "uint8", (1, 28, 28), declared=True)


@pytest.mark.parametrize("more", [{}, {"dtypes": {"image": "uint8"}}, {"shapes": {"image": (784,)}}])
def test_a_binary_column_needs_dtype_and_shape(more: dict[str, Any]) -> None:
    message = refused("image", **more)
    assert "'image' needs its dtype and shape declared" in message
    assert "feature_dtypes={'image': 'uint8'}" in message


@pytest.mark.parametrize("names", [("image", "price"), ("price", "image")])
def test_a_binary_column_can_not_be_joined(names: tuple[str, ...]) -> None:
    assert "binary column 'image' must be an input of its own" in refused(*names, dtypes={"image": "uint8"})


def test_joined_columns_have_one_dtype_and_no_shape_of_their_own() -> None:
    assert "have dtypes ['float32', 'int64']" in refused("id", "price", dtypes={"id": "int64"})
    assert "'reals' is joined with other columns" in refused("reals", "price", shapes={"reals": (2, 2)})


@pytest.mark.parametrize("keyword", ["feature_dtypes", "feature_shapes"])
def test_settings_for_a_column_that_is_no_feature(keyword: str) -> None:
    settings: dict[str, Any] = {keyword.removeprefix("feature_"): {"prise": "float32"}}
    assert f"{keyword} names 'prise', which is not one of feature_cols ['price']" in refused("price", **settings)


def test_a_missing_column_names_the_nearest() -> None:
    message = refused("prise")
    assert message.startswith("feature_cols: the DataFrame has no column 'prise'; did you mean 'price'?")


def test_a_missing_column_like_no_other_lists_what_there_is() -> None:
    assert "it has 'byte', 'id', 'price'" in refused("zzzzzz")


@pytest.mark.parametrize(
    ("name", "described"),
    [("name", "string"), ("day", "date"), ("names", "array<string>"), ("pair", "struct<a:bigint>")],
)
def test_what_no_tensor_takes(name: str, described: str) -> None:
    for names in ((name,), ("price", name)):
        message = refused(*names)
        assert f"column {name!r} is {described}; expected numeric, boolean, array of those, vector or binary" in message
        assert "StringIndexer" in message


def test_a_name_that_two_columns_have() -> None:
    doubled = T.StructType([*SCHEMA.fields, T.StructField("price", T.LongType())])
    with pytest.raises(ColumnError, match="more than one column 'price'; rename or drop one"):
        ColumnPlanner(doubled).inputs(["price"], {}, {})
    assert ColumnPlanner(doubled).inputs(["id"], {}, {}), "as long as it is not used, it does not matter"


# Labels, weights, validation


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "shape"),
    [
        ("id", "class", "int64", ()),
        ("price", "class", "int64", ()),
        ("flag", "class", "int64", ()),
        ("tokens", "class", "int64", None),
        ("reals", "class", "float32", None),
        ("vector", "class", "float32", None),
        ("id", "float", "float32", ()),
        ("price", "float", "float32", ()),
        ("flag", "float", "float32", ()),
        ("tokens", "float", "float32", None),
        ("vector", "float", "float32", None),
        ("id", "as_is", "int64", ()),
        ("price", "as_is", "float32", ()),
        ("cents", "as_is", "float32", ()),
        ("tokens", "as_is", "int64", None),
        ("grid", "as_is", "float32", None),
    ],
)
def test_the_label_s_dtype_follows_the_loss(name: str, kind: LabelKind, dtype: str, shape: Any) -> None:
    spec = ColumnPlanner(SCHEMA).label(name, kind)
    assert (spec.role, spec.dtype, spec.shape) == ("label", dtype, shape)
    assert spec.integral == (dtype == "int64"), "only whole numbers become class ids"


@pytest.mark.parametrize(("dtype", "integral"), [("float64", False), ("int32", True)])
def test_label_dtype_overrides(dtype: str, integral: bool) -> None:
    spec = ColumnPlanner(SCHEMA).label("price", "class", dtype)
    assert (spec.dtype, spec.integral) == (dtype, integral)


@pytest.mark.parametrize("name", ["image", "name"])
def test_labels_no_loss_takes(name: str) -> None:
    with pytest.raises(ColumnError, match=f"label_cols: column '{name}' is "):
        ColumnPlanner(SCHEMA).label(name, "class")


def test_a_weight_is_a_number() -> None:
    spec = ColumnPlanner(SCHEMA).weight("id")
    assert (spec.role, spec.dtype, spec.shape) == ("weight", "float32", ())
    with pytest.raises(ColumnError, match=r"sample_weight_col: 'reals' is array<float>; a weight is a number"):
        ColumnPlanner(SCHEMA).weight("reals")


def test_a_validation_column_is_boolean() -> None:
    spec = ColumnPlanner(SCHEMA).validation("flag")
    assert (spec.role, spec.dtype, spec.shape) == ("validation", "bool", ())
    with pytest.raises(ColumnError, match="validation: column 'id' is bigint; a validation column is boolean"):
        ColumnPlanner(SCHEMA).validation("id")


@pytest.mark.parametrize(
    ("method", "arguments", "keyword"),
    [("label", ("as_is",), "label_cols"), ("weight", (), "sample_weight_col"), ("validation", (), "validation")],
)
def test_the_error_names_the_keyword_at_fault(method: str, arguments: tuple[str, ...], keyword: str) -> None:
    with pytest.raises(ColumnError, match=f"^{keyword}: the DataFrame has no column 'flagg'; did you mean 'flag'"):
        getattr(ColumnPlanner(SCHEMA), method)("flagg", *arguments)


def test_a_plan_selects_each_column_once_and_ends_with_the_key() -> None:
    planner = ColumnPlanner(SCHEMA)
    inputs = planner.inputs(["id", ["price", "id"]], {}, {})
    plan = planner.plan([*inputs, planner.label("price", "float"), planner.weight("ratio")])
    assert plan.names == ("id", "price", "ratio")
    fields = [[column.field for column in spec.columns] for spec in plan.tensors]
    assert fields == [[0], [1, 0], [1], [2], [3]]
    assert plan.tensors[-1] == TensorSpec(KEY, "key", (ColumnSpec(KEY, 3, "number"),), "int64", ())
    assert [spec.name for spec in plan.specs("label")] == ["price"]


def test_describing_a_tensor() -> None:
    assert TensorSpec("x", "input", (), "float32", (1, 28)).describe() == "x: float32, shape (batch, 1, 28)"
    assert TensorSpec("y", "label", (), "int64", ()).describe() == "y: int64, shape (batch,)"


# Padding, and inputs by argument


def test_a_padded_input_is_followed_by_its_lengths() -> None:
    padded, lengths, price = ColumnPlanner(SCHEMA).inputs({"ids": "tokens", "cost": "price"}, {}, {}, "longest")
    assert (padded.role, padded.dtype, padded.shape, padded.pad, padded.argument) == (
        *("input", "int64", None, "longest", "ids"),
    )
    assert (lengths.role, lengths.dtype, lengths.columns) == ("length", "int64", padded.columns)
    assert (price.pad, price.argument) == (None, "cost")


def test_padding_by_column() -> None:
    specs = ColumnPlanner(SCHEMA).inputs(["tokens", "grid", "reals"], {}, {}, {"grid": 5})
    assert [(spec.name, spec.role, spec.pad) for spec in specs] == [
        ("tokens", "input", None),
        ("grid", "input", 5),
        ("grid", "length", None),
        ("reals", "input", None),
    ]


@pytest.mark.parametrize(
    ("groups", "shapes", "pad", "message"),
    [
        (["vector"], {}, {"vector": 3}, "'vector' is vector; only arrays vary in length"),
        (["price", "vector"], {}, 3, r"none of feature_cols \['price', 'vector'\] is an array"),
        (["tokens"], {"tokens": (4,)}, 4, "pad and feature_shapes both name 'tokens'"),
        ([["tokens", "reals"]], {}, {"tokens": 4}, "pad: 'tokens' is joined with other columns"),
        (["tokens"], {}, {"token": 4}, "pad names 'token', which is not one of feature_cols"),
    ],
)
def test_what_can_not_be_padded(groups: Any, shapes: Any, pad: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        ColumnPlanner(SCHEMA).inputs(groups, {}, shapes, pad)

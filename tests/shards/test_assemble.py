"""Columns to one tensor: joined, shaped, typed; labels and weights checked for what a loss can't use."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from sparktrain.errors import DataError
from sparktrain.shards.arrow import Faults
from sparktrain.shards.assemble import assemble
from sparktrain.shards.tensors import ColumnSpec, Kind, Role, TensorSpec
from tests.shards.arrays import dense, sparse, vectors


def spec_of(
    *kinds: Kind,
    role: Role = "input",
    dtype: str = "float32",
    shape: tuple[int, ...] | None = None,
    **more: Any,
) -> TensorSpec:
    columns = tuple(ColumnSpec("abc"[field], field, kind) for field, kind in enumerate(kinds))
    return TensorSpec("+".join(c.name for c in columns), role, columns, dtype, shape, **more)


def rows_of(spec: TensorSpec, *columns: Any) -> npt.NDArray[Any]:
    faults = Faults()
    rows = assemble(spec, [pa.array(c) if isinstance(c, list) else c for c in columns], faults)
    assert not faults, str(faults)
    assert rows is not None
    assert rows.dtype == spec.dtype
    return rows


def faults_of(spec: TensorSpec, *columns: Any) -> str:
    faults = Faults()
    assemble(spec, [pa.array(c) if isinstance(c, list) else c for c in columns], faults)
    return str(faults)


def test_a_scalar_input_has_one_feature() -> None:
    np.testing.assert_array_equal(rows_of(spec_of("number", shape=(1,)), [1, 2]), [[1], [2]])


def test_a_scalar_label_has_no_feature_dimension() -> None:
    spec = spec_of("number", role="label", dtype="int64", shape=(), integral=True)
    np.testing.assert_array_equal(rows_of(spec, [1.0, 2.0]), [1, 2])
    np.testing.assert_array_equal(rows_of(spec, [True, False]), [1, 0])


def test_the_shape_of_arrays_is_the_data_s() -> None:
    assert rows_of(spec_of("list"), [[1, 2, 3], [4, 5, 6]]).shape == (2, 3)
    assert rows_of(spec_of("list"), [[[1, 2, 3]], [[4, 5, 6]]]).shape == (2, 1, 3)


def test_joined_columns_lie_side_by_side_in_the_given_order() -> None:
    found = rows_of(
        spec_of("number", "list", "vector"), [1, 2], [[3.5, 4], [5, 6]], vectors(dense(7, 8), sparse(2, i1=9))
    )
    np.testing.assert_array_equal(found, [[1, 3.5, 4, 7, 8], [2, 5, 6, 0, 9]])


def test_joining_keeps_large_integers_apart_from_floats() -> None:
    """Each column is converted by itself: int64 ids joined as int64 don't pass through float64."""
    big = 2**60 + 1
    assert rows_of(spec_of("number", "number", dtype="int64", shape=(2,)), [big], [1.0])[0, 0] == big


def test_a_declared_shape_reshapes() -> None:
    found = rows_of(spec_of("list", shape=(2, 2), declared=True), [[1, 2, 3, 4], [5, 6, 7, 8]])
    np.testing.assert_array_equal(found, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])


@pytest.mark.parametrize(("declared", "word"), [(True, "declared"), (False, "expected")])
def test_a_shape_that_does_not_fit(declared: bool, word: str) -> None:
    spec = spec_of("list", shape=(2, 2), declared=declared)
    with pytest.raises(DataError, match=rf"'a' has rows of shape \(3,\) \(3 elements\).*{word} shape is \(2, 2\) \(4"):
        rows_of(spec, [[1, 2, 3]])


def test_an_expected_shape_does_not_reshape_silently() -> None:
    """A model trained on rows of shape (4,) must not take rows of shape (2, 2) without a word."""
    with pytest.raises(DataError, match=r"rows of shape \(2, 2\)"):
        rows_of(spec_of("list", shape=(4,)), [[[1, 2], [3, 4]]])


def test_no_rows_keep_the_shape() -> None:
    assert rows_of(spec_of("list", shape=(2, 2), declared=True), pa.array([], pa.list_(pa.float64()))).shape == (
        0,
        2,
        2,
    )


def test_one_faulty_column_of_a_join_gives_no_rows_and_counts_all_faults() -> None:
    faults = Faults()
    columns = [pa.array([1, None]), pa.array([[1.0], [2.0]]), pa.array([None, None], pa.int64())]
    assert assemble(spec_of("number", "list", "number"), columns, faults) is None
    assert "column 'a': 1 null rows" in str(faults)
    assert "column 'c': 2 null rows" in str(faults)


def test_nan_labels_are_counted_by_row() -> None:
    nan = float("nan")
    assert faults_of(spec_of("number", role="label", shape=()), [1.0, nan, nan]) == "column 'a': 2 rows that are NaN"
    assert faults_of(spec_of("list", role="label"), [[nan, nan], [1.0, 2.0]]) == "column 'a': 1 rows that are NaN"


def test_nan_features_are_the_model_s_business() -> None:
    assert np.isnan(rows_of(spec_of("number", shape=(1,)), [float("nan")])).all()


def test_class_ids_must_be_whole_numbers() -> None:
    spec = spec_of("number", role="label", dtype="int64", shape=(), integral=True)
    assert faults_of(spec, [0.5, 1.0, 2.25]).startswith("column 'a': 2 rows that are not whole numbers")
    assert not faults_of(spec, [0.0, -1.0, 2.0])


def test_class_ids_that_no_integer_can_hold_are_counted_without_a_cast_warning() -> None:
    spec = spec_of("number", role="label", dtype="int64", shape=(), integral=True)
    assert faults_of(spec, [0.0, float("nan")]) == "column 'a': 1 rows that are NaN"
    assert faults_of(spec, [0.0, float("inf")]).startswith("column 'a': 1 rows that are not whole numbers")


@pytest.mark.parametrize(
    ("dtype", "values", "faulty"),
    [("int8", [1, 127, 128, -129], 2), ("uint8", [0, 255, -1], 1), ("int32", [1.0, 2.5, float("nan")], 2)],
)
def test_whole_numbers_are_never_wrapped_or_cut(dtype: str, values: list[float], faulty: int) -> None:
    spec = spec_of("number", dtype=dtype, shape=())
    assert f"{faulty} rows with values that are no {dtype} (not whole, or out of its range)" in faults_of(spec, values)
    assert rows_of(spec, [1, 2]).tolist() == [1, 2]
    label = spec_of("number", role="label", dtype=dtype, shape=(), integral=True)
    assert faults_of(label, values)


def test_fractions_are_fine_for_floating_labels() -> None:
    np.testing.assert_array_equal(rows_of(spec_of("number", role="label", shape=()), [0.5, 1.0]), [0.5, 1.0])


def test_weights_are_finite_and_not_negative() -> None:
    spec = spec_of("number", role="weight", shape=())
    assert faults_of(spec, [-1.0, 0.0, 2.0, float("inf"), -0.5]) == "column 'a': 3 weights below 0 or infinite"
    assert faults_of(spec, [-1, 2, -3]) == "column 'a': 2 weights below 0 or infinite"
    assert faults_of(spec, [float("nan"), 1.0]) == "column 'a': 1 rows that are NaN"
    np.testing.assert_array_equal(rows_of(spec, [0.0, 2.0]), [0, 2])
    np.testing.assert_array_equal(rows_of(spec, [0, 2]), [0, 2])


def test_infinite_labels_are_counted() -> None:
    spec = spec_of("number", role="label", shape=())
    assert faults_of(spec, [1.0, float("inf"), float("-inf")]) == "column 'a': 2 rows that are infinite"


def test_class_ids_too_large_for_an_integer_are_counted() -> None:
    spec = replace(spec_of("number", role="label", shape=()), dtype="int64", integral=True)
    assert "1 rows that are not whole numbers" in faults_of(spec, [1.0, 1e300])


def test_whole_numbers_that_a_double_merges_are_no_classes() -> None:
    spec = spec_of("number", role="label", dtype="float64", shape=(), integral=True)
    np.testing.assert_array_equal(rows_of(spec, [2**53 - 1, 1 - 2**53]), [2.0**53 - 1, 1 - 2.0**53])
    assert faults_of(spec, [0, 2**53, 2**53 + 1, -(2**60)]).startswith("column 'a': 3 rows of 2**53 and more")

"""Every kind of column to NumPy, whole and as a slice of a larger array; faults counted by row."""

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from sparktrain.shards.arrow import Faults, column_values, flat_rows
from sparktrain.shards.tensors import ColumnSpec, Kind
from tests.shards.arrays import dense, sparse, vectors

NUMBERS = [
    (pa.int8(), [1, -2, 3], "int8"),
    (pa.int16(), [1, -2, 3], "int16"),
    (pa.int32(), [1, -2, 3], "int32"),
    (pa.int64(), [1, -2, 2**60], "int64"),
    (pa.float32(), [0.5, -2.0, float("inf")], "float32"),
    (pa.float64(), [0.1, -2.0, float("nan")], "float64"),
    (pa.bool_(), [True, False, True], "bool"),
    (pa.decimal128(10, 2), [Decimal("1.25"), Decimal("-2.50"), Decimal("0.00")], "float64"),
]
LISTS = [
    (pa.list_(pa.int64()), [[1, 2], [3, 4], [5, 6]]),
    (pa.large_list(pa.float32()), [[1, 2], [3, 4], [5, 6]]),
    (pa.list_(pa.float64(), 2), [[1, 2], [3, 4], [5, 6]]),
    (pa.list_(pa.bool_()), [[True, False], [False, False], [True, True]]),
    (pa.list_(pa.list_(pa.int32())), [[[1], [2]], [[3], [4]], [[5], [6]]]),
    (pa.list_(pa.list_(pa.float32(), 3)), [[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]]]),
    (pa.large_list(pa.list_(pa.int64())), [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]]),
    (pa.list_(pa.float64()), [[], [], []]),
]
VECTORS = [
    ("dense", [dense(1, 2), dense(3, 4), dense(5, 6)], [[1, 2], [3, 4], [5, 6]]),
    ("sparse", [sparse(3, i1=1), sparse(3), sparse(3, i0=2, i2=3)], [[0, 1, 0], [0, 0, 0], [2, 0, 3]]),
    ("mixed", [sparse(2, i1=7), dense(1, 2), sparse(2)], [[0, 7], [1, 2], [0, 0]]),
    ("mixed, dense first", [dense(1, 2), sparse(2, i0=4), dense(5, 6)], [[1, 2], [4, 0], [5, 6]]),
    ("sparse of size zero", [sparse(0), sparse(0)], [[], []]),
]


def values_of(kind: Kind, array: pa.Array, storage_dtype: str | None = None) -> npt.NDArray[Any]:
    faults = Faults()
    found = column_values(ColumnSpec("x", 0, kind, storage_dtype), array, faults)
    assert not faults, str(faults)
    assert found is not None
    return found


def faults_of(kind: Kind, array: pa.Array, storage_dtype: str | None = None) -> str:
    faults = Faults()
    assert column_values(ColumnSpec("x", 0, kind, storage_dtype), array, faults) is None
    return str(faults)


def padded(array: pa.Array) -> pa.Array:
    """The same rows as a slice: with an offset, and with rows behind its end."""
    return pa.concat_arrays([array.slice(0, 1), array, array]).slice(1, len(array))


@pytest.mark.parametrize(("kind", "rows", "dtype"), NUMBERS)
def test_numbers(kind: pa.DataType, rows: list[Any], dtype: str) -> None:
    array = pa.array(rows, type=kind)
    for one in (array, padded(array)):
        found = values_of("number", one)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(rows, dtype=dtype))


@pytest.mark.parametrize(("kind", "rows"), LISTS)
def test_lists(kind: pa.DataType, rows: list[Any]) -> None:
    array = pa.array(rows, type=kind)
    for one in (array, padded(array)):
        np.testing.assert_array_equal(values_of("list", one), np.array(rows))


def test_a_list_of_decimals() -> None:
    array = pa.array([[Decimal("1.5"), Decimal("2.5")]])
    np.testing.assert_array_equal(values_of("list", array), [[1.5, 2.5]])


@pytest.mark.parametrize(("name", "rows", "expected"), VECTORS)
def test_vectors(name: str, rows: list[Any], expected: list[Any]) -> None:
    for one in (vectors(*rows), padded(vectors(*rows))):
        found = values_of("vector", one)
        assert found.dtype == "float64"
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_binary(kind: pa.DataType) -> None:
    rows = np.arange(12, dtype="int16").reshape(3, 4)
    array = pa.array([row.tobytes() for row in rows], type=kind)
    for one in (array, padded(array)):
        np.testing.assert_array_equal(values_of("binary", one, "int16"), rows)
        assert values_of("binary", one, "uint8").shape == (3, 8)


@pytest.mark.parametrize(
    ("kind", "array", "storage_dtype", "shape"),
    [
        ("number", pa.array([], pa.float64()), None, (0,)),
        ("list", pa.array([], pa.list_(pa.int64())), None, (0, 0)),
        ("vector", vectors(), None, (0, 0)),
        ("binary", pa.array([], pa.binary()), "uint8", (0, 0)),
    ],
)
def test_no_rows(kind: Kind, array: pa.Array, storage_dtype: str | None, shape: tuple[int, ...]) -> None:
    assert values_of(kind, array, storage_dtype).shape == shape


@pytest.mark.parametrize(
    ("kind", "array", "storage_dtype"),
    [
        ("number", pa.array([None, 1.0, None]), None),
        ("list", pa.array([[1], None, None]), None),
        ("vector", vectors(None, dense(1), None), None),
        ("binary", pa.array([b"a", None, None]), "uint8"),
    ],
)
def test_null_rows_are_counted(kind: Kind, array: pa.Array, storage_dtype: str | None) -> None:
    assert faults_of(kind, array, storage_dtype).startswith("column 'x': 2 null rows")


def test_nulls_outside_of_a_slice_do_not_count() -> None:
    np.testing.assert_array_equal(values_of("number", pa.array([None, 1, 2, None]).slice(1, 2)), [1, 2])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_null_elements_are_faults(kind: pa.DataType) -> None:
    faults = faults_of("list", pa.array([[1, 2], [3, None], [4, 5]], type=kind))
    assert faults.startswith("column 'x': 1 rows with null elements")


def test_a_null_inside_of_a_nested_list_is_a_fault() -> None:
    assert "1 rows with null elements" in faults_of("list", pa.array([[[1, 2], None], [[3, 4], [5, 6]]]))


@pytest.mark.parametrize(
    ("kind", "array", "storage_dtype"),
    [
        ("list", pa.array([[1, 2], [3], [4, 5], [6, 7, 8]]), None),
        ("vector", vectors(dense(1, 2), dense(3), dense(4, 5), dense(6, 7, 8)), None),
        ("vector", vectors(sparse(2), sparse(3), sparse(2), dense(1)), None),
        ("binary", pa.array([b"ab", b"c", b"de", b"fgh"]), "uint8"),
    ],
)
def test_ragged_rows_are_counted(kind: Kind, array: pa.Array, storage_dtype: str | None) -> None:
    assert faults_of(kind, array, storage_dtype).startswith("column 'x': 2 rows of a length other than the first")


def test_ragged_inner_lists_are_counted_by_row() -> None:
    array = pa.array([[[1], [3, 4], [5, 6], [1, 2]], [[1], [2], [3], [4]]])
    assert faults_of("list", array).startswith("column 'x': 1 rows of a length other than")


def test_bytes_that_do_not_divide_into_the_dtype() -> None:
    assert faults_of("binary", pa.array([b"abc", b"def"]), "int16") == "column 'x': 2 rows of 3 bytes, not whole int16s"


@pytest.mark.parametrize("index", ["i2", "i9"])
def test_a_sparse_index_outside_of_its_size(index: str) -> None:
    assert "index outside their size" in faults_of("vector", vectors(sparse(2), sparse(2, **{index: 1})))


def test_sparse_indices_are_counted_by_vector() -> None:
    array = vectors(sparse(2, i3=1, i4=1, i5=1), dense(0, 1), sparse(2))
    assert faults_of("vector", array).startswith("column 'x': 1 sparse vectors with an index outside")


def test_faults_add_up_by_column_and_kind() -> None:
    faults = Faults()
    assert not faults
    faults.add("a", "null rows", 0)
    assert not faults, "nothing was wrong"
    faults.add("a", "null rows", 1_200)
    faults.add("b", "rows that are NaN", 1)
    faults.add("a", "null rows", 34)
    assert str(faults) == "column 'a': 1,234 null rows; column 'b': 1 rows that are NaN"


def test_flat_rows() -> None:
    assert flat_rows(np.zeros((3, 2, 4))).shape == (3, 8)
    assert flat_rows(np.zeros(3)).shape == (3, 1)
    assert flat_rows(np.zeros((0, 2))).shape == (0, 2)

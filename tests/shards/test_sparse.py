"""Vectors that may be sparse: from Arrow to the spool, and back by row index as dense rows or CSR."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sparktrain.errors import DataError
from sparktrain.shards.arrow import Faults, whole_columns
from sparktrain.shards.assemble import assemble_sparse
from sparktrain.shards.reader import open_shard
from sparktrain.shards.sparse import SparseReader
from sparktrain.shards.spool import Spool, agree_on_shapes
from sparktrain.shards.tensors import KEY, ColumnSpec, Role, TensorSpec
from tests.shards.arrays import VECTOR, batch, dense, sparse, vectors

COLUMN = (ColumnSpec("v", 0, "vector"),)
ROLES: tuple[tuple[Role, str, tuple[int, ...] | None], ...] = (
    ("input", "float32", None),
    ("length", "int64", ()),
    ("position", "int32", ()),
)
TENSORS = [TensorSpec("v", role, COLUMN, dtype, shape, sparse=True) for role, dtype, shape in ROLES]
KEYS = TensorSpec(KEY, "key", (ColumnSpec(KEY, 1, "number"),), "int64", ())
MIXED = (sparse(3, i1=2.0), dense(1, 2, 3), sparse(3), sparse(3, i0=4.0, i1=5.0, i2=6.0), dense(0, 0, 7))
AS_DENSE = np.array([[0, 2, 0], [1, 2, 3], [0, 0, 0], [4, 5, 6], [0, 0, 7]], np.float32)


def spooled(*batches: pa.RecordBatch) -> SparseReader:
    spool = Spool([*TENSORS, KEYS])
    for one in batches:
        spool.write(one.columns)
    report = spool.finish(0)
    shard = open_shard(agree_on_shapes([*TENSORS, KEYS], [report]), spool.fds, report.rows)
    assert shard.sparse_rows is not None
    spool.close()
    return SparseReader(shard.sparse_rows)


def test_rows_come_back_dense_whatever_they_were_stored_as() -> None:
    reader = spooled(batch(v=vectors(*MIXED[:2]), key=[0, 1]), batch(v=vectors(*MIXED[2:]), key=[2, 3, 4]))
    assert reader.rows.matrix is None
    rows = np.array([4, 0, 2, 3, 1, 1])
    np.testing.assert_array_equal(reader.dense(rows), AS_DENSE[rows])
    values, columns, pointers = reader.csr(rows)
    assert pointers.tolist() == [0, 3, 4, 4, 7, 10, 13]
    assert (values[3], columns[3]) == (2.0, 1)
    assert reader.dense(np.zeros(0, np.int64)).shape == (0, 3)


def test_dense_rows_alone_are_a_matrix_without_a_copy() -> None:
    reader = spooled(batch(v=vectors(dense(1, 2), dense(3, 4)), key=[0, 1]))
    matrix = reader.rows.matrix
    assert matrix is not None
    assert matrix.tolist() == [[1, 2], [3, 4]]
    assert np.shares_memory(matrix, reader.rows.values)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"type": 0, "size": 3, "indices": [2, 0], "values": [1.0, 2.0]}, "whose indices don't increase"),
        ({"type": 0, "size": 3, "indices": [3], "values": [1.0]}, "with an index outside their size"),
        (dense(1, 2), "rows of a length other than the first row's"),
        (None, "null rows"),
    ],
)
def test_faulty_rows_are_counted(row: dict | None, what: str) -> None:
    faults = Faults()
    assert assemble_sparse(TENSORS[0], [vectors(dense(1, 2, 3), row)], faults) is None
    assert f"column 'v': 1 {'sparse vectors ' if 'ind' in what else ''}{what}" in str(faults)


def test_vectors_of_another_length_than_the_model_s() -> None:
    with pytest.raises(DataError, match="column 'v' has vectors of 3 elements, but 2 are expected"):
        assemble_sparse(TENSORS[0].with_shape((2,)), [vectors(dense(1, 2, 3))], Faults())


def test_columns_in_parts_are_put_together() -> None:
    given = vectors(dense(1, 2), None, sparse(2, i1=3.0))
    parts = [
        pa.array([1, None, 0], pa.int8()),
        pa.array([-1, -1, 2], pa.int32()),
        pa.array([[], [], [1]], pa.list_(pa.int32())),
        pa.array([[1.0, 2.0], None, [3.0]], pa.list_(pa.float64())),
    ]
    numbers, whole, key = whole_columns([pa.array([1, 2, 3]), *parts, pa.array([7, 8, 9])], (False, True))
    assert whole.type == VECTOR
    assert whole.is_null().to_pylist() == given.is_null().to_pylist()
    assert whole.field("values").to_pylist() == [[1, 2], None, [3]]
    assert (numbers.to_pylist(), key.to_pylist()) == ([1, 2, 3], [7, 8, 9])

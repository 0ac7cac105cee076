"""Arrays of varying length: from Arrow through the spool to padded batches with their mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparktrain.errors import DataError
from sparktrain.shards.arrow import Faults
from sparktrain.shards.assemble import assemble_ragged
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.reader import Shard, open_shard
from sparktrain.shards.spool import Spool, SpoolReport, agree_on_shapes
from sparktrain.shards.tensors import ColumnSpec, Pad, TensorSpec
from tests.shards.arrays import batch

COLUMN = ColumnSpec("t", 0, "list")


def specs(pad: Pad = "longest", dtype: str = "int64") -> tuple[TensorSpec, ...]:
    return (TensorSpec("t", "input", (COLUMN,), dtype, pad=pad), TensorSpec("t", "length", (COLUMN,), "int64", ()))


def spooled(tensors: tuple[TensorSpec, ...], directory: Path, *batches: pa.RecordBatch) -> tuple[Shard, SpoolReport]:
    spool = Spool(tensors, str(directory))
    for one in batches:
        spool.write(one.columns)
    report = spool.finish(rank=0)
    shard = open_shard(agree_on_shapes(tensors, [report]), spool.fds, report.rows)
    spool.close()
    return shard, report


def test_a_batch_is_padded_to_its_longest_row(tmp_path: Path) -> None:
    shard, report = spooled(
        specs(), tmp_path, batch(t=[[1, 2, 3], [], [4]]), batch(t=[[5, 6, 7, 8, 9]]), batch(t=[[]]).slice(0)
    )
    assert report.rows == 5
    (tokens,) = shard.inputs
    assert isinstance(tokens, Ragged)
    values, mask = tokens.take(np.array([2, 0, 1]))
    np.testing.assert_array_equal(values, [[4, 0, 0], [1, 2, 3], [0, 0, 0]])
    np.testing.assert_array_equal(mask, [[True, False, False], [True, True, True], [False, False, False]])
    assert tokens.take(np.array([3, 4]))[0].shape == (2, 5)
    assert tokens.take(np.array([1, 4]))[0].shape == (2, 1), "a batch of empty rows has length 1"
    assert tokens.take(np.array([], dtype=int))[0].shape == (0, 1)


def test_a_fixed_length_and_items_with_a_shape_of_their_own(tmp_path: Path) -> None:
    rows = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]
    shard, _ = spooled(specs(3, "float32"), tmp_path, batch(t=pa.array(rows, pa.list_(pa.list_(pa.float64())))))
    values, mask = shard.inputs[0].take(np.array([2, 1, 0]))
    assert values.dtype == np.float32
    assert values.shape == (3, 3, 2)
    np.testing.assert_array_equal(values[0], [[3, 4], [5, 6], [0, 0]])
    np.testing.assert_array_equal(mask.sum(1), [2, 0, 1])


def test_only_empty_arrays(tmp_path: Path) -> None:
    shard, _ = spooled(specs(), tmp_path, batch(t=pa.array([[], []], pa.list_(pa.int64()))))
    assert shard.inputs[0].take(np.array([0, 1]))[1].sum() == 0


def test_faults_are_counted_once(tmp_path: Path) -> None:
    for rows, pad, message in (
        ([[1], None, [2, None]], "longest", "column 't': 1 null rows"),
        ([[1], [3], [2, None], [None, None]], "longest", "column 't': 2 rows with null elements"),
        ([[1], [1, 2, 3], [4, 5, 6, 7]], 2, r"column 't': 2 rows longer than pad=2 \(raise it, or cut"),
    ):
        spool = Spool(specs(pad), str(tmp_path))
        spool.write(batch(t=rows).columns)
        with pytest.raises(DataError, match=message) as caught:
            spool.finish(rank=0)
        assert str(caught.value).count("column 't'") == 1
        spool.close()


def test_a_batch_of_empty_arrays_has_the_shape_of_the_others_items() -> None:
    empty = batch(t=pa.array([[], []], pa.list_(pa.list_(pa.float32()))))
    spec = TensorSpec("t", "input", (COLUMN,), "float32", (3,), pad="longest")
    ragged = assemble_ragged(spec, empty.columns, Faults())
    assert ragged is not None
    assert ragged.take(np.arange(2))[0].shape == (2, 1, 3)


def test_only_the_outer_length_may_vary(tmp_path: Path) -> None:
    spool = Spool(specs(), str(tmp_path))
    spool.write(batch(t=[[[1, 2], [3]], [[4, 5]]]).columns)
    with pytest.raises(DataError, match=r"column 't': \d inner arrays that differ in length .*\(only the outer length"):
        spool.finish(rank=0)
    spool.close()


def test_a_slice_of_a_batch() -> None:
    arrays = batch(t=[[9], [1, 2], [3], [4, 5, 6]]).slice(1, 2)
    ragged = assemble_ragged(specs()[0], arrays.columns, Faults())
    assert ragged is not None
    np.testing.assert_array_equal(ragged.take(np.arange(2))[0], [[1, 2], [3, 0]])

"""Arrow batches through unlinked files to a mapped shard, and what ranks agree on."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparktrain.errors import DataError, GangError
from sparktrain.shards.reader import open_shard
from sparktrain.shards.spool import Spool, SpoolReport, agree_on_shapes
from sparktrain.shards.tensors import KEY, ColumnSpec, TensorSpec
from tests.shards.arrays import batch, dense, sparse, vectors

FEATURES = TensorSpec("f", "input", (ColumnSpec("f", 0, "vector"),), "float32")
IMAGES = TensorSpec("i", "input", (ColumnSpec("i", 1, "binary", "uint8"),), "uint8", (2, 2), declared=True)
LABEL = TensorSpec("y", "label", (ColumnSpec("y", 2, "number"),), "int64", (), integral=True)
KEYS = TensorSpec(KEY, "key", (ColumnSpec(KEY, 3, "number"),), "int64", ())
TENSORS = (FEATURES, IMAGES, LABEL, KEYS)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(TENSORS, str(tmp_path))
    yield made
    made.close()


def rows(start: int, stop: int) -> pa.RecordBatch:
    ids = range(start, stop)
    return batch(
        f=vectors(*[dense(i, 0, i / 2) if i % 2 else sparse(3, i0=i, i2=i / 2) for i in ids]),
        i=[bytes([i, i + 1, i + 2, i + 3]) for i in ids],
        y=[float(i % 3) for i in ids],
        key=[i * 10 for i in ids],
    )


def test_a_round_trip_in_several_batches(spool: Spool, tmp_path: Path) -> None:
    for one in (rows(0, 3), rows(3, 3), rows(3, 4), rows(0, 9).slice(4)):
        spool.write(one.columns)
    report = spool.finish(rank=0)
    assert report == SpoolReport(9, ((3,), (2, 2), (), ()))
    assert not list(tmp_path.iterdir()), "the files have no name, so nothing is left behind"

    shard = open_shard(agree_on_shapes(TENSORS, [report]), spool.fds, report.rows)
    ids = np.arange(9)
    np.testing.assert_array_equal(shard.inputs[0], np.stack([ids, 0 * ids, ids / 2], axis=1).astype("float32"))
    np.testing.assert_array_equal(shard.inputs[1].reshape(9, 4), ids[:, None] + np.arange(4))
    np.testing.assert_array_equal(shard.labels[0], ids % 3)
    np.testing.assert_array_equal(shard.keys, ids * 10)
    assert [array.dtype.name for array in shard.arrays] == ["float32", "uint8", "int64", "int64"]


def test_no_rows_at_all(spool: Spool) -> None:
    spool.write(rows(0, 0).columns)
    report = spool.finish(rank=1)
    assert report == SpoolReport(0, (None, None, None, None))
    agreed = agree_on_shapes(TENSORS, [SpoolReport(5, ((3,), (2, 2), (), ())), report])
    shard = open_shard(agreed, spool.fds, report.rows)
    assert [array.shape for array in shard.arrays] == [(0, 3), (0, 2, 2), (0,), (0,)]


def test_faults_of_all_batches_are_counted_and_told_at_the_end(spool: Spool) -> None:
    good = rows(0, 4)
    spool.write(good.columns)
    spool.write(batch(f=good["f"], i=good["i"], y=[None, 1.0, None, 2.0], key=good["key"]).columns)
    spool.write(
        batch(f=vectors(None, None, dense(1, 2, 3), None), i=good["i"], y=[0.5, 1, 1, None], key=good["key"]).columns
    )
    with pytest.raises(DataError) as caught:
        spool.finish(rank=3)
    text = str(caught.value)
    assert "column 'f': 3 null rows" in text
    assert "column 'y': 3 null rows" in text
    assert text.endswith("(of 12 rows in the shard of rank 3)")


def test_fractional_class_ids_and_other_columns_faults_in_one_error(spool: Spool) -> None:
    good = rows(0, 2)
    spool.write(batch(f=vectors(dense(1, 2, 3), dense(1)), i=good["i"], y=[0.5, 1.0], key=good["key"]).columns)
    with pytest.raises(DataError, match=r"'f': 1 rows of a length.*'y': 1 rows that are not whole numbers.*of 2 rows"):
        spool.finish(rank=0)


def test_rows_of_another_length_in_a_later_batch(spool: Spool) -> None:
    good = rows(0, 2)
    spool.write(good.columns)
    spool.write(batch(f=vectors(dense(1, 2), dense(3, 4)), i=good["i"], y=good["y"], key=good["key"]).columns)
    with pytest.raises(DataError, match=r"column 'f': 2 rows of shape \(2,\) after rows of shape \(3,\)"):
        spool.finish(rank=0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_says_what_to_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115
    spool = Spool(TENSORS, str(tmp_path))
    try:
        spool.write(rows(0, 8).columns)
        with pytest.raises(GangError, match=rf"no space left in {tmp_path} .* 8 rows; .*spark\.local\.dir"):
            spool.finish(rank=0)
    finally:
        spool.close()


def test_closing_ends_this_process_s_hold(tmp_path: Path) -> None:
    spool = Spool(TENSORS, str(tmp_path))
    spool.write(rows(0, 2).columns)
    fds = spool.fds
    spool.close()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

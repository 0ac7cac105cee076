"""A shard's arrays by role, mapped privately from the spool's files."""

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from sparktrain.shards.reader import Shard, open_shard
from sparktrain.shards.tensors import KEY, TensorSpec

INPUT = TensorSpec("x", "input", (), "float32", (2,))
KEYS = TensorSpec(KEY, "key", (), "int64", ())
ROWS = np.arange(6, dtype="float32").reshape(3, 2)


@pytest.fixture
def fd() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(ROWS.tobytes())
        file.flush()
        yield file.fileno()


def test_writing_to_a_shard_changes_neither_file_nor_other_shards(fd: int) -> None:
    mine, other = open_shard([INPUT], [fd], 3), open_shard([INPUT], [fd], 3)
    mine.inputs[0][:] = -1
    np.testing.assert_array_equal(other.inputs[0], ROWS)
    assert os.pread(fd, 100, 0) == ROWS.tobytes()


def test_a_shard_outlives_its_descriptor() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(ROWS.tobytes())
        file.flush()
        shard = open_shard([INPUT], [file.fileno()], 3)
    np.testing.assert_array_equal(shard.inputs[0], ROWS)


def test_rows_of_no_elements(fd: int) -> None:
    assert open_shard([INPUT.with_shape((0,))], [fd], 3).inputs[0].shape == (3, 0)


def test_arrays_by_role_in_the_user_s_order() -> None:
    roles = ["input", "label", "input", "weight", "validation", "label", "key"]
    specs = tuple(TensorSpec(f"c{i}", role, (), "int64", ()) for i, role in enumerate(roles))  # type: ignore[arg-type]
    shard = Shard(specs, tuple(np.array([i]) for i in range(len(roles))))
    assert [int(array[0]) for array in shard.inputs] == [0, 2]
    assert [int(array[0]) for array in shard.labels] == [1, 5]
    assert [spec.name for spec in shard.specs("label")] == ["c1", "c5"]
    assert shard.weights is not None
    assert shard.validation is not None
    assert (shard.weights[0], shard.validation[0], shard.keys[0]) == (3, 4, 6)


def test_what_the_user_did_not_name_is_none() -> None:
    shard = Shard((INPUT, KEYS), (ROWS, np.arange(3)))
    assert shard.weights is None
    assert shard.validation is None
    assert shard.labels == []

"""Arrays and files on the executor's local disk."""

import errno
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sparktrain.errors import GangError
from sparktrain.shards import disk


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_small_array_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "unnamed_file", lambda: pytest.fail("a file for a small array"))
    array = disk.empty_array(1000, np.int32)
    assert (array.shape, array.dtype) == ((1000,), np.int32)
    assert disk.empty_array(0, np.bool_).shape == (0,)


def test_a_large_array_lies_in_a_file_without_a_name_that_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(disk, "IN_MEMORY_BYTES", 1000)
    before = open_files()
    array = disk.empty_array(1001, np.bool_)
    assert (type(array), array.shape, array.flags.writeable) == (np.ndarray, (1001,), True)
    array[:] = True
    assert array.all()
    assert (open_files(), list(tmp_path.iterdir())) == (before + 1, [])
    del array
    gc.collect()
    assert open_files() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_before_the_array_is_written(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "_reserve", full)
    with pytest.raises(GangError, match=r"no space left in .* for 8,000,000 bytes .*spark\.local\.dir"):
        disk.empty_array(1_000_000, np.int64)


def test_another_fault_of_the_disk_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "_reserve", broken)
    with pytest.raises(OSError, match="Input/output error"):
        disk.empty_array(1_000_000, np.int64)


def test_the_local_directory_is_spark_s_first_local_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/somewhere/else")
    assert disk.local_directory() == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "missing"))
    assert disk.local_directory() == tempfile.gettempdir()
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert disk.local_directory() == tempfile.gettempdir()

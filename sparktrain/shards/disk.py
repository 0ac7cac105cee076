"""The executor's local disk: files without a name, and arrays that live in them instead of in memory.

An array with an element a row grows with the shard. In a mapped file its pages are the kernel's cache:
written back and dropped when memory runs short, and not counted as a process's own.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from sparktrain.errors import GangError

IN_MEMORY_BYTES = 4 << 20
"""Arrays up to this size stay in memory: they need no file, and are a little faster to make."""


def local_directory() -> str:
    """The executor's local disk: the first of Spark's local directories, else the temporary one."""
    spark_dirs = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return spark_dirs[0] if os.path.isdir(spark_dirs[0]) else tempfile.gettempdir()


def unnamed_file(directory: str | None = None) -> IO[bytes]:
    """A file that ends with the last process that holds it open, however it ends."""
    return tempfile.TemporaryFile(dir=directory or local_directory())


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def empty_array(rows: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of shape (rows,) to be filled: on local disk where it is large.

    A plain ndarray either way (NumPy takes slower roads for `numpy.memmap`); its file goes with it.

    Raises
    ------
    GangError
        Where the disk has no space for it.
    """
    size = rows * np.dtype(dtype).itemsize
    if size <= IN_MEMORY_BYTES:
        return np.empty(rows, dtype)
    with unnamed_file() as file:
        try:
            _reserve(file.fileno(), size)
        except OSError as error:
            if not is_full(error):
                raise
            raise GangError(
                f"no space left in {local_directory()} for {size:,} bytes of row order, beside the spooled shard; "
                "free space there, set spark.local.dir to a larger disk, or raise num_proc on more hosts"
            ) from error
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


def taken(
    values: npt.NDArray[Any], rows: npt.NDArray[np.signedinteger], *, order: Literal["C", "F"] = "C"
) -> npt.NDArray[Any]:
    """`values[rows]`, shape (rows, *row shape), on local disk where it is large; "F": each column in one piece."""
    size = math.prod(values.shape[1:])
    out = empty_array(len(rows) * size, values.dtype).reshape(len(rows), *values.shape[1:], order=order)
    step = max(IN_MEMORY_BYTES // max(size * values.itemsize, 1), 1)
    for start in range(0, len(rows), step):
        out[start : start + step] = values[rows[start : start + step]]
    return out


def _reserve(fd: int, size: int) -> None:
    """Give a file its size and its blocks: writing to a mapped file on a full disk ends a process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)

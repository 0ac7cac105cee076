"""Rank 0's result on the driver: the file it rests in, and how large it may be."""

from __future__ import annotations

import os
import re
import tempfile
import weakref
from collections.abc import Iterable

from sparktrain.errors import GangError

IN_ROWS_BYTES = 64 << 20
"""Up to this size a result comes back in Spark's rows; a larger one by a socket where there can be one."""

DEFAULT_MAX_RESULT_SIZE = "1g"
MAX_RESULT_SIZE = "spark.driver.maxResultSize"
_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class Result:
    """An unlinked file on the driver's disk: it ends with this object, or with the process, however that ends."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self.fd = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self.fd)

    @classmethod
    def of(cls, parts: Iterable[bytes | bytearray]) -> Result:
        result = cls()
        for part in parts:
            result.append(part)
        return result

    def append(self, data: bytes | bytearray) -> None:
        """Write all of `data` at the end."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    @property
    def path(self) -> str:
        """A name to open or map the file by in this process, until `close`; a mapping outlives it."""
        return f"/dev/fd/{self.fd}"

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self) -> bytes:
        """All of it, in memory."""
        size, parts, offset = self.size, [], 0
        while offset < size:
            parts.append(os.pread(self.fd, size - offset, offset))
            offset += len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self._close()


def check_rows_can_hold(result_bytes: int, max_result_size: str | None) -> None:
    """Where Spark's rows are the only road back, refuse what Spark would refuse after the training.

    Parameters
    ----------
    result_bytes : int
        Size of the expected result.
    max_result_size : str or None
        ``spark.driver.maxResultSize`` as the server tells it; None: unset, or it doesn't tell.

    Raises
    ------
    GangError
        Where the result is larger than half of it: rows take more room than the bytes in them.
    """
    limit = size_in_bytes(max_result_size)
    if limit is None:
        max_result_size, limit = DEFAULT_MAX_RESULT_SIZE, size_in_bytes(DEFAULT_MAX_RESULT_SIZE)
    assert limit is not None
    if limit and result_bytes > limit // 2:
        raise GangError(
            f"the model is too large to come back over Spark Connect: {result_bytes / 1e6:,.0f} MB ({result_bytes:,} "
            f"bytes of parameters and buffers), and Spark's rows take up to half of {MAX_RESULT_SIZE}="
            f"{max_result_size}, {limit // 2:,} bytes. Raise {MAX_RESULT_SIZE} on the server (0: no limit), or fit in "
            "a classic session"
        )


def size_in_bytes(text: str | None) -> int | None:
    """A size as Spark writes it (``512m``, ``1gb``, ``1073741824``); None: not one."""
    match = re.fullmatch(r"(\d+)\s*([kmgtp]?)b?", (text or "").strip().lower())
    return int(match[1]) << 10 * _UNITS[match[2]] if match else None

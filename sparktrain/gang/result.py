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

MAX_RESULT_SIZE, DRIVER_MEMORY = "spark.driver.maxResultSize", "spark.driver.memory"
SPARKS_DEFAULT, SPARKS_DEFAULT_BYTES = "1g", 1 << 30
"""Of both settings."""

SIZE_SHARE, HEAP_SHARE = 2, 6
"""What part of them a result may take. In a heap of 1 GB (``local[2]``) 150 MB passed; 225 MB killed Spark's
thread that fetches results, and the job hung."""


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


def check_rows_can_hold(result_bytes: int, max_result_size: str | None, driver_memory: str | None) -> None:
    """Where Spark's rows are the only road back, refuse what Spark would refuse, or die of, after the training.

    Parameters
    ----------
    result_bytes : int
        Size of the expected result.
    max_result_size, driver_memory : str or None
        The two settings as the server tells them; None: unset, or it doesn't tell: Spark's defaults. A server
        that runs out of heap here leaves the fit hanging, so a doubt is an error.

    Raises
    ------
    GangError
        Where the result is larger than `SIZE_SHARE` and `HEAP_SHARE` allow.
    """
    limit = size_in_bytes(max_result_size)
    if limit is None:
        max_result_size, limit = SPARKS_DEFAULT, SPARKS_DEFAULT_BYTES
    if limit and result_bytes > limit // SIZE_SHARE:
        raise _too_large(result_bytes, f"{MAX_RESULT_SIZE}={max_result_size}", limit // SIZE_SHARE, " (0: no limit)")
    heap = size_in_bytes(driver_memory, unit="m")
    if heap is None:
        driver_memory, heap = SPARKS_DEFAULT, SPARKS_DEFAULT_BYTES
    if result_bytes > heap // HEAP_SHARE:
        raise _too_large(result_bytes, f"{DRIVER_MEMORY}={driver_memory}", heap // HEAP_SHARE)


def _too_large(result_bytes: int, setting: str, most: int, note: str = "") -> GangError:
    return GangError(
        f"the model is too large to come back over Spark Connect: {result_bytes / 1e6:,.0f} MB ({result_bytes:,} bytes "
        f"of parameters and buffers), and with {setting} Spark's rows take {most:,} bytes. Raise "
        f"{setting.partition('=')[0]} on the server{note}, or fit in a classic session"
    )


def size_in_bytes(text: str | None, unit: str = "b") -> int | None:
    """A size as Spark writes it (``512m``, ``1gb``, ``1073741824``); None: not one.

    Parameters
    ----------
    text : str or None
    unit : str
        Of a number without one: each setting has its own.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgtp]?b?)", (text or "").strip().lower())
    if match is None:
        return None
    return int(match[1]) << 10 * "bkmgtp".index((match[2] or unit)[0])

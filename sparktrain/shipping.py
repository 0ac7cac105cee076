"""Large bytes from the driver to the executors: once per content, as a Spark file, not in a closure."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from sparktrain.session import ship_file

INLINE_BYTES = 1 << 20
"""A fit's payload up to this size rides in the barrier stage's closure; Spark broadcasts larger ones itself."""

_lock = threading.Lock()
_shipped: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
_directory: str | None = None


def ship_bytes(spark: SparkSession, data: bytes) -> str:
    """As `ship`, for bytes that are in memory."""
    return ship(spark, lambda path: Path(path).write_bytes(data))


def ship(spark: SparkSession, write: Callable[[str], object]) -> str:
    """Put what `write(path)` writes on every executor that will ask for it; the same content goes once a session.

    Returns
    -------
    str
        The driver-side path; its base name is the name of the Spark file (``SparkFiles.get``).
    """
    global _directory
    with _lock:
        if _directory is None or not os.path.isdir(_directory):
            _directory = tempfile.mkdtemp(prefix="sparktrain-")
            atexit.register(shutil.rmtree, _directory, ignore_errors=True)
        written = os.path.join(_directory, "unnamed")
        write(written)
        with open(written, "rb") as file:
            name = f"sparktrain-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}.safetensors"
        path = os.path.join(_directory, name)
        known = _shipped.setdefault(spark, set())
        if name in known:
            os.unlink(written)
        else:
            os.replace(written, path)
            ship_file(spark, path)
            known.add(name)
    return path

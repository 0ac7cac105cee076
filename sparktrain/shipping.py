"""Large bytes from the driver to the executors: once per content, as a Spark file, not in a closure."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from sparktrain.session import ship_file

INLINE_BYTES = 1 << 20
"""A fit's payload up to this size rides in the barrier stage's closure; Spark broadcasts larger ones itself."""

_lock = threading.Lock()
_shipped: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
_directory: str | None = None


def ship_bytes(spark: SparkSession, data: bytes) -> str:
    """Put `data` on every executor that will ask for it; the same content is sent once a session.

    Returns
    -------
    str
        The driver-side path; its base name is the name of the Spark file (``SparkFiles.get``).
    """
    global _directory
    name = f"sparktrain-{hashlib.sha256(data).hexdigest()[:32]}.safetensors"
    with _lock:
        if _directory is None or not os.path.isdir(_directory):
            _directory = tempfile.mkdtemp(prefix="sparktrain-")
            atexit.register(shutil.rmtree, _directory, ignore_errors=True)
        path = os.path.join(_directory, name)
        known = _shipped.setdefault(spark, set())
        if name not in known:
            with open(path, "wb") as file:
                file.write(data)
            ship_file(spark, path)
            known.add(name)
    return path

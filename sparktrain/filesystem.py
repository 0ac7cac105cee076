"""Files of a save, through the same file system that Spark writes its metadata to.

Classic sessions use Hadoop's file systems in the driver's JVM. On Spark Connect there is no JVM here:
a file is read as a ``binaryFile`` DataFrame, and written by the server (``copyFromLocalToFs``) or, where
the server's file system is a local disk, by a task on it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparktrain.errors import PersistenceError
from sparktrain.session import is_connect
from sparktrain.shipping import ship_bytes


def write_file(spark: SparkSession, path: str, data: bytes) -> None:
    """Write (or replace) one file; `path` without a scheme means Spark's default file system."""
    if is_connect(spark):
        _write_on_server(spark, path, data)
        return
    with tempfile.NamedTemporaryFile() as local:
        local.write(data)
        local.flush()
        hadoop, target = _hadoop(spark, path)
        source = spark._jvm.org.apache.hadoop.fs.Path(f"file://{local.name}")  # type: ignore[union-attr]
        hadoop.copyFromLocalFile(False, True, source, target)


def read_file(spark: SparkSession, path: str) -> bytes:
    """Read one file whole."""
    if is_connect(spark):
        row = spark.read.format("binaryFile").load(path).select("content").first()
        if row is None:
            raise PersistenceError(f"there is no file {path}")
        return bytes(row["content"])
    hadoop, source = _hadoop(spark, path)
    with tempfile.TemporaryDirectory() as directory:
        local = os.path.join(directory, "file")
        hadoop.copyToLocalFile(False, source, spark._jvm.org.apache.hadoop.fs.Path(f"file://{local}"), True)  # type: ignore[union-attr]
        with open(local, "rb") as file:
            return file.read()


def clear(spark: SparkSession, path: str) -> None:
    """Remove what is at `path`, if anything."""
    if not is_connect(spark):
        hadoop, target = _hadoop(spark, path)
        hadoop.delete(target, True)
        return
    # Connect has no way to delete: overwriting with nothing leaves an empty directory
    spark.createDataFrame([("",)], "value string").limit(0).write.mode("overwrite").text(path)


def _hadoop(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    target = jvm.org.apache.hadoop.fs.Path(path)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return target.getFileSystem(configuration), target


def _write_on_server(spark: SparkSession, path: str, data: bytes) -> None:
    shipped = ship_bytes(spark, data)
    scheme = _server_scheme(spark, os.path.dirname(path))
    if scheme == "file":
        target = urlparse(path).path
        rows: DataFrame = spark.range(1).mapInArrow(partial(_copy_in_task, os.path.basename(shipped), target), "n long")
        rows.collect()
        return
    if urlparse(path).scheme:
        raise PersistenceError(
            f"can't write {path} over Spark Connect: give the path without its scheme, on the server's default "
            "file system"
        )
    spark.copyFromLocalToFs(shipped, path)


def _server_scheme(spark: SparkSession, directory: str) -> str:
    """The scheme under which the server finds `directory`, read off the metadata already saved there."""
    row = spark.read.text(f"{directory}/metadata").select("_metadata.file_path").first()
    if row is None:
        raise PersistenceError(f"no metadata was saved in {directory}")
    return urlparse(str(row[0])).scheme


def _copy_in_task(name: str, target: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import SparkFiles

    for batch in batches:
        if batch.num_rows:
            partial_name = f"{target}.partial"
            shutil.copyfile(SparkFiles.get(name), partial_name)
            os.replace(partial_name, target)
        yield pa.RecordBatch.from_arrays([pa.array([0] * batch.num_rows, type=pa.int64())], names=["n"])

"""Files of a save, through the same file system that Spark writes its metadata to.

Classic sessions use Hadoop's file systems in the driver's JVM. On Spark Connect there is no JVM here:
a file is written by the server (``copyFromLocalToFs``) where it lies on the server's default file system,
by a task where that is a local disk, and on any other file system by Spark's Parquet writer, in pieces, as a
directory of the file's name. Reading takes both forms, on classic sessions too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sparktrain.errors import PersistenceError
from sparktrain.session import is_connect
from sparktrain.shipping import ship

PIECE_BYTES = 4 << 20
_PIECES = "start long, data binary"


def write_file(spark: SparkSession, path: str, source: str) -> None:
    """Copy the local file `source` to `path`; a path without a scheme means Spark's default file system."""
    if is_connect(spark):
        _write_on_server(spark, path, source)
        return
    hadoop, target = _hadoop(spark, path)
    local = spark._jvm.org.apache.hadoop.fs.Path(f"file://{source}")  # type: ignore[union-attr]
    hadoop.copyFromLocalFile(False, True, local, target)


def read_file(spark: SparkSession, path: str, target: str) -> None:
    """Copy the file at `path` to the local file `target`."""
    if is_connect(spark):
        _read_from_server(spark, path, target)
        return
    hadoop, source = _hadoop(spark, path)
    if hadoop.getFileStatus(source).isDirectory():
        _write_pieces(spark.read.schema(_PIECES).parquet(path).toLocalIterator(), target)
        return
    local = spark._jvm.org.apache.hadoop.fs.Path(f"file://{target}")  # type: ignore[union-attr]
    hadoop.copyToLocalFile(False, source, local, True)


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


def _write_on_server(spark: SparkSession, path: str, source: str) -> None:
    saved = _saved_metadata(spark, os.path.dirname(path))
    bare = urlparse(path).path
    if urlparse(saved).scheme != "file" and (bare == path or saved == _saved_metadata(spark, os.path.dirname(bare))):
        spark.copyFromLocalToFs(source, bare)
        return
    name = os.path.basename(ship(spark, partial(shutil.copyfile, source)))
    if urlparse(saved).scheme == "file":
        directory = unquote(urlparse(os.path.dirname(os.path.dirname(saved))).path)  # whole, where `path` is relative
        target = os.path.join(directory, os.path.basename(path))
        spark.range(1).mapInArrow(partial(_copy_in_task, name, target), "n long").collect()
    else:
        pieces = spark.range(1).mapInArrow(partial(_read_in_task, name), _PIECES)
        pieces.write.mode("overwrite").parquet(path)


def _saved_metadata(spark: SparkSession, directory: str) -> str:
    """The full URI by which the server knows the metadata saved in `directory`; empty where there is none."""
    try:
        row = spark.read.text(f"{directory}/metadata").select("_metadata.file_path").first()
    except AnalysisException:  # no such path
        return ""
    return str(row[0]) if row else ""


def _read_from_server(spark: SparkSession, path: str, target: str) -> None:
    files = spark.read.format("binaryFile").load(path)
    found = files.select("path").first()
    if found is None:
        raise PersistenceError(f"there is no file {path}")
    if os.path.basename(str(found[0])) == os.path.basename(path):
        pieces = files.select("content").mapInArrow(_cut_in_task, _PIECES)  # one message holds no large file
    else:
        pieces = spark.read.schema(_PIECES).parquet(path)
    _write_pieces(pieces.toLocalIterator(), target)


def _write_pieces(pieces: Iterator[Any], target: str) -> None:
    with open(target, "wb") as file:
        for start, data in pieces:
            file.seek(start)
            file.write(data)


# In a task


def _copy_in_task(name: str, target: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import SparkFiles

    for batch in batches:
        if batch.num_rows:
            partial_name = f"{target}.partial"
            shutil.copyfile(SparkFiles.get(name), partial_name)
            os.replace(partial_name, target)
        yield pa.RecordBatch.from_arrays([pa.array([0] * batch.num_rows, type=pa.int64())], names=["n"])


def _read_in_task(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import SparkFiles

    for batch in batches:
        if batch.num_rows:
            with open(SparkFiles.get(name), "rb") as file:
                while data := file.read(PIECE_BYTES):
                    yield _piece(file.tell() - len(data), data)


def _cut_in_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content in batch.column(0):
            whole = content.as_buffer()
            for start in range(0, whole.size, PIECE_BYTES):
                yield _piece(start, whole.slice(start, min(PIECE_BYTES, whole.size - start)).to_pybytes())


def _piece(start: int, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([start]), pa.array([data], type=pa.binary())], names=["start", "data"])

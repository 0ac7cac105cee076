"""What differs between classic sessions and Spark Connect, behind functions that take a session."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


def session_of(df: DataFrame) -> SparkSession:
    """The session a DataFrame belongs to."""
    return df.sparkSession


def is_connect(spark: SparkSession) -> bool:
    """True for a Spark Connect session: no `sparkContext`, no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def setting(spark: SparkSession, key: str) -> str | None:
    """A configuration value, None where it is unset or the server doesn't tell."""
    try:
        value = spark.conf.get(key, None)
    except Exception:  # Connect servers may refuse to read a key
        return None
    return str(value) if value is not None else None


@contextlib.contextmanager
def ended_with_caller(spark: SparkSession) -> Iterator[None]:
    """Jobs started inside are cancelled when the block is left by an exception, Ctrl-C included."""
    tag = f"sparktrain-{uuid.uuid4().hex}"
    owner: Any = spark if hasattr(spark, "addTag") else _TagsOfContext(spark)
    owner.addTag(tag)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            owner.interruptTag(tag)
        raise
    finally:
        owner.removeTag(tag)


class _TagsOfContext:
    """pyspark 3.5 classic has job tags on the context only."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self.addTag = context.addJobTag
        self.removeTag = context.removeJobTag
        self.interruptTag = context.cancelJobsWithTag


def ship_file(spark: SparkSession, path: str) -> None:
    """Send a driver-side file to every executor once; tasks find it with ``SparkFiles.get(basename)``."""
    if hasattr(spark, "addArtifact") and (is_connect(spark) or _has_classic_artifacts()):
        spark.addArtifact(path, file=True)
    else:
        spark.sparkContext.addFile(path)


def _has_classic_artifacts() -> bool:
    return int(pyspark.__version__.split(".")[0]) >= 4


def local_slots(master: str) -> int | None:
    """Task slots that a master URL promises by itself: ``local[…]`` and ``local-cluster[…]``; else None.

    Cores are counted; divide by ``spark.task.cpus``.
    """
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[(\d+|\*)(?:\s*,\s*\d+)?\]", master)
    if match:
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    return int(match[1]) * int(match[2]) if match else None


def promised_slots(spark: SparkSession) -> int | None:
    """Slots that the settings promise: by master URL, or executors times their cores; None: they don't say."""
    task_cpus = int(setting(spark, "spark.task.cpus") or 1)
    cores = local_slots(setting(spark, "spark.master") or "")
    if cores is None:
        executors, each = setting(spark, "spark.executor.instances"), setting(spark, "spark.executor.cores")
        if not executors or not each:
            return None
        return int(executors) * (int(each) // task_cpus)
    return cores // task_cpus


def registered_slots(spark: SparkSession) -> int | None:
    """Tasks that the scheduler could run at the same time right now; None on Connect, which doesn't tell."""
    if is_connect(spark):
        return None
    context: Any = spark.sparkContext._jsc.sc()
    try:
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except Exception:  # not the JVM's public interface: other builds of Spark may lack it
        logger.debug("the scheduler doesn't tell its slots", exc_info=True)
        return None

"""What differs between classic sessions and Spark Connect, behind functions that take a session."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target

logger = logging.getLogger(__name__)

SPARK_4 = int(pyspark.__version__.split(".")[0]) >= 4
"""Since then classic sessions have artifacts and tags of their own, and ML persistence takes the session."""


def session_of(df: DataFrame) -> SparkSession:
    """The session a DataFrame belongs to."""
    return df.sparkSession


def active_session() -> SparkSession | None:
    """The session of this thread, else the process's; None: there is none."""
    found = SparkSession.getActiveSession()
    if found is not None:
        return found
    try:
        return SparkSession.active()
    except Exception:  # its class has changed between versions
        return None


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


def executors_run_this_python(spark: SparkSession) -> bool:
    """Whether tasks are known to run the interpreter of this process: what is missing here is missing there."""
    if is_connect(spark) or not (setting(spark, "spark.master") or "").startswith("local"):
        return False
    return shutil.which(spark.sparkContext.pythonExec) == sys.executable


def driver_host(spark: SparkSession) -> tuple[str, str]:
    """A classic driver's address as executors know it, and the one that it listens on."""
    host = setting(spark, "spark.driver.host") or "localhost"
    return host, setting(spark, "spark.driver.bindAddress") or host


def job_tags(spark: SparkSession) -> Any:
    """What has ``addTag`` and ``interruptTag``: the session, on pyspark 3.5 classic a stand-in for its context."""
    return spark if hasattr(spark, "addTag") else _TagsOfContext(spark)


class _TagsOfContext:
    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self.addTag = context.addJobTag
        self.interruptTag = context.cancelJobsWithTag


def in_inheriting_thread(spark: SparkSession, target: Callable[[], None]) -> Callable[[], None]:
    """`target` for a new thread whose jobs belong to the calling thread's job group and tags."""
    if is_connect(spark) or SPARK_4:
        wrapped: Callable[[], None] = inheritable_thread_target(spark)(target)
        return wrapped
    inherited: Callable[[], None] = inheritable_thread_target(target)
    return inherited


def ship_file(spark: SparkSession, path: str) -> None:
    """Send a driver-side file to every executor once; tasks find it with ``SparkFiles.get(basename)``."""
    if hasattr(spark, "addArtifact") and (is_connect(spark) or SPARK_4):
        spark.addArtifact(path, file=True)
    else:
        spark.sparkContext.addFile(path)


def local_slots(master: str, task_cpus: int = 1) -> int | None:
    """Task slots that a master URL promises by itself: ``local[…]`` and ``local-cluster[…]``; else None."""
    if master == "local":
        return 1 // task_cpus
    match = re.fullmatch(r"local\[(\d+|\*)(?:\s*,\s*\d+)?\]", master)
    if match:
        return ((os.cpu_count() or 1) if match[1] == "*" else int(match[1])) // task_cpus
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    return int(match[1]) * (int(match[2]) // task_cpus) if match else None


def promised_slots(spark: SparkSession) -> int | None:
    """Slots that the settings promise: by master URL, or executors times their cores; None: they don't say."""
    task_cpus = int(setting(spark, "spark.task.cpus") or 1)
    master = setting(spark, "spark.master") or ""
    slots = local_slots(master, task_cpus)
    if slots is None:
        executors, each = setting(spark, "spark.executor.instances"), setting(spark, "spark.executor.cores")
        if not executors or not each:
            return None
        return int(executors) * (int(each) // task_cpus)
    return slots


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

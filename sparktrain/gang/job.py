"""A gang's Spark job: waited for with a launch deadline, and cancelled when its caller leaves."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession

from sparktrain.errors import GangTimeout
from sparktrain.session import in_inheriting_thread, is_connect, job_tags

logger = logging.getLogger(__name__)
POLL_S = 0.2
CANCEL_WAIT_S = 5.0
ABANDON_S = 1200.0
"""How long an abandoned job is cancelled again and again: Spark queues a barrier stage for 600 s by itself."""


def run_job(
    spark: SparkSession, collect: Callable[[], list[Any]], *, launch_timeout_s: float, waiting_for: str
) -> list[Any]:
    """Run `collect`, the job's action, and return its rows.

    The deadline counts the seconds in which Spark runs no task of the application at all: a barrier
    stage that does not fit sits in Spark's queue like that. Stages that compute the DataFrame, and other
    gangs that hold the slots, are running tasks, so waiting for them is not counted.

    Parameters
    ----------
    spark : SparkSession
    collect : callable
    launch_timeout_s : float
    waiting_for : str
        What the job waits for, for the error.

    Raises
    ------
    GangTimeout
        Where nothing ran for `launch_timeout_s`.
    """
    with RunningTasks(spark) as running_tasks:
        job = _Job(spark, collect)
        try:
            idle_since = time.monotonic()
            while not job.done.wait(POLL_S):
                if running_tasks() != 0:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > launch_timeout_s:
                    raise GangTimeout(
                        f"Spark has run nothing for {launch_timeout_s:g} s (launch_timeout_s) while the gang's "
                        f"barrier stage waits for {waiting_for}"
                    )
        except BaseException:
            job.cancel()
            raise
    if job.error is not None:
        raise job.error
    return job.rows


class _Job:
    """The action in a thread of its own, with the caller's job group and a tag to cancel it by."""

    def __init__(self, spark: SparkSession, collect: Callable[[], list[Any]]) -> None:
        self.done = threading.Event()
        self.rows: list[Any] = []
        self.error: BaseException | None = None
        self._collect = collect
        self._tag = f"sparktrain-{uuid.uuid4().hex}"
        self._tags = job_tags(spark)
        inheriting = in_inheriting_thread(spark, self._collect_tagged)
        threading.Thread(target=self._run, args=(inheriting,), daemon=True, name="sparktrain-job").start()

    def _collect_tagged(self) -> None:
        self._tags.addTag(self._tag)
        self.rows = self._collect()

    def _run(self, inheriting: Callable[[], None]) -> None:
        try:
            inheriting()
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def cancel(self) -> None:
        """Cancel, and wait a little; what Spark still queues is cancelled as soon as it becomes a job."""
        threading.Thread(target=self._cancel_until_done, daemon=True, name="sparktrain-cancel").start()
        self.done.wait(CANCEL_WAIT_S)

    def _cancel_until_done(self) -> None:
        deadline = time.monotonic() + ABANDON_S
        while not self.done.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # the session may be stopped meanwhile
                self._tags.interruptTag(self._tag)
            self.done.wait(1.0)


class RunningTasks:
    """How many tasks run in the application: from the status tracker, on Connect from progress reports."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._by_operation: dict[str, int] = {}
        self._connect = is_connect(spark)

    def __call__(self) -> int | None:
        """None: unknown."""
        if self._connect:
            return sum(self._by_operation.values()) if self._by_operation else None
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # the context is being stopped
            return None
        return sum(int(stage.numActiveTasks) for stage in stages if stage is not None)

    def _report(self, *, inflight_tasks: int, operation_id: str, done: bool, **_: Any) -> None:
        self._by_operation[operation_id] = 0 if done else inflight_tasks

    def __enter__(self) -> RunningTasks:
        if self._connect:
            self._spark.registerProgressHandler(self._report)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connect:
            self._spark.removeProgressHandler(self._report)

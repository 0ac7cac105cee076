"""The driver's side of a gang: checks slots, runs the barrier stage, turns its rows into an outcome."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparktrain.errors import DataError, GangError, NotEnoughSlots
from sparktrain.gang import result
from sparktrain.gang.delivery import ResultReceiver
from sparktrain.gang.events import LogLines, ProgressBar, ProgressListener
from sparktrain.gang.failure import explain, find_report
from sparktrain.gang.job import run_job
from sparktrain.gang.port import DriverPort
from sparktrain.gang.result import Result
from sparktrain.gang.spec import DriverAddress, GangSpec
from sparktrain.gang.task import ROW_DDL, run_task
from sparktrain.session import (
    driver_host,
    is_connect,
    promised_slots,
    registered_slots,
    session_of,
    setting,
)
from sparktrain.shards.spool import NO_ROWS

logger = logging.getLogger(__name__)
POLL_S = 0.5
FIXED_LAUNCH_S = 30.0
"""Launch deadline where a stage that doesn't fit at once never will: given partitions, fixed slots."""


@dataclass(frozen=True)
class GangOutcome:
    """What a finished gang brought back.

    Parameters
    ----------
    infos : tuple
        Each rank's return value of the trainer, in rank order.
    rows : tuple of int
        Each rank's shard.
    results : tuple of Result
        Each rank's result file, or rank 0's alone, on the driver's disk; the caller closes them.
    """

    infos: tuple[Any, ...]
    rows: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def result(self) -> Result:
        """Rank 0's."""
        return self.results[0]


def check_slots(
    num_proc: int, slots: Callable[[], int | None], *, fixed: bool, timeout_s: float, poll_s: float = POLL_S
) -> None:
    """Compare ranks with slots before a barrier stage would wait in Spark's queue.

    Parameters
    ----------
    num_proc : int
    slots : callable
        Slots there are now; None: can't be read.
    fixed : bool
        True where no more will come (local masters); else executors still registering are waited for.
    timeout_s : float
        How long to wait for them (``launch_timeout_s``).

    Raises
    ------
    GangTimeout, NotEnoughSlots
        Names both numbers.
    """
    deadline = time.monotonic() + timeout_s
    noted = False
    while (found := slots()) is not None and found < num_proc:
        if fixed or time.monotonic() > deadline:
            waited = "" if fixed else f" after {timeout_s:g} s (launch_timeout_s)"
            raise NotEnoughSlots(
                f"num_proc={num_proc}, but the cluster runs {found} tasks at the same time{waited}: all ranks of a "
                f"gang run together. Use num_proc={max(found, 1)}, or give Spark more cores (local[{num_proc}], "
                "more or larger executors; spark.task.cpus counts)"
            )
        if not noted:
            logger.warning("waiting up to %g s for %d task slots; there are %d now", timeout_s, num_proc, found)
            noted = True
        time.sleep(poll_s)


def check_cluster(spark: SparkSession, num_proc: int, launch_timeout_s: float) -> None:
    """Raise at once what Spark would report late or never: too few slots, dynamic allocation."""
    if (setting(spark, "spark.dynamicAllocation.enabled") or "false").lower() == "true":
        raise GangError(
            "spark.dynamicAllocation.enabled=true: Spark runs no barrier stage with dynamic allocation; "
            "set it to false and give a fixed number of executors"
        )
    if (setting(spark, "spark.master") or "").startswith("local") or is_connect(spark):
        check_slots(num_proc, lambda: promised_slots(spark), fixed=True, timeout_s=launch_timeout_s)
    if not is_connect(spark):
        check_slots(num_proc, lambda: registered_slots(spark), fixed=fixed_slots(spark), timeout_s=launch_timeout_s)


def fixed_slots(spark: SparkSession) -> bool:
    """Whether all slots are there from the start, in this machine's ``local[N]``: waiting brings no more."""
    master = setting(spark, "spark.master") or ""
    return master == "local" or master.startswith("local[")


def launch(
    df: DataFrame,
    spec: GangSpec,
    *,
    partitioned: bool,
    launch_timeout_s: float,
    progress_label: str | None,
    result_bytes: int = 0,
) -> GangOutcome:
    """Run a gang over a DataFrame of exactly the spec's columns and wait for its outcome.

    Parameters
    ----------
    df : DataFrame
        What `ColumnPlan.shards` gave.
    spec : GangSpec
    partitioned : bool
        True: the user said that the DataFrame's partitions are the shards.
    launch_timeout_s : float
    progress_label : str or None
        Shown before the progress bar; None: nothing is shown, of the workers' logs neither.
    result_bytes : int
        About how large a rank's result will be: over `IN_ROWS_BYTES` a port is opened for it.

    Raises
    ------
    NotEnoughSlots, GangError, RankFailed, DataError
        The first rank that failed speaks; Spark's own trace stays out of the way.
    """
    spark = session_of(df)
    check_cluster(spark, spec.num_proc, launch_timeout_s)
    if partitioned and fixed_slots(spark):
        launch_timeout_s = min(launch_timeout_s, FIXED_LAUNCH_S)
    with ExitStack() as stack:
        if progress_label:
            view = LogLines() if spec.shows_logs else ProgressBar(progress_label)
            stack.callback(view.close)
            spec = replace(spec, progress=_address(stack, _listener(spark, view)))
        receiver = _receiver(spark) if result_bytes > result.IN_ROWS_BYTES else None
        spec = replace(spec, delivery=_address(stack, receiver))
        try:
            rows = run_job(
                spark,
                df.mapInArrow(partial(run_task, spec), ROW_DDL, barrier=True).collect,
                launch_timeout_s=launch_timeout_s,
                waiting_for=_waiting_for(spec.num_proc, partitioned),
            )
        except GangError:
            raise
        except Exception as error:
            report = find_report(str(error))
            if report is None:
                raise explain(str(error)) from error
            raise report.to_error() from None
    return _outcome(rows, spec, receiver)


def _address(stack: ExitStack, port: DriverPort | None) -> DriverAddress | None:
    """The port's address; the port closes with the stack."""
    if port is None:
        return None
    stack.callback(port.close)
    return port.address


def _waiting_for(num_proc: int, partitioned: bool) -> str:
    if partitioned:
        return f"a slot for each partition of the DataFrame (partitioned=True): more than num_proc={num_proc}?"
    return f"{num_proc} free slots at the same time (num_proc): other jobs may hold them, or executors were lost"


def _listener(spark: SparkSession, view: ProgressBar | LogLines) -> ProgressListener | None:
    if is_connect(spark):
        logger.info("no live progress on Spark Connect: executors can't reach this client")
        return None
    host, bind = driver_host(spark)
    try:
        return ProgressListener(host, bind, view)
    except OSError as error:
        logger.warning("no live progress: can't listen on %s: %s", bind, error)
        return None


def _receiver(spark: SparkSession) -> ResultReceiver | None:
    if is_connect(spark):
        return None
    host, bind = driver_host(spark)
    try:
        return ResultReceiver(host, bind)
    except OSError as error:
        logger.warning("a large result comes back in Spark's rows: can't listen on %s: %s", bind, error)
        return None


def _outcome(rows: list[Any], spec: GangSpec, receiver: ResultReceiver | None) -> GangOutcome:
    if not rows:  # adaptive execution starts no task at all where it finds the input empty
        raise DataError(NO_ROWS)
    num_proc = spec.num_proc
    outcomes = {row["rank"]: json.loads(bytes(row["data"])) for row in rows if row["kind"] == "outcome"}
    if sorted(outcomes) != list(range(num_proc)):
        raise GangError(f"expected the outcome of {num_proc} ranks, got it of ranks {sorted(outcomes)}")
    ordered = [outcomes[rank] for rank in range(num_proc)]
    for note in sorted({one["note"] for one in ordered if one["note"]}):
        logger.warning("the gang's progress was not shown: %s", note)
    for row in sorted((row for row in rows if row["kind"] == "log"), key=lambda row: row["rank"]):
        for line in bytes(row["data"]).decode(errors="replace").splitlines():
            LogLines().show(row["rank"], line)
    ranks = range(num_proc) if spec.every_result else [0]
    return GangOutcome(
        tuple(one["info"] for one in ordered),
        tuple(one["rows"] for one in ordered),
        tuple(_result([row for row in rows if row["rank"] == rank], rank, receiver) for rank in ranks),
    )


def _result(rows: list[Any], rank: int, receiver: ResultReceiver | None) -> Result:
    sizes = [int(row["data"]) for row in rows if row["kind"] == "delivered"]
    if sizes and receiver is not None:
        return receiver.take(rank, sizes[0])
    parts = sorted((row for row in rows if row["kind"] == "result"), key=lambda row: row["part"])
    return Result.of(row["data"] for row in parts)

"""The barrier task: runs in Spark's Python worker, one per rank.

Starts the worker process, spools the shard while it imports, meets the other ranks, hands over the
job, relays events, and returns outcome and result as rows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any

import pyarrow as pa

from sparktrain import backends
from sparktrain.backends.companion import Companion
from sparktrain.errors import GangError, SparktrainError
from sparktrain.gang import rendezvous
from sparktrain.gang.delivery import deliver
from sparktrain.gang.events import QUEUE_SIZE, EventRelay
from sparktrain.gang.failure import PEER_GRACE_S, RankReport, ReportedFailure, find_report
from sparktrain.gang.log import RankLog
from sparktrain.gang.process import REPORT_S, WorkerProcess
from sparktrain.gang.rendezvous import BarrierView, Card, Meeting, PeerGoneError
from sparktrain.gang.result import IN_ROWS_BYTES
from sparktrain.gang.spec import DriverAddress, GangSpec, WorkerJob
from sparktrain.shards.arrow import whole_columns
from sparktrain.shards.disk import unnamed_file
from sparktrain.shards.spool import Spool, agree_on_shapes

logger = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20
LOG_LINES_WAITING = 20_000
ROW_SCHEMA = pa.schema([("rank", pa.int64()), ("kind", pa.string()), ("part", pa.int64()), ("data", pa.binary())])
ROW_DDL = "rank long, kind string, part long, data binary"


def run_task(spec: GangSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` runs in each barrier task."""
    from pyspark import BarrierTaskContext, SparkFiles

    context = BarrierTaskContext.get()
    gpu = context.resources().get("gpu")
    barrier = BarrierView(
        rank=context.partitionId(),
        hosts=tuple(rendezvous.host_of(info.address) for info in context.getTaskInfos()),
        all_gather=context.allGather,
        cpus=context.cpus(),
        gpus=tuple(gpu.addresses) if gpu else (),
    )
    payload_path = SparkFiles.get(spec.payload_file) if spec.payload_file else None
    yield from run_rank(spec, barrier, batches, payload_path)


def run_rank(
    spec: GangSpec, barrier: BarrierView, batches: Iterable[pa.RecordBatch], payload_path: str | None
) -> Iterator[pa.RecordBatch]:
    """One rank's part of the gang, without Spark: the barrier is whatever `barrier.all_gather` is.

    Yields
    ------
    RecordBatch
        `ROW_SCHEMA`: one ``outcome`` row (JSON), and on ranks with a result its file in ``result`` rows, or a
        ``delivered`` row with its size; a ``log`` row where the driver could not be told of lines meanwhile.

    Raises
    ------
    ReportedFailure
        Carries this rank's `RankReport`; raised so that Spark ends the whole stage.
    """
    try:
        if len(barrier.hosts) != spec.num_proc:
            raise GangError(
                f"num_proc={spec.num_proc}, but the barrier stage has {len(barrier.hosts)} tasks: with "
                f"partitioned=True the DataFrame must have {spec.num_proc} partitions (union, coalesce and "
                "adaptive execution change their number); repartition it, or leave partitioned=False"
            )
        yield from _run(spec, barrier, batches, payload_path)
    except PeerGoneError as error:
        time.sleep(PEER_GRACE_S)  # likewise
        raise ReportedFailure(replace(_own_report(barrier, error), cause="peer")) from error
    except ReportedFailure as failure:
        report = find_report(str(failure))
        if report is not None and report.cause == "peer":
            time.sleep(PEER_GRACE_S)  # the rank at fault reports first; Spark then ends this task too
        raise
    except Exception as error:
        raise ReportedFailure(_own_report(barrier, error)) from error


def _run(
    spec: GangSpec, barrier: BarrierView, batches: Iterable[pa.RecordBatch], payload_path: str | None
) -> Iterator[pa.RecordBatch]:
    rank = barrier.rank
    address = barrier.hosts[rank]
    with ExitStack() as stack:
        spool = Spool(spec.tensors)
        stack.callback(spool.close)
        result = stack.enter_context(unnamed_file())
        listener = stack.enter_context(rendezvous.listen(address)) if rank == 0 else None
        fds = [*spool.fds, result.fileno(), *([listener.fileno()] if listener else [])]
        tells = rank == 0 or spec.shows_logs
        waiting = LOG_LINES_WAITING if spec.shows_logs else QUEUE_SIZE
        relay = stack.enter_context(EventRelay(spec.progress if tells else None, waiting))
        log = RankLog(
            rank,
            relay.send if spec.shows_logs and spec.progress is not None else None,
            None if spec.log_url is None else f"{spec.log_url}/rank-{rank}.log",
        )
        stack.callback(log.close)
        worker = stack.enter_context(WorkerProcess(barrier, spec.trainer.partition(":")[0], fds, log.write))
        port = listener.getsockname()[1] if listener else 0
        companion = backends.load(spec.backend).companion(address, log.write, worker.environment)
        stack.enter_context(_beside(companion))
        card = Card(address, port, "cuda" if barrier.gpus else "cpu", companion.tells())
        meeting = Meeting(barrier, card, listener)
        for batch in batches:
            spool.write(whole_columns(batch.columns, spec.split))
        report = spool.finish(rank)
        gang, reports = meeting.finish(report, spec.rendezvous_timeout_s, spec.collective_timeout_s)
        companion.start(gang, [one.companion for one in meeting.cards])
        worker.wait_ready(spec.rendezvous_timeout_s)
        job = WorkerJob(
            gang=gang,
            trainer=spec.trainer,
            backend=spec.backend,
            payload=spec.payload,
            payload_path=payload_path,
            tensors=agree_on_shapes(spec.tensors, reports),
            tensor_fds=spool.fds,
            rows=report.rows,
            result_fd=result.fileno(),
            listen_fd=listener.fileno() if listener else None,
            environment=companion.environment(spec.rendezvous_timeout_s),
        )
        info = worker.run(job, relay.send, companion.check)
        companion.finish()
        outcome = {"rows": report.rows, "info": info, "note": relay.trouble}
        yield _row(rank, "outcome", 0, json.dumps(outcome).encode())
        if rank == 0 or spec.every_result:
            expected = not spec.every_result or os.fstat(result.fileno()).st_size > IN_ROWS_BYTES
            yield from _result_rows(rank, result, spec.delivery if expected else None)
        if spec.shows_logs and (spec.progress is None or relay.trouble is not None):
            worker.close()  # all of its lines have come
            yield _row(rank, "log", 0, log.tail)


@contextlib.contextmanager
def _beside(companion: Companion) -> Iterator[None]:
    """After a failure the companion, as the worker, outlives this task's report by a little."""
    try:
        yield
    except BaseException:
        later = threading.Timer(REPORT_S, companion.close)
        later.daemon = True
        later.start()
        raise
    companion.close()


def _result_rows(rank: int, result: IO[bytes], delivery: DriverAddress | None) -> Iterator[pa.RecordBatch]:
    """The result file in pieces; read by offset, since the worker shares the file's position.

    Where the driver listens for it, one row that tells how many bytes it has received.
    """
    if delivery is not None:
        try:
            yield _row(rank, "delivered", 0, b"%d" % deliver(delivery, result.fileno(), rank))
            return
        except OSError as error:
            where = f"{delivery.host}:{delivery.port}"
            logger.warning("the driver at %s can't take the result, which goes into rows: %s", where, error)
    size = os.fstat(result.fileno()).st_size
    for part, offset in enumerate(range(0, size, CHUNK_BYTES)):
        yield _row(rank, "result", part, os.pread(result.fileno(), CHUNK_BYTES, offset))


def _row(rank: int, kind: str, part: int, data: bytes) -> pa.RecordBatch:
    columns: list[list[Any]] = [[rank], [kind], [part], [data]]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, ROW_SCHEMA, strict=True)],
        schema=ROW_SCHEMA,
    )


def _own_report(barrier: BarrierView, error: Exception) -> RankReport:
    frames = "" if isinstance(error, SparktrainError) else "".join(traceback.format_exception(error))
    return RankReport(
        barrier.rank,
        len(barrier.hosts),
        barrier.hosts[barrier.rank] if barrier.rank < len(barrier.hosts) else "?",
        "error",
        type(error).__name__,
        str(error),
        frames,
        own=isinstance(error, SparktrainError),
    )

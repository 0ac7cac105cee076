"""One rank's part of a gang without Spark: batches in, rows out, and the report of what went wrong."""

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparktrain.errors import DataError, GangError
from sparktrain.gang import task
from sparktrain.gang.delivery import ResultReceiver
from sparktrain.gang.failure import RankReport, ReportedFailure, find_report
from sparktrain.gang.rendezvous import BarrierView
from sparktrain.gang.spec import GangSpec
from sparktrain.shards.tensors import KEY, ColumnSpec, TensorSpec
from tests.gang import tiny_trainer
from tests.gang.tiny_task import VIEW
from tests.shards.arrays import batch

LABEL = TensorSpec("y", "label", (ColumnSpec("y", 0, "number"),), "float32", ())
KEYS = TensorSpec(KEY, "key", (ColumnSpec(KEY, 1, "number"),), "int64", ())
SPEC = GangSpec(
    num_proc=1,
    trainer=f"{tiny_trainer.__name__}:finish",
    payload={"greeting": "hello"},
    payload_file=None,
    tensors=(LABEL, KEYS),
    backend="native",
    rendezvous_timeout_s=60.0,
    collective_timeout_s=60.0,
)
BATCHES = [batch(y=[0.5, 1.5], key=[0, 1]), batch(y=[2.5], key=[2])]


def rows_of(spec: GangSpec, barrier: BarrierView, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    made = list(task.run_rank(spec, barrier, batches, None))
    assert all(one.schema == task.ROW_SCHEMA for one in made)
    return [row for one in made for row in one.to_pylist()]


def report_of(spec: GangSpec, barrier: BarrierView, batches: Iterable[pa.RecordBatch]) -> RankReport:
    with pytest.raises(ReportedFailure) as caught:
        rows_of(spec, barrier, batches)
    report = find_report(str(caught.value))
    assert report is not None
    return report


def test_outcome_and_result_come_back_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "CHUNK_BYTES", 4)
    outcome, *result = rows_of(SPEC, VIEW, BATCHES)
    assert (outcome["rank"], outcome["kind"]) == (0, "outcome")
    assert json.loads(outcome["data"]) == {"rows": 3, "info": {"rank": 0, "rows": 3, "payload": "hello"}, "note": None}
    assert [(row["kind"], row["part"], row["data"]) for row in result] == [
        ("result", 0, b"weig"),
        ("result", 1, b"hts"),
    ]


def test_a_result_that_the_driver_takes_is_no_row() -> None:
    receiver = ResultReceiver("127.0.0.1", "127.0.0.1")
    try:
        _, delivered = rows_of(replace(SPEC, delivery=receiver.address), VIEW, BATCHES)
    finally:
        receiver.close()
    assert (delivered["kind"], delivered["data"]) == ("delivered", b"7")
    assert receiver.take(0, 7).read() == b"weights"


def test_without_a_way_to_the_driver_the_result_goes_into_rows(caplog: pytest.LogCaptureFixture) -> None:
    receiver = ResultReceiver("127.0.0.1", "127.0.0.1")
    receiver.close()
    with caplog.at_level(logging.WARNING, logger="sparktrain"):
        _, result = rows_of(replace(SPEC, delivery=receiver.address), VIEW, BATCHES)
    assert (result["kind"], result["data"]) == ("result", b"weights")
    assert "can't take the result, which goes into rows: [Errno" in caplog.text


def test_another_number_of_tasks_than_ranks() -> None:
    error = report_of(replace(SPEC, num_proc=3), VIEW, BATCHES).to_error()
    assert isinstance(error, GangError)
    assert str(error).startswith("num_proc=3, but the barrier stage has 1 tasks")


def test_faulty_rows_are_a_data_error_without_spark_s_trace() -> None:
    report = report_of(SPEC, VIEW, [batch(y=[None, 1.0], key=[0, 1])])
    error = report.to_error()
    assert type(error) is DataError
    assert "column 'y': 1 null rows" in str(error)
    assert "(of 2 rows in the shard of rank 0)" in str(error)


def test_no_rows_anywhere() -> None:
    assert report_of(SPEC, VIEW, []).to_error().args[0].startswith("the DataFrame has no rows")


def test_an_error_of_the_source_is_reported_with_its_traceback() -> None:
    def broken() -> Iterable[pa.RecordBatch]:
        yield BATCHES[0]
        raise KeyError("upstream")

    report = report_of(SPEC, VIEW, broken())
    assert (report.cause, report.error_type) == ("error", "KeyError")
    assert "in broken" in report.traceback


def test_the_worker_s_failure_is_the_rank_s() -> None:
    report = report_of(replace(SPEC, trainer=f"{tiny_trainer.__name__}:fail"), VIEW, BATCHES)
    assert (report.rank, report.error_type, report.message) == (0, "ValueError", "bad batch")


def test_a_rank_that_met_a_peer_s_end_lets_the_cause_speak_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(task, "time", SimpleNamespace(sleep=waited.append))
    assert report_of(replace(SPEC, trainer=f"{tiny_trainer.__name__}:lose_a_peer"), VIEW, BATCHES).cause == "peer"
    assert waited == [task.PEER_GRACE_S]

"""A gang's Spark job: its rows, its error, its launch deadline, and how it is cancelled."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparktrain.errors import GangTimeout
from sparktrain.gang import job
from sparktrain.gang.job import RunningTasks, run_job

WAIT_S = 30.0


class FakeSession:
    """The part of an application that a job sees, as its own Spark context and status tracker.

    Each look at its stages takes a second of its clock. `running` says how many tasks run then, the
    last number for ever; None: the context doesn't tell.
    """

    def __init__(self) -> None:
        self.running: list[int | None] = [0]
        self.seconds = 0.0
        self.looked = threading.Event()  # at all of `running`
        self.tags: list[str] = []
        self.cancelled: list[str] = []
        self.cancellations = [self.done]  # what the first, the second, … one does
        self.ended = threading.Event()
        self.sparkContext = self

    def statusTracker(self) -> "FakeSession":
        return self

    def getActiveStageIds(self) -> list[int]:
        self.seconds += 1
        self.now = self.running.pop(0) if len(self.running) > 1 else self.running[0]
        if len(self.running) == 1:
            self.looked.set()
        if self.now is None:
            raise RuntimeError("the context is being stopped")
        return [3, 4]

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(numActiveTasks=self.now) if stage == 3 else None  # it ended meanwhile

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def interruptTag(self, tag: str) -> None:
        self.cancelled.append(tag)
        self.cancellations.pop(0)()

    def done(self) -> None:
        self.ended.set()

    def wait(self) -> list[str]:
        """An action that ends when its job is cancelled."""
        assert self.ended.wait(WAIT_S)
        raise RuntimeError("cancelled")

    def wait_for_looks(self) -> list[str]:
        """An action that takes as long as `running` tells."""
        assert self.looked.wait(WAIT_S)
        return ["row"]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSession]:
    made = FakeSession()
    monkeypatch.setattr(job, "POLL_S", 0.01)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: made.seconds))
    monkeypatch.setattr(job, "in_inheriting_thread", lambda spark, target: target)
    yield made
    made.ended.set()


def run(session: Any, collect: Callable[[], list[Any]], launch_timeout_s: float = 3.0) -> list[Any]:
    return run_job(session, collect, launch_timeout_s=launch_timeout_s, waiting_for="4 free slots")


def still_cancelling() -> bool:
    """Whether a thread still cancels, after those that are about to end."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not any(thread.name == "sparktrain-cancel" for thread in threading.enumerate()):
            return False
        time.sleep(0.01)
    return True


def test_rows_come_back(session: FakeSession) -> None:
    assert run(session, lambda: ["row", "other"]) == ["row", "other"]
    assert session.cancelled == []


def test_the_action_runs_in_a_thread_of_its_own_under_a_tag_of_its_own(session: FakeSession) -> None:
    def collect() -> list[Any]:
        return [threading.current_thread(), *session.tags]

    (thread, first), (_, _, second) = run(session, collect), run(session, collect)
    assert thread is not threading.current_thread()
    assert first.startswith("sparktrain-")
    assert first != second


def test_the_action_s_error_is_raised_again(session: FakeSession) -> None:
    error = ValueError("Job aborted")

    def collect() -> list[Any]:
        raise error

    with pytest.raises(ValueError, match="Job aborted") as caught:
        run(session, collect)
    assert caught.value is error
    assert session.cancelled == []


# The launch deadline


def test_a_job_that_never_starts_is_a_timeout_that_names_its_setting(session: FakeSession) -> None:
    with pytest.raises(GangTimeout, match=r"run nothing for 3 s \(launch_timeout_s\) .* waits for 4 free slots"):
        run(session, session.wait)
    assert session.seconds == 4
    assert session.cancelled == session.tags
    assert not still_cancelling()


@pytest.mark.parametrize("number", [1, None], ids=["running", "unknown"])
def test_the_clock_starts_anew_while_tasks_run(session: FakeSession, number: int | None) -> None:
    session.running = [0, 0, 0, number, 0, 0, number, 0]
    with pytest.raises(GangTimeout):
        run(session, session.wait)
    assert session.seconds == 7 + 4


@pytest.mark.parametrize("number", [1, None], ids=["running", "unknown"])
def test_tasks_that_run_have_no_deadline(session: FakeSession, number: int | None) -> None:
    session.running = [number] * 20
    assert run(session, session.wait_for_looks) == ["row"]


# Cancelling


def test_a_caller_waits_for_the_cancelled_job_s_end(session: FakeSession) -> None:
    """Spark may answer late: nothing of the job is left when the error is raised."""
    ended: list[bool] = []

    def collect() -> list[Any]:
        session.ended.wait(WAIT_S)
        time.sleep(0.2)
        ended.append(True)
        return []

    with pytest.raises(GangTimeout):
        run(session, collect)
    assert ended == [True]


def test_a_job_that_spark_still_queues_is_cancelled_until_it_ends(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise RuntimeError("the session is being stopped")

    session.cancellations = [lambda: None, stopped, session.done]
    monkeypatch.setattr(job, "CANCEL_WAIT_S", 0.05)
    with pytest.raises(GangTimeout):
        run(session, session.wait)
    assert not session.ended.is_set(), "the caller does not wait for ever"
    assert session.ended.wait(WAIT_S)
    assert not still_cancelling()
    assert session.cancelled == session.tags * 3


def test_cancelling_is_given_up_in_the_end(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session.cancellations = [lambda: setattr(session, "seconds", session.seconds + job.ABANDON_S)]
    monkeypatch.setattr(job, "CANCEL_WAIT_S", 0.05)
    with pytest.raises(GangTimeout):
        run(session, session.wait)
    assert not still_cancelling()
    assert session.cancelled == session.tags


def test_an_interrupt_of_the_caller_cancels(session: FakeSession) -> None:
    session.running = [1, 1]

    def collect() -> list[Any]:
        session.looked.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)
        return session.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(session, collect)
    finally:
        signal.signal(signal.SIGINT, before)
    assert session.ended.is_set()
    assert session.cancelled == session.tags
    assert not still_cancelling()


# Spark Connect


class FakeConnect:
    """The part of a Connect session that progress reports come from."""

    def __init__(self) -> None:
        self.handlers: list[Callable[..., None]] = []
        self.registerProgressHandler, self.removeProgressHandler = self.handlers.append, self.handlers.remove


FakeConnect.__module__ = "pyspark.sql.connect.session"


def test_running_tasks_on_connect_come_from_progress_reports() -> None:
    session: Any = FakeConnect()
    with RunningTasks(session) as running_tasks:
        (handler,) = session.handlers
        assert running_tasks() is None, "nothing was reported yet"
        handler(stages=[], inflight_tasks=3, operation_id="a", done=False)
        handler(stages=[], inflight_tasks=2, operation_id="b", done=False)
        assert running_tasks() == 5
        handler(stages=[], inflight_tasks=3, operation_id="a", done=True)
        assert running_tasks() == 2
        handler(stages=[], inflight_tasks=0, operation_id="b", done=False)
        assert running_tasks() == 0
    assert session.handlers == []

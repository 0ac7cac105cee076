"""Real worker processes: every way they can end, and that nothing of them stays behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import psutil
import pytest

from sparktrain.errors import DataError, GangTimeout, RankFailed
from sparktrain.gang.failure import RankReport, ReportedFailure, find_report
from sparktrain.gang.process import WorkerProcess
from tests.gang import tiny_trainer
from tests.gang.tiny_task import VIEW, WAIT_S, job_of

GONE_S = 5.0


@pytest.fixture
def result_fd() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


@pytest.fixture
def worker(result_fd: int) -> Iterator[WorkerProcess]:
    with WorkerProcess(VIEW, tiny_trainer.__name__, [result_fd]) as started:
        started.wait_ready(WAIT_S)
        yield started


class StopWatching(Exception):
    """Raised by an event handler to leave `run` with the worker still at work."""


def failure_of(worker: WorkerProcess, function: str, result_fd: int) -> RankReport:
    with pytest.raises(ReportedFailure) as caught:
        worker.run(job_of(function, result_fd), lambda event: None)
    report = find_report(str(caught.value))
    assert report is not None
    return report


def run_until_pids(worker: WorkerProcess, function: str, result_fd: int) -> list[int]:
    """Process ids of the worker, its child and its guard, which are all alive."""
    told: list[int] = []

    def stop(event: dict[str, Any]) -> None:
        told.extend(event["pids"])
        raise StopWatching

    with pytest.raises(StopWatching):
        worker.run(job_of(function, result_fd), stop)
    return with_guard(told[0])


def with_guard(worker: int) -> list[int]:
    pids = [worker, *(child.pid for child in psutil.Process(worker).children(recursive=True))]
    assert len(pids) == 3, "worker, its child and its guard"
    return pids


def alive(pid: int) -> bool:
    """Whether it runs: one that waits to be reaped by an init process does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def left_after(pids: list[int], timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill_all(pids: list[int]) -> None:
    """Leave nothing behind when a test has failed."""
    for pid in filter(alive, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# How a worker ends


def test_a_normal_finish(worker: WorkerProcess, result_fd: int) -> None:
    events: list[dict[str, Any]] = []
    info = worker.run(job_of("finish", result_fd, greeting="hello"), events.append)
    assert info == {"rank": 0, "rows": 5, "payload": "hello"}
    assert events == [{"kind": "progress", "step": 1}, {"kind": "progress", "step": 2}]
    assert os.pread(result_fd, 100, 0) == b"weights"


def test_an_exception_brings_its_traceback_and_the_log_s_tail(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "fail", result_fd)
    assert (report.rank, report.world_size, report.host, report.cause) == (0, 1, "127.0.0.1", "error")
    assert (report.error_type, report.message) == ("ValueError", "bad batch")
    assert 'raise ValueError("bad batch")' in report.traceback
    assert report.log_tail.splitlines() == ["last words on stdout", "last words on stderr"]


def test_an_own_error_stays_one(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "fail_with_own_error", result_fd)
    assert (report.cause, report.error_type, report.message) == ("error", "DataError", "column 'y': 3 null rows")
    assert type(report.to_error()) is DataError


def test_a_user_s_error_of_the_same_name_is_a_failed_rank(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "fail_with_a_namesake", result_fd)
    assert (report.error_type, report.own) == ("DataError", False)
    error = report.to_error()
    assert type(error) is RankFailed
    assert "in fail_with_a_namesake" in error.traceback


def test_a_user_s_end_of_file_is_no_lost_task(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "meet_the_end_of_a_file", result_fd)
    assert (report.cause, report.error_type) == ("error", "EOFError")
    assert "in meet_the_end_of_a_file" in report.traceback


def test_a_peer_s_end_is_told_apart(worker: WorkerProcess, result_fd: int) -> None:
    assert failure_of(worker, "lose_a_peer", result_fd).cause == "peer"


def test_a_worker_that_was_killed_is_lost_and_names_the_signal(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "shoot_itself", result_fd)
    assert (report.cause, report.traceback) == ("lost", "")
    assert "was killed by SIGKILL" in report.message
    assert "out-of-memory killer" in report.message
    assert report.log_tail == "shooting\n"


def test_a_worker_that_died_before_its_job_is_lost(worker: WorkerProcess, result_fd: int) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker._process.wait(WAIT_S)
    report = failure_of(worker, "finish", result_fd)
    assert report.cause == "lost"
    assert "was killed by SIGKILL" in report.message


def test_a_worker_that_exits_tells_its_status(worker: WorkerProcess, result_fd: int) -> None:
    report = failure_of(worker, "leave", result_fd)
    assert (report.cause, report.message) == ("lost", "the worker process ended with exit status 3")
    assert report.log_tail == "leaving\n"


def test_an_import_that_fails_is_reported() -> None:
    with WorkerProcess(VIEW, "tests.gang.no_such_trainer", []) as worker, pytest.raises(ReportedFailure) as caught:
        worker.wait_ready(WAIT_S)
    report = find_report(str(caught.value))
    assert report is not None
    assert (report.cause, report.error_type) == ("error", "ModuleNotFoundError")
    assert "no_such_trainer" in report.message


def test_an_import_that_takes_too_long_names_its_setting() -> None:
    with WorkerProcess(VIEW, tiny_trainer.__name__, []) as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(GangTimeout, match=r"rank 0: .* not ready within 0 s \(rendezvous_timeout_s\)"):
            worker.wait_ready(0.0)


# What a worker finds around itself


def test_the_worker_s_surroundings(result_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "hush")
    with tempfile.TemporaryFile() as mine:
        os.set_inheritable(mine.fileno(), True)
        with WorkerProcess(VIEW, tiny_trainer.__name__, [result_fd]) as worker:
            worker.wait_ready(WAIT_S)
            found = worker.run(job_of("environment", result_fd), lambda event: None)
        assert os.fstat(result_fd).st_ino in found["open files"]
        assert os.fstat(mine.fileno()).st_ino not in found["open files"]
    assert found["leads its group"]
    assert found["cwd"] == os.getcwd()
    assert set(filter(None, sys.path)) <= set(found["sys.path"]), "it finds what the task finds"
    environ = found["environ"]
    assert (environ["OMP_NUM_THREADS"], environ["RANK"], environ["WORLD_SIZE"]) == ("2", "0", "1")
    assert "hush" not in environ.values()


# What is left of it


@pytest.mark.parametrize("function", ["sleep", "sleep_in_c"])
def test_close_ends_all_that_the_worker_started(worker: WorkerProcess, result_fd: int, function: str) -> None:
    pids = run_until_pids(worker, function, result_fd)
    worker.close()
    assert not left_after(pids, GONE_S)


def test_close_after_a_normal_finish(worker: WorkerProcess, result_fd: int) -> None:
    worker.run(job_of("finish", result_fd, greeting=""), lambda event: None)
    pids = [worker.pid, *(child.pid for child in psutil.Process(worker.pid).children())]
    worker.close()
    assert not left_after(pids, GONE_S)


def test_what_a_killed_worker_started_ends_by_itself(worker: WorkerProcess, result_fd: int) -> None:
    pids = run_until_pids(worker, "sleep", result_fd)
    os.kill(worker.pid, signal.SIGKILL)
    worker._process.wait(WAIT_S)
    assert not left_after(pids, GONE_S)


def test_descriptors_are_closed(result_fd: int) -> None:
    before = tiny_trainer.open_inodes()
    with WorkerProcess(VIEW, tiny_trainer.__name__, [result_fd]) as worker:
        worker.wait_ready(WAIT_S)
        worker.run(job_of("finish", result_fd, greeting=""), lambda event: None)
    assert worker._process.stdout is not None
    assert worker._process.stdout.closed
    assert tiny_trainer.open_inodes() <= before


@contextlib.contextmanager
def task_of(*command: str) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A command that runs `tiny_task`; the task's process id; those of the worker, its child and its guard."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    )
    pids = [started.pid]
    with started:
        try:
            assert started.stdout is not None
            assert wait([started.stdout], WAIT_S), "the task told no process ids"
            task, worker, child = json.loads(started.stdout.readline())
            pids += [task, worker, child]
            yield started, task, with_guard(worker)
        finally:
            kill_all(pids)


@pytest.mark.parametrize("function", ["sleep", "sleep_in_c"])
def test_a_killed_task_leaves_no_process(function: str) -> None:
    """Spark ends a cancelled task with SIGKILL: nothing runs there to clean up."""
    with task_of(sys.executable, "-m", "tests.gang.tiny_task", function) as (started, task, pids):
        os.kill(task, signal.SIGKILL)
        started.wait(WAIT_S)
        assert not left_after(pids, GONE_S)


def test_a_task_whose_parent_was_killed_leaves_no_process() -> None:
    """Spark's Python daemon or the JVM died: the task still runs, for nobody."""
    command = [sys.executable, "-m", "tests.gang.tiny_task", "sleep"]
    with task_of("sh", "-c", '"$@" & wait', "sh", *command) as (started, task, pids):
        assert task != started.pid
        started.kill()
        started.wait(WAIT_S)
        assert not left_after([task, *pids], GONE_S)


def test_a_second_close_touches_nothing_that_is_another_s_by_now() -> None:
    with tempfile.TemporaryFile() as result:
        worker = WorkerProcess(VIEW, tiny_trainer.__name__, [result.fileno()])
        worker.wait_ready(WAIT_S)
        worker.close()
        ends = [os.pipe() for _ in range(8)]  # they get the numbers that are free now
        worker.close()
        for pair in ends:
            for fd in pair:
                os.fstat(fd)
                os.close(fd)

"""A task's hold on its worker process: start it, hand it its job, watch it, end it."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import IO, Any

from sparktrain.errors import GangTimeout
from sparktrain.gang.failure import Cause, RankReport, ReportedFailure
from sparktrain.gang.log import RankLog
from sparktrain.gang.rendezvous import BarrierView
from sparktrain.gang.resources import worker_environment
from sparktrain.gang.spec import WorkerJob
from sparktrain.shards.disk import local_directory

LOG_LINES = 50
TICK_S = 1.0
EXIT_S = 5.0
REPORT_S = 3.0


class WorkerProcess:
    """One rank's worker, in a session and process group of its own.

    Parameters
    ----------
    barrier : BarrierView
        The task's place in the gang.
    preload : str
        Module the worker imports while the task spools.
    fds : sequence of int
        File descriptors it inherits: spool files, result file, listening socket.
    on_line : callable or None
        Takes each line that it prints; None: they go to this process's stderr.
    """

    def __init__(
        self, barrier: BarrierView, preload: str, fds: Sequence[int], on_line: Callable[[str], None] | None = None
    ) -> None:
        self._barrier = barrier
        self._parent = os.getppid()
        self._closed = False
        self._on_line = on_line or RankLog(barrier.rank).write
        self._log: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        self._scratch = os.path.join(local_directory(), f"sparktrain-{uuid.uuid4().hex}")
        self._control, control_end = multiprocessing.Pipe(duplex=True)
        lifeline_end, self._lifeline = os.pipe()
        inherited = (*fds, control_end.fileno(), lifeline_end)
        self.environment = worker_environment(
            os.environ,
            gpus=barrier.gpus,
            task_cpus=barrier.cpus,
            python_path=os.pathsep.join(path or os.getcwd() for path in sys.path),
        )
        command = [sys.executable, "-P", "-m", "sparktrain.gang.worker"]
        try:
            self._process = subprocess.Popen(
                [*command, str(control_end.fileno()), str(lifeline_end), self._scratch, preload],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,
                env=self.environment,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            control_end.close()
            os.close(lifeline_end)
        assert self._process.stdout is not None
        self._log_reader = threading.Thread(target=self._read_log, args=(self._process.stdout,), daemon=True)
        self._log_reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the worker has imported its trainer."""
        if not self._control.poll(timeout_s):
            raise GangTimeout(
                f"rank {self._barrier.rank}: the worker process was not ready within {timeout_s:g} s "
                f"(rendezvous_timeout_s). Its last log lines:\n{self._log_tail()}"
            )
        self._event(self._control)

    def run(
        self, job: WorkerJob, on_event: Callable[[dict[str, Any]], object], check: Callable[[], None] = lambda: None
    ) -> Any:
        """Hand over the job and relay events until the worker is done; returns the trainer's result.

        Parameters
        ----------
        job : WorkerJob
        on_event : callable
        check : callable
            Called about once a second; may raise.

        Raises
        ------
        ReportedFailure
            The worker raised, or its process ended.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died meanwhile; told below
            self._control.send(job)
        checked = time.monotonic()
        while True:
            came = wait([self._control], TICK_S)
            if time.monotonic() - checked >= TICK_S:
                checked = time.monotonic()
                self._check_parent()
                check()
            if not came:
                continue
            event = self._event(self._control)
            if event["kind"] == "done":
                return event["info"]
            on_event(event)

    def _event(self, control: Connection) -> dict[str, Any]:
        try:
            event: dict[str, Any] = control.recv()
        except (EOFError, ConnectionResetError):
            raise ReportedFailure(self._lost()) from None
        if event["kind"] == "failed":
            self._log_reader.join(0.2)  # lines on their way
            raise ReportedFailure(
                self._report(event["cause"], event["error_type"], event["message"], event["traceback"], event["own"])
            )
        return event

    def _lost(self) -> RankReport:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        self._log_reader.join(1.0)
        code = self._process.returncode
        cause: Cause = "lost"
        if code is not None and code < 0:
            if -code == signal.SIGABRT:
                cause = "peer"  # how gloo's threads end a process whose peer has gone; if not, it is told all the same
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += (
                    " (if nobody did: the out-of-memory killer; lower batch_size where there is one, or give executors "
                    "more memory)"
                )
        else:
            how = f"ended with exit status {code}"
        return self._report(cause, "WorkerLost", f"the worker process {how}", "")

    def _report(self, cause: Cause, error_type: str, message: str, traceback: str, own: bool = False) -> RankReport:
        rank = self._barrier.rank
        host = self._barrier.hosts[rank]
        return RankReport(
            rank, len(self._barrier.hosts), host, cause, error_type, message, traceback, self._log_tail(), own
        )

    def _check_parent(self) -> None:
        """Spark's daemon (or JVM) that started this task is gone: nobody is left to work for."""
        if os.getppid() != self._parent:
            self.close()
            os._exit(1)

    def _read_log(self, pipe: IO[bytes]) -> None:
        with pipe, contextlib.suppress(ValueError, OSError):
            for line in pipe:
                text = line.decode(errors="replace")
                self._log.append(text)
                self._on_line(text)

    def _log_tail(self) -> str:
        return "".join(self._log)

    def close(self) -> None:
        """End the worker and all it started; returns when the process is reaped. Again: nothing."""
        if self._closed:  # its numbers, of process and pipe, may be another's by now
            return
        self._closed = True
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self._lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._control.close()
        self._log_reader.join(1.0)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a failure the worker, and so its connections, outlives this task's report by a little.

        Its peers would else meet a closed connection, and could report that before this rank's own error
        has reached Spark. Spark's Python worker exits after the report, which ends this one too; the timer
        is for callers that live on.
        """
        if error is None:
            self.close()
            return
        later = threading.Timer(REPORT_S, self.close)
        later.daemon = True
        later.start()

"""The worker process: opens the shard, trains, reports; started by `sparktrain.gang.process`.

Run as ``python -m sparktrain.gang.worker CONTROL_FD LIFELINE_FD SCRATCH PRELOAD``. It imports the trainer while
its task still spools, then waits for its `WorkerJob`.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from sparktrain.errors import SparktrainError
from sparktrain.gang import guard
from sparktrain.gang.spec import Gang, WorkerJob

Event = dict[str, Any]
LINGER_S = 60.0
"""A failed worker keeps its connections open until its task has reported, at most so long."""


@dataclass(frozen=True)
class WorkerContext:
    """What a trainer function gets.

    Parameters
    ----------
    gang : Gang
    job : WorkerJob
    emit : callable
        Sends an event (a dict of plain values) towards the driver.
    scratch : str
        A directory on the executor's disk for files that need a name; not made yet, removed with the worker.
    """

    gang: Gang
    job: WorkerJob
    emit: Callable[[Event], None]
    scratch: str = ""

    @property
    def payload(self) -> Mapping[str, Any]:
        return self.job.payload


def main() -> None:
    control_fd, lifeline_fd, scratch, preload = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    guard.start(lifeline_fd, scratch)
    os.close(lifeline_fd)
    faulthandler.enable()
    control = Connection(control_fd)
    sending = threading.Lock()

    def emit(event: Event) -> None:
        with sending:
            control.send(event)

    try:
        importlib.import_module(preload)
        emit({"kind": "ready"})
        emit({"kind": "done", "info": _run(_receive(control), emit, scratch)})
    except _TaskGoneError:
        _end(1)
    except BaseException as error:
        emit(_failure(error))
    if control.poll(LINGER_S):
        control.recv_bytes()


class _TaskGoneError(Exception):
    """The task ended before it handed over a job; the guard ends this process as well."""


def _receive(control: Connection) -> WorkerJob:
    try:
        job: WorkerJob = control.recv()
    except (EOFError, ConnectionResetError):
        raise _TaskGoneError from None
    return job


def _run(job: WorkerJob, emit: Callable[[Event], None], scratch: str) -> Any:
    from sparktrain import backends

    os.environ.update(job.environment)
    backend = backends.load(job.backend)
    backend.prepare(job.gang)
    module, _, function = job.trainer.partition(":")
    train = getattr(importlib.import_module(module), function)
    info = train(WorkerContext(job.gang, job, emit, scratch))
    backend.leave()
    return info


def _failure(error: BaseException) -> Event:
    from sparktrain.gang.failure import is_peer_loss

    frames = traceback.TracebackException.from_exception(error)
    return {
        "kind": "failed",
        "cause": "peer" if is_peer_loss(error) else "error",
        "error_type": type(error).__name__,
        "own": isinstance(error, SparktrainError),
        "message": "; ".join([str(error), *getattr(error, "__notes__", ())]),
        "traceback": "".join(frames.format()),
    }


def _end(status: int) -> None:
    """End without running destructors: those of frameworks' communicators may wait for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the task is gone; the guard does the rest
        _end(1)
    _end(0)

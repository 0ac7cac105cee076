"""Plays a barrier task: ``python -m tests.gang.tiny_task FUNCTION`` runs a worker and prints process ids."""

import json
import os
import sys
import tempfile
from typing import Any

from sparktrain.gang.process import WorkerProcess
from sparktrain.gang.rendezvous import BarrierView
from sparktrain.gang.spec import Gang, WorkerJob
from tests.gang import tiny_trainer

WAIT_S = 60.0
HOSTS = ("127.0.0.1",)
VIEW = BarrierView(0, HOSTS, lambda text: [text], cpus=2)


def job_of(function: str, result_fd: int, **payload: Any) -> WorkerJob:
    """A job without a shard for a function of `tiny_trainer`."""
    return WorkerJob(
        gang=Gang(0, HOSTS, ("127.0.0.1", 1)),
        trainer=f"{tiny_trainer.__name__}:{function}",
        backend="native",
        payload=payload,
        payload_path=None,
        tensors=(),
        tensor_fds=(),
        rows=5,
        result_fd=result_fd,
        listen_fd=None,
    )


def main(function: str) -> None:
    with tempfile.TemporaryFile() as result, WorkerProcess(VIEW, tiny_trainer.__name__, [result.fileno()]) as worker:
        worker.wait_ready(WAIT_S)
        worker.run(
            job_of(function, result.fileno()),
            lambda event: print(json.dumps([os.getpid(), *event["pids"]]), flush=True),
        )


if __name__ == "__main__":
    main(sys.argv[1])

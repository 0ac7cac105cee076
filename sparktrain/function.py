"""What a worker runs for `sparktrain.run`: the user's function or script, in the environment that frameworks read."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from sparktrain import backends, current
from sparktrain.gang import sockets
from sparktrain.gang.worker import WorkerContext
from sparktrain.shards.reader import open_shard
from sparktrain.shards.rows import Rows


@dataclass(frozen=True)
class Script:
    """A Python file, to run as the main program.

    Parameters
    ----------
    name : str
        Of the file.
    code : bytes
    arguments : tuple of str
    """

    name: str
    code: bytes
    arguments: tuple[str, ...]

    def run(self, directory: str) -> None:
        """Run it from a copy in `directory`, which is first on the path, as Python has it.

        Raises
        ------
        RuntimeError
            Where it has ended with an exit status other than 0.
        """
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, self.name)
        with open(path, "wb") as file:
            file.write(self.code)
        sys.argv[:] = [path, *self.arguments]
        sys.path.insert(0, directory)
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"{self.name} has ended with exit status {end.code}") from None


@dataclass(frozen=True)
class Call:
    """A function, and what it is called with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


def call(context: WorkerContext) -> None:
    """The worker's entry: what the function returns goes, pickled, into this rank's result file."""
    job, gang = context.job, context.gang
    with sockets.join(gang, job.listen_fd) as peers:
        os.environ.update(backends.load(job.backend).environment(gang, peers))
        shard = None
        if context.payload["reads"]:
            shard = Rows(open_shard(job.tensors, job.tensor_fds, job.rows), peers.gather(job.rows))
        run_url = context.payload["run_url"]
        current.enter(
            current.CurrentGang(gang.rank, gang.hosts, gang.device, job.backend, shard, run_url, context.scratch)
        )
        result = _result(_work(context), context.scratch)
        with os.fdopen(os.dup(job.result_fd), "wb") as file:
            _dump(result, file, gang.rank)
        peers.wait()  # another rank may hold what this one's peers still talk to


def _work(context: WorkerContext) -> Script | Call:
    if context.job.payload_path is not None:
        with open(context.job.payload_path, "rb") as file:
            found = pickle.load(file)
    else:
        found = pickle.loads(context.payload["work"])
    assert isinstance(found, (Script, Call))
    return found


def _result(work: Script | Call, scratch: str) -> Any:
    if isinstance(work, Script):
        return work.run(scratch)
    try:
        return work.function(*work.arguments, **work.keywords)
    except SystemExit as end:
        if end.code in (None, 0):  # as a script may end
            return None
        raise


def _dump(result: Any, file: Any, rank: int) -> None:
    try:
        cloudpickle.dump(result, file)
    except Exception as error:
        error.add_note(
            f"what the function returned on rank {rank}, a {type(result).__name__}, can't be pickled: return plain "
            "values, arrays or a state_dict"
        )
        raise

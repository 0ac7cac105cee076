"""`backend="mpi"`: real `mpirun` jobs inside the barrier gang, what MPI's users call, and every part killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from sparktrain import current_gang, run
from sparktrain.errors import GangError, RankFailed
from tests.backends import horovod, mpi
from tests.integration.leftovers import command, held, running, wait_until

pytestmark = [pytest.mark.integration, mpi]
PARTS = (
    "sparktrain.gang.worker",
    "sparktrain.gang.guarded",
    "sparktrain.backends.mpi_agent",
    "sparktrain.backends.mpi_seat",
    "mpirun",
    "orted",
)


def nothing_left() -> bool:
    return wait_until(lambda: not running(*PARTS), 5)


def every_operation() -> dict[str, Any]:
    """As in mpi4py's tutorial."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    ring = np.empty(3)
    world.Sendrecv(np.full(3, float(rank)), dest=(rank + 1) % size, recvbuf=ring, source=(rank - 1) % size)
    if rank == 0:
        world.Send(np.arange(1_000_000.0), dest=1, tag=7)
    received = np.empty(1_000_000)
    if rank == 1:
        world.Recv(received, source=0, tag=7)
    told = world.bcast({"answer": 42} if rank == 0 else None, root=0)
    part = np.empty(2)
    world.Scatter(np.arange(2.0 * size) if rank == 0 else None, part, root=0)
    gathered = np.empty((size, 2)) if rank == 0 else None
    world.Gather(part, gathered, root=0)
    total = np.zeros(2)
    world.Reduce(part, total, op=MPI.SUM, root=0)
    everywhere = np.empty(2)
    world.Allreduce(part, everywhere)
    return {
        "rank": rank,
        "ranks agree": rank == current_gang().rank and size == current_gang().world_size,
        "ring": ring.tolist(),
        "received": float(received.sum()) if rank == 1 else None,
        "told": told,
        "part": part.tolist(),
        "gathered": None if gathered is None else gathered.tolist(),
        "total": total.tolist() if rank == 0 else None,
        "everywhere": everywhere.tolist(),
        "on this host": world.Split_type(MPI.COMM_TYPE_SHARED).Get_size(),
    }


def test_what_mpi4py_s_users_call(spark: SparkSession) -> None:
    found = run(every_operation, num_proc=3, backend="mpi", verbose=0)
    for rank, one in enumerate(found):
        assert one["rank"] == rank
        assert one["ranks agree"]
        assert one["ring"] == [float((rank - 1) % 3)] * 3
        assert one["told"] == {"answer": 42}
        assert one["part"] == [2.0 * rank, 2.0 * rank + 1]
        assert one["everywhere"] == [6.0, 9.0]
        assert one["on this host"] == 3
    assert found[0]["gathered"] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert found[0]["total"] == [6.0, 9.0]
    assert found[1]["received"] == 499_999_500_000.0
    assert nothing_left()


def test_a_function_without_mpi_and_one_that_finalizes_itself(spark: SparkSession) -> None:
    def finalizes() -> int:
        from mpi4py import MPI

        rank = int(MPI.COMM_WORLD.Get_rank())
        MPI.Finalize()
        return rank

    before = held()
    assert run(lambda: current_gang().rank, num_proc=2, backend="mpi", verbose=0) == [0, 1]
    assert run(finalizes, num_proc=2, backend="mpi", verbose=0) == [0, 1]
    assert nothing_left()
    assert wait_until(lambda: held() <= before, 5)


def busy(directory: str) -> None:
    """Joins MPI, says so, and then exchanges messages without end."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Barrier()
    Path(directory, f"{world.Get_rank()} {os.getpid()}").touch()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        world.allreduce(1)
        time.sleep(0.01)


def fails_after(kill: Callable[[list[int]], None], directory: Path) -> str:
    """The error of a busy gang to whose worker processes `kill` was done; within 20 s, and without leftovers."""
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(run, busy, (str(directory),), num_proc=2, backend="mpi", verbose=0)
        assert wait_until(lambda: len(list(directory.iterdir())) == 2 or fit.done(), 60)
        names = sorted(one.name.split() for one in directory.iterdir())
        started = time.monotonic()
        kill([int(pid) for _, pid in names])
        with pytest.raises((RankFailed, GangError)) as told:
            fit.result(60)
        assert time.monotonic() - started < 20
    assert nothing_left()
    return str(told.value)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named(spark: SparkSession, tmp_path: Path, rank: int) -> None:
    error = fails_after(lambda pids: os.kill(pids[rank], signal.SIGKILL), tmp_path)
    assert f"rank {rank} of 2 failed" in error
    assert "SIGKILL" in error


def program(name: str) -> psutil.Process:
    """The one that is of this name itself."""
    (process,) = (one for one in running(name) if os.path.basename(command(one)[0]) == name)
    return process


def seats(daemon: psutil.Process) -> list[psutil.Process]:
    """Of its ranks; the daemon has a guard beside them, and mpirun names them in its command line."""
    found = [one for one in daemon.children() if "sparktrain.backends.mpi_seat" in command(one)]
    assert len(found) == 2
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["mpirun", "orted"])
def test_a_killed_part_of_open_mpi_is_named(spark: SparkSession, tmp_path: Path, part: str) -> None:
    def kill(pids: list[int]) -> None:
        program(part).kill()

    error = fails_after(kill, tmp_path)
    assert f"{part} was killed by SIGKILL while the gang was at work" in error
    assert "rank 0" in error


@pytest.mark.slow
def test_a_kill_is_named_that_is_seen_after_what_follows_from_it(spark: SparkSession, tmp_path: Path) -> None:
    def kill(pids: list[int]) -> None:
        daemon = program("orted")
        daemon.suspend()
        for seat in seats(daemon):
            seat.kill()
        time.sleep(0.3)
        daemon.kill()

    assert "orted was killed by SIGKILL while the gang was at work" in fails_after(kill, tmp_path)


@pytest.mark.slow
def test_a_killed_seat_ends_the_gang(spark: SparkSession, tmp_path: Path) -> None:
    def kill(pids: list[int]) -> None:
        seats(program("orted"))[0].kill()

    assert "rank" in fails_after(kill, tmp_path)


def test_the_rank_that_raises_speaks_first(spark: SparkSession) -> None:
    def work() -> None:
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 1:
            raise KeyError("no such thing")
        MPI.COMM_WORLD.Barrier()

    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed.*KeyError: 'no such thing'"):
        run(work, num_proc=2, backend="mpi", verbose=0)
    assert nothing_left()


@pytest.mark.slow
def test_an_abort_ends_the_gang(spark: SparkSession) -> None:
    def work() -> None:
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 1:
            MPI.COMM_WORLD.Abort(3)
        MPI.COMM_WORLD.Barrier()

    started = time.monotonic()
    with pytest.raises((RankFailed, GangError), match="rank 1"):
        run(work, num_proc=2, backend="mpi", verbose=0)
    assert time.monotonic() - started < 40
    assert nothing_left()


def horovod_script() -> tuple[int, float]:
    """As a script for `horovodrun` has it; nothing in it knows by what the ranks were started."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(hvd.rank() + step))).square().mean().backward()
        optimizer.step()
    return hvd.size(), float(sum(one.sum() for one in model.parameters()))


@horovod
@pytest.mark.parametrize("backend", ["horovod", "mpi"])
def test_a_horovod_script_runs_unchanged(spark: SparkSession, backend: str) -> None:
    found = run(horovod_script, num_proc=2, backend=backend, verbose=0)
    assert [size for size, _ in found] == [2, 2]
    assert found[0][1] == found[1][1]
    assert nothing_left()

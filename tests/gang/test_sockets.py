"""A collective of arrays: sums of every size are right and the same on all ranks, and nobody waits for the dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
import pytest

from sparktrain.gang import ring, sockets
from sparktrain.gang.sockets import Sockets
from sparktrain.gang.spec import Gang

WAIT_S = 30.0
T = TypeVar("T")


def on_ranks(world: int, work: Callable[[Sockets], T], timeout_s: float = WAIT_S) -> list[T]:
    """What `work` returns on each rank, all of them at once in threads of this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(world) as pool:
        endpoint = "127.0.0.1", listener.getsockname()[1]

        def run(rank: int) -> T:
            gang = Gang(rank, ("127.0.0.1",) * world, endpoint, "cpu", timeout_s, "0f" * 32)
            with sockets.join(gang, os.dup(listener.fileno()) if rank == 0 else None) as peers:
                return work(peers)

        return [one.result(WAIT_S) for one in [pool.submit(run, rank) for rank in range(world)]]


def values_of(rank: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 300_001])  # the last one goes round the ring
def test_all_ranks_get_the_same_bits_of_the_sum(world: int, size: int) -> None:
    found = on_ranks(world, lambda peers: peers.sum(values_of(peers.rank, size)))
    expected = sum(values_of(rank, size).astype(np.float64) for rank in range(world))
    for one in found:
        np.testing.assert_array_equal(one, found[0])
        np.testing.assert_allclose(one, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_keep_shape_and_dtype_and_repeat(dtype: str) -> None:
    def work(peers: Sockets) -> list[np.ndarray[Any, Any]]:
        return [peers.sum(np.full((3, 50_000), peers.rank + 1, dtype)) for _ in range(3)]

    for found in on_ranks(3, work):
        for one in found:
            assert one.shape == (3, 50_000)
            assert one.dtype == dtype
            assert (one == 6).all()


def test_a_ring_has_fewer_values_than_ranks() -> None:
    def work(peers: Sockets) -> np.ndarray[Any, Any]:
        around = ring.connect(peers._gang, peers.gather)
        values = np.array([1.0, 10.0])
        around.sum(values)
        around.close()
        return values

    for one in on_ranks(4, work):
        np.testing.assert_array_equal(one, [4.0, 40.0])


def test_bytes_of_any_length_are_gathered_in_rank_order() -> None:
    found = on_ranks(3, lambda peers: (peers.gather(-peers.rank), peers.gather_bytes(b"x" * (peers.rank * 1_000_000))))
    for numbers, texts in found:
        assert numbers == [0, -1, -2]
        assert [len(one) for one in texts] == [0, 1_000_000, 2_000_000]


def test_a_silent_neighbour_in_the_ring_is_told() -> None:
    ended: Future[None] = Future()

    def work(peers: Sockets) -> None:
        around = ring.connect(peers._gang, peers.gather)
        if peers.rank == 1:
            ended.result(WAIT_S)
            around.close()
            return
        with pytest.raises(ConnectionError, match=r"rank 1 has not taken part for 1 s \(collective_timeout_s\)"):
            around.sum(np.zeros(5_000_000))
        ended.set_result(None)
        around.close()

    on_ranks(2, work, timeout_s=1.0)


RANK = """
import os, sys
import numpy as np
from sparktrain.gang import sockets
from sparktrain.gang.spec import Gang
rank, port, fd = map(int, sys.argv[1:])
gang = Gang(rank, ("127.0.0.1",) * 3, ("127.0.0.1", port), "cpu", 60.0, "0f" * 32)
with sockets.join(gang, fd if rank == 0 else None) as peers:
    while True:
        peers.sum(np.ones(1_000_000))
        print("summed", flush=True)
"""


def test_a_killed_neighbour_in_the_ring_is_told_at_once() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port, fd = listener.getsockname()[1], listener.fileno()
        ranks = []
        for rank in range(3):
            command = [sys.executable, "-c", RANK, str(rank), str(port), str(fd)]
            made = subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ranks.append(stack.enter_context(made))
            stack.callback(made.kill)
        for one in ranks:
            assert one.stdout is not None
            assert one.stdout.readline() == "summed\n"
        ranks[1].kill()
        errors = [ranks[number].communicate(timeout=WAIT_S)[1] for number in (0, 2)]
    for error in errors:  # rank 1's neighbours are both of them
        assert "Connection closed by peer: rank" in error
    assert any("rank 1" in error for error in errors)

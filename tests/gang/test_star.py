"""Small messages between ranks: all arrive, strangers are turned away, a rank that goes or is silent is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sparktrain.gang.spec import Gang
from sparktrain.gang.star import Star, connect

WAIT_S = 20.0
SECRET = "0f" * 32


def gang_of(rank: int, world: int, *, secret: str = SECRET, timeout_s: float = WAIT_S) -> Gang:
    return Gang(rank, ("127.0.0.1",) * world, ("127.0.0.1", 1), "cpu", timeout_s, secret)


@contextlib.contextmanager
def connected(
    world: int, meanwhile: Callable[[int], None] = lambda port: None, timeout_s: float = WAIT_S
) -> Iterator[list[Star]]:
    """All ranks' stars; `meanwhile` is called with rank 0's port before the others come."""
    port: Future[int] = Future()

    def ask() -> int:
        found = port.result(WAIT_S)
        meanwhile(found)
        return found

    with ThreadPoolExecutor(world) as pool:
        made = [
            pool.submit(connect, gang_of(rank, world, timeout_s=timeout_s), port.set_result, ask)
            for rank in range(world)
        ]
        stars = [one.result(WAIT_S) for one in made]
    try:
        yield stars
    finally:
        for one in stars:
            one.close()


def test_rank_0_hears_all_in_rank_order_and_all_hear_it() -> None:
    with connected(4) as (first, *others):
        found = [bytearray(70_000) for _ in others]
        answers = [bytearray([rank]) * 70_000 for rank in (1, 2, 3)]

        def other(star: Star, data: bytearray) -> None:
            star.exchange(memoryview(data))

        threads = [threading.Thread(target=other, args=pair) for pair in zip(others, answers, strict=True)]
        for one in threads:
            one.start()
        first.collect([memoryview(one) for one in found])
        first.spread(memoryview(bytearray(b"x") * 70_000))
        for one in threads:
            one.join(WAIT_S)
        assert [set(one) for one in found] == [{1}, {2}, {3}]
        assert all(set(one) == {ord("x")} for one in answers)


def test_strangers_are_turned_away() -> None:
    kept: list[Any] = []

    def intrude(port: int) -> None:
        idle = socket.create_connection(("127.0.0.1", port), WAIT_S)
        garbage = socket.create_connection(("127.0.0.1", port), WAIT_S)
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        kept.extend([idle, garbage])
        with pytest.raises((ConnectionError, EOFError)):  # knows the way, and another run's secret
            connect(gang_of(1, 2, secret="aa" * 32), lambda port: None, lambda: port)

    with connected(2, intrude) as (first, second):
        sending = threading.Thread(target=second.exchange, args=(memoryview(bytearray(b"mine")),))
        sending.start()
        heard = bytearray(4)
        first.collect([memoryview(heard)])
        first.spread(memoryview(b"told"))
        sending.join(WAIT_S)
        assert heard == b"mine"
        for one in kept:
            one.close()


def test_a_rank_that_goes_is_told() -> None:
    with connected(2) as (first, second):
        second.close()
        with pytest.raises(ConnectionError, match="Connection closed by peer: rank 1"):
            first.collect([memoryview(bytearray(4))])


def test_a_silent_rank_is_told() -> None:
    with connected(2, timeout_s=0.5) as (first, second):
        with pytest.raises(ConnectionError, match=r"rank 1 has not taken part for 0.5 s \(collective_timeout_s\)"):
            first.collect([memoryview(bytearray(4))])
        with pytest.raises(ConnectionError, match="rank 0 has not taken part"):
            second.exchange(memoryview(bytearray(4)))


def test_ranks_that_do_not_come_are_told() -> None:
    with pytest.raises(ConnectionError, match=r"ranks \[1\] have not joined within 0.3 s"):
        connect(gang_of(0, 2, timeout_s=0.3), lambda port: None, lambda: 0)

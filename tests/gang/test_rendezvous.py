"""Cards through a barrier to one gang; sockets that listen on one address only."""

import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang.rendezvous import BarrierView, Card, host_of, listen, meet
from sparktrain.gang.spec import Gang
from sparktrain.shards.spool import SpoolReport

HOSTS = ("10.0.0.5", "10.0.0.6", "10.0.0.5")
WAIT_S = 30.0


def fake_all_gather(ranks: int) -> Callable[[int], Callable[[str], Sequence[str]]]:
    """What `BarrierTaskContext.allGather` does, between threads: rank -> that rank's function."""
    texts = [""] * ranks
    barrier = threading.Barrier(ranks)

    def of_rank(rank: int) -> Callable[[str], Sequence[str]]:
        def all_gather(text: str) -> Sequence[str]:
            texts[rank] = text
            barrier.wait(WAIT_S)
            return list(texts)

        return all_gather

    return of_rank


def meet_all(cards: Sequence[Card]) -> list[tuple[Gang, list[Card]]]:
    all_gather = fake_all_gather(len(cards))
    hosts = tuple(card.address for card in cards)
    with ThreadPoolExecutor(len(cards)) as pool:
        met = [
            pool.submit(meet, BarrierView(rank, hosts, all_gather(rank)), card, WAIT_S, 60.0)
            for rank, card in enumerate(cards)
        ]
        return [one.result(WAIT_S) for one in met]


def card_of(rank: int, device: str = "cpu") -> Card:
    shapes = ((3, 2), ()) if rank else (None, None)
    return Card(HOSTS[rank], 4040 if rank == 0 else 0, device, SpoolReport(rank * 10, shapes))


def test_all_ranks_get_the_same_gang_and_all_cards() -> None:
    met = meet_all([card_of(rank) for rank in range(3)])
    for rank, (gang, cards) in enumerate(met):
        assert gang == Gang(rank, HOSTS, ("10.0.0.5", 4040), "cpu", 60.0)
        assert cards == [card_of(rank) for rank in range(3)]
    gangs = [gang for gang, _ in met]
    assert [gang.world_size for gang in gangs] == [3, 3, 3]
    assert [gang.local_rank for gang in gangs] == [0, 0, 1]
    assert [gang.local_world_size for gang in gangs] == [2, 1, 2]


def test_mixed_devices_are_an_error_on_every_rank() -> None:
    all_gather = fake_all_gather(2)
    errors: list[str] = []

    def one(rank: int) -> None:
        with pytest.raises(GangError) as caught:
            meet(BarrierView(rank, HOSTS[:2], all_gather(rank)), card_of(rank, ["cuda", "cpu"][rank]), WAIT_S, 60.0)
        errors.append(str(caught.value))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(one, rank) for rank in range(2)]:
            future.result(WAIT_S)
    assert len(set(errors)) == 1
    assert "rank 0: cuda, rank 1: cpu" in errors[0]


def test_a_rank_that_never_comes_is_a_timeout_that_names_its_setting() -> None:
    released = threading.Event()

    def all_gather(text: str) -> Sequence[str]:
        released.wait(WAIT_S)
        return [text]

    try:
        with pytest.raises(GangTimeout, match=r"rank 1 waited 0\.01 s for all 3 ranks .* rendezvous_timeout_s"):
            meet(BarrierView(1, HOSTS, all_gather), card_of(1), 0.01, 60.0)
    finally:
        released.set()


def test_an_error_of_the_barrier_is_raised_as_it_is() -> None:
    def all_gather(text: str) -> Sequence[str]:
        raise RuntimeError("the stage was aborted")

    with pytest.raises(RuntimeError, match="the stage was aborted"):
        meet(BarrierView(0, HOSTS, all_gather), card_of(0), WAIT_S, 60.0)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.5:38401", "10.0.0.5"),
        ("executor-1.spark.svc:7079", "executor-1.spark.svc"),
        ("executor-1", "executor-1"),
        ("localhost", "localhost"),
        ("[::1]:38401", "::1"),
        ("[2001:db8::5]", "2001:db8::5"),
        ("2001:db8::5", "2001:db8::5"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_the_host_in_a_task_address(address: str, host: str) -> None:
    assert host_of(address) == host


def test_listening_on_one_ipv4_address() -> None:
    with listen("127.0.0.1") as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port), timeout=WAIT_S):
            pass
        if sys.platform == "linux":  # where all of 127.0.0.0/8 is this machine
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=WAIT_S)


def test_listening_on_one_ipv6_address() -> None:
    try:
        listener = listen("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        host, port, *_ = listener.getsockname()
        if host == "::":
            pytest.skip("no IPv6 loopback here")
        assert host == "::1"
        with socket.create_connection((host, port), timeout=WAIT_S):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def test_an_address_of_another_machine_falls_back_to_all_interfaces() -> None:
    """Behind NAT the name Spark knows a host by is none of its own addresses."""
    with listen("192.0.2.1") as listener:  # TEST-NET-1: nobody's
        assert listener.getsockname()[0] == "0.0.0.0"

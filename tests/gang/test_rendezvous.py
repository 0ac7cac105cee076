"""Cards through a barrier to one gang; sockets that listen on one address only."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang import rendezvous
from sparktrain.gang.rendezvous import BarrierView, Card, Meeting, PeerGoneError, host_of, listen
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


def meeting_of(rank: int, all_gather: Callable[[str], Sequence[str]], listener: socket.socket, device: str) -> Meeting:
    host, port = listener.getsockname()
    card = Card(HOSTS[rank], port, device) if rank else Card(host, port, device)
    return Meeting(BarrierView(rank, HOSTS, all_gather), card, None if rank else listener)


def report_of(rank: int) -> SpoolReport:
    return SpoolReport(rank * 10, ((3, 2), ()) if rank else (None, None))


def meet_all(
    listener: socket.socket, devices: Sequence[str] = ("cpu",) * 3, timeout_s: float = WAIT_S, missing: int = -1
) -> list[Future[tuple[Gang, list[SpoolReport]]]]:
    """Three ranks meet; `missing` never hands in its report."""
    all_gather = fake_all_gather(3)
    meetings = [meeting_of(rank, all_gather(rank), listener, devices[rank]) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        return [
            pool.submit(meeting.finish, report_of(rank), timeout_s, 60.0)
            for rank, meeting in enumerate(meetings)
            if rank != missing
        ]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1") as found:
        yield found


def test_all_ranks_get_the_same_gang_and_all_reports(listener: socket.socket) -> None:
    hosts = ("127.0.0.1", *HOSTS[1:])
    met = [one.result(WAIT_S) for one in meet_all(listener)]
    for rank, (gang, reports) in enumerate(met):
        assert gang == Gang(rank, hosts, listener.getsockname(), "cpu", 60.0)
        assert reports == [report_of(rank) for rank in range(3)]
    with socket.create_connection(listener.getsockname(), timeout=WAIT_S):  # still there for the worker
        listener.settimeout(WAIT_S)
        listener.accept()[0].close()


def test_ranks_of_one_host() -> None:
    gang = Gang(0, HOSTS, ("10.0.0.5", 4040))
    assert [replace(gang, rank=rank).local_rank for rank in range(3)] == [0, 0, 1]
    assert [replace(gang, rank=rank).local_world_size for rank in range(3)] == [2, 1, 2]


def test_strangers_neither_stop_the_ranks_nor_learn_anything(listener: socket.socket) -> None:
    strangers = [socket.create_connection(listener.getsockname(), timeout=WAIT_S) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].close()
    try:
        assert all(one.result(WAIT_S)[1] == [report_of(rank) for rank in range(3)] for one in meet_all(listener))
        strangers[2].settimeout(WAIT_S)
        heard = strangers[2].recv(1 << 16)
        assert b"CHALLENGE" in heard
        assert b"rows" not in heard
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_connection_made_right_after_the_meeting_is_for_rank_0_s_worker() -> None:
    for _ in range(20):
        all_gather = fake_all_gather(2)
        with listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
            host, port = listener.getsockname()
            leader = Meeting(BarrierView(0, (host, host), all_gather(0)), Card(host, port, "cpu"), listener)
            met = pool.submit(leader.finish, report_of(0), WAIT_S, 60.0)
            other = Meeting(BarrierView(1, (host, host), all_gather(1)), Card(host, 0, "cpu"), None)
            other.finish(report_of(1), WAIT_S, 60.0)
            with socket.create_connection((host, port), timeout=WAIT_S) as asking:
                met.result(WAIT_S)
                listener.settimeout(WAIT_S)
                accepted, address = listener.accept()
                with accepted:
                    assert address == asking.getsockname()


def test_a_rank_0_that_spools_longer_than_a_stranger_may_stay(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "GREETING_S", 0.2)
    all_gather = fake_all_gather(2)
    host, port = listener.getsockname()
    leader = Meeting(BarrierView(0, (host, host), all_gather(0)), Card(host, port, "cpu"), listener)
    other = Meeting(BarrierView(1, (host, host), all_gather(1)), Card(host, 0, "cpu"), None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.finish, report_of(1), WAIT_S, 60.0)
        time.sleep(1.0)
        assert leader.finish(report_of(0), WAIT_S, 60.0)[1] == waiting.result(WAIT_S)[1]


def test_mixed_devices_are_an_error_on_every_rank(listener: socket.socket) -> None:
    for one in meet_all(listener, ("cuda", "cpu", "cpu")):
        with pytest.raises(GangError, match="rank 0: cuda, rank 2: cpu"):
            one.result(WAIT_S)


def test_a_rank_that_never_hands_in_its_report_is_a_timeout_that_names_its_setting(listener: socket.socket) -> None:
    leader, other = meet_all(listener, timeout_s=0.3, missing=1)
    with pytest.raises(GangTimeout, match=r"rank 0 waited 0\.3 s for all 3 ranks .* rendezvous_timeout_s"):
        leader.result(WAIT_S)
    with pytest.raises((GangTimeout, PeerGoneError)):  # as their clocks go; the first to be told is rank 0's
        other.result(WAIT_S)


def test_a_rank_that_never_comes_to_the_barrier_is_one_too(listener: socket.socket) -> None:
    released = threading.Event()

    def all_gather(text: str) -> Sequence[str]:
        released.wait(WAIT_S)
        return [text]

    try:
        with pytest.raises(GangTimeout, match=r"rank 1 waited 0\.01 s for all 3 ranks .* rendezvous_timeout_s"):
            meeting_of(1, all_gather, listener, "cpu").finish(report_of(1), 0.01, 60.0)
    finally:
        released.set()


def test_a_rank_0_that_is_gone_is_told_apart() -> None:
    all_gather = fake_all_gather(2)
    with listen("127.0.0.1") as listener:
        host, port = listener.getsockname()
        leader = Meeting(BarrierView(0, (host, host), all_gather(0)), Card(host, port, "cpu"), listener)
        other = Meeting(BarrierView(1, (host, host), all_gather(1)), Card(host, 0, "cpu"), None)
    del leader
    with pytest.raises(PeerGoneError, match=f"rank 0 at {host}:{port} is gone"):
        other.finish(report_of(1), WAIT_S, 60.0)


def test_an_error_of_the_barrier_is_raised_as_it_is(listener: socket.socket) -> None:
    def all_gather(text: str) -> Sequence[str]:
        raise RuntimeError("the stage was aborted")

    with pytest.raises(RuntimeError, match="the stage was aborted"):
        meeting_of(0, all_gather, listener, "cpu").finish(report_of(0), WAIT_S, 60.0)


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

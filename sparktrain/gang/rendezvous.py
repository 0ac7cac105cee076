"""How ranks find one another: cards through Spark's barrier, reports through rank 0; all get the same Gang."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeVar

from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang.spec import Gang
from sparktrain.shards.spool import SpoolReport

logger = logging.getLogger(__name__)
T = TypeVar("T")

SECRET_BYTES = 32
GREETING_S = 10.0
"""How long a stranger may stay."""
ACCEPT_S = 0.05
MOST_BYTES = 64 << 20
"""Largest message: all ranks' reports."""


@dataclass(frozen=True)
class BarrierView:
    """What a task knows of its barrier stage; `all_gather` blocks until every task has called it."""

    rank: int
    hosts: tuple[str, ...]
    all_gather: Callable[[str], Sequence[str]]
    cpus: int = 1
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """What each rank tells all others at once: where it can be reached, where it computes."""

    address: str
    port: int
    device: str
    companion: str = ""
    """What the backend has to say."""


def host_of(task_address: str) -> str:
    """The host in a Spark task address: ``host:port``, ``[::1]:port``, or a bare host or IPv6 address."""
    if task_address.startswith("["):
        return task_address[1:].partition("]")[0]
    head, _, port = task_address.rpartition(":")
    return head if head and port.isdigit() and ":" not in head else task_address


def listen(host: str) -> socket.socket:
    """A listening socket on the address of `host` only, on a free port; IPv4 or IPv6, as it resolves.

    Where the name resolves to an address that is not this machine's (NAT), on all interfaces.
    """
    candidates = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in candidates:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.bind(address)
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    family = candidates[0][0]
    listener = socket.socket(family)
    listener.bind(("", 0))
    listener.listen(128)
    return listener


class Meeting:
    """One rank's part of the rendezvous, in two steps: addresses at once, reports when the shards are there.

    Addresses go through Spark's barrier, while the task spools: Spark answers once a second. Reports then go to rank
    0's task over its socket, shown a secret that came with the addresses, and all of them come back.

    Parameters
    ----------
    barrier : BarrierView
    card : Card
        Of this rank.
    listener : socket or None
        On rank 0 where the others find it; left listening, for the worker.

    Attributes
    ----------
    cards : tuple of Card
        Of all ranks, once they have met.
    """

    def __init__(self, barrier: BarrierView, card: Card, listener: socket.socket | None) -> None:
        self._barrier, self._listener = barrier, listener
        self._texts: Future[Sequence[str]] = Future()
        self.cards: tuple[Card, ...] = ()
        own = {**asdict(card), "secret": secrets.token_hex(SECRET_BYTES) if listener is not None else ""}
        _in_thread(self._texts, lambda: barrier.all_gather(json.dumps(own)))

    def finish(
        self, report: SpoolReport, timeout_s: float, collective_timeout_s: float
    ) -> tuple[Gang, list[SpoolReport]]:
        """Exchange the rest; every rank returns the same gang, but for `rank`, and all reports in rank order.

        Raises
        ------
        GangTimeout
            Where a rank has not come within `timeout_s`.
        GangError
            Where some ranks compute on a GPU and others don't.
        PeerGoneError
            Where rank 0's task has ended.
        """
        deadline = time.monotonic() + timeout_s
        rank = self._barrier.rank
        try:
            entries = [json.loads(text) for text in self._texts.result(timeout_s)]
            key = next((one.pop("secret") for one in entries if one["secret"]), "")
            cards = [Card(one["address"], one["port"], one["device"], one["companion"]) for one in entries]
            self.cards = tuple(cards)
            gang = _gang(rank, cards, collective_timeout_s, key)
            text = json.dumps(asdict(report))
            if self._listener is not None and gang.world_size > 1:
                reports = _collect(self._listener, bytes.fromhex(key), text, gang.world_size, deadline)
            elif gang.world_size > 1:
                reports = _hand_in(gang.endpoint, bytes.fromhex(key), rank, text, deadline)
            else:
                reports = [text]
        except TimeoutError:
            raise GangTimeout(
                f"rank {rank} waited {timeout_s:g} s for all {len(self._barrier.hosts)} ranks to spool their shards "
                "and meet; raise rendezvous_timeout_s if shards are that large or uneven"
            ) from None
        return gang, [_report(one) for one in reports]


class PeerGoneError(Exception):
    """Rank 0's task ended while this one waited for it: its own error is the one to tell."""


def _in_thread(future: Future[T], work: Callable[[], T]) -> None:
    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="sparktrain-rendezvous").start()


def _gang(rank: int, cards: Sequence[Card], collective_timeout_s: float, secret: str) -> Gang:
    devices = {one.device: number for number, one in enumerate(cards)}
    if len(devices) > 1:
        where = ", ".join(f"rank {number}: {device}" for device, number in devices.items())
        raise GangError(f"ranks would compute on different kinds of device ({where}); give every task a GPU, or none")
    first = cards[0]
    addresses = tuple(one.address for one in cards)
    endpoint = first.address, first.port
    return Gang(rank, addresses, endpoint, first.device, collective_timeout_s, secret)


def _collect(listener: socket.socket, secret: bytes, own: str, ranks: int, deadline: float) -> list[str]:
    """Rank 0: every rank's report, sent back to all; a thread a connection, so that no stranger holds up the others."""
    reports: dict[int, str] = {0: own}
    complete = threading.Condition()

    def serve(connection: Connection) -> None:
        with connection:
            if not authenticated(connection, secret, time.monotonic() + GREETING_S, answer_first=False):
                return
            rank, text = json.loads(received(connection, time.monotonic() + GREETING_S))
            with complete:
                reports[rank] = text
                complete.notify_all()
            if not answering.wait(max(deadline - time.monotonic(), 0)):
                return
            connection.send_bytes(json.dumps([reports[number] for number in range(ranks)]).encode())
            with complete:
                told.add(rank)
                complete.notify_all()

    def accept() -> None:
        while not closing.is_set():
            with contextlib.suppress(TimeoutError):
                accepted, _ = listener.accept()
                accepted.setblocking(True)
                connection = Connection(accepted.detach())
                threading.Thread(target=_quietly, args=(serve, connection), daemon=True).start()

    told: set[int] = set()
    closing, answering = threading.Event(), threading.Event()
    listener.settimeout(ACCEPT_S)
    accepting = threading.Thread(target=_quietly, args=(accept,), daemon=True, name="sparktrain-reports")
    accepting.start()
    try:
        with complete:
            if not complete.wait_for(lambda: len(reports) == ranks, deadline - time.monotonic()):
                raise TimeoutError
    finally:  # before any rank is answered: its worker's next connection is for rank 0's worker
        closing.set()
        accepting.join()
        listener.settimeout(None)
    answering.set()
    with complete:
        if not complete.wait_for(lambda: len(told) == ranks - 1, deadline - time.monotonic()):
            raise TimeoutError
    return [reports[number] for number in range(ranks)]


def _hand_in(endpoint: tuple[str, int], secret: bytes, rank: int, text: str, deadline: float) -> list[str]:
    """Another rank: hand in the report, wait for all."""
    try:
        made = socket.create_connection(endpoint, max(deadline - time.monotonic(), 0.1))
        made.setblocking(True)
        with Connection(made.detach()) as connection:
            if not connection.poll(max(deadline - time.monotonic(), 0)):
                raise TimeoutError  # rank 0 greets when its own shard is there
            if not authenticated(connection, secret, deadline, answer_first=True):
                raise PeerGoneError("rank 0's address answers, but not as rank 0 would")
            connection.send_bytes(json.dumps([rank, text]).encode())
            reports: list[str] = json.loads(received(connection, deadline))
            return reports
    except TimeoutError:
        raise
    except (OSError, EOFError) as error:
        raise PeerGoneError(
            f"rank 0 at {endpoint[0]}:{endpoint[1]} is gone: {error or type(error).__name__}"
        ) from error


def authenticated(connection: Connection, secret: bytes, deadline: float, *, answer_first: bool) -> bool:
    """Both sides show that they know the secret, and don't tell it (the standard library's challenge, HMAC)."""
    steps = [answer_challenge, deliver_challenge]
    try:
        for step in steps if answer_first else reversed(steps):
            if step is answer_challenge and not connection.poll(max(deadline - time.monotonic(), 0)):
                return False
            step(connection, secret)
    except AuthenticationError:
        return False
    return True


def received(connection: Connection, deadline: float) -> bytes:
    """The next message.

    Raises
    ------
    TimeoutError
        Where none has come until the clock (`time.monotonic`) shows `deadline`.
    """
    if not connection.poll(max(deadline - time.monotonic(), 0)):
        raise TimeoutError
    return connection.recv_bytes(MOST_BYTES)


def _quietly(work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except (OSError, EOFError, ValueError, TypeError):  # a stranger's connection, or one that has ended
        logger.debug("a connection for the rendezvous ended", exc_info=True)


def _report(text: str) -> SpoolReport:
    values = json.loads(text)
    shapes = tuple(None if shape is None else tuple(shape) for shape in values["shapes"])
    return SpoolReport(values["rows"], shapes)

"""Connections between ranks, for our own messages: sockets that were shown the run's secret before anything else."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from multiprocessing.connection import Connection

from sparktrain.gang import rendezvous
from sparktrain.gang.spec import Gang

_RANK = struct.Struct("!I")


def accept(listener: socket.socket, gang: Gang, ranks: Collection[int], deadline: float) -> dict[int, socket.socket]:
    """The connections that these ranks make by `dial`.

    Raises
    ------
    ConnectionError
        Where one has not come until the clock (`time.monotonic`) shows `deadline`.
    """
    found: dict[int, socket.socket] = {}
    lock = threading.Lock()

    def admit(link: socket.socket) -> None:
        rank = _rank_of(link, bytes.fromhex(gang.secret))
        with lock:
            if rank is None or rank not in ranks or rank in found:
                link.close()
                return
            found[rank] = link

    listener.settimeout(rendezvous.ACCEPT_S)
    while len(found) < len(ranks):
        if time.monotonic() > deadline:
            missing = sorted(set(ranks) - set(found))
            raise ConnectionError(f"ranks {missing} have not joined within {gang.collective_timeout_s:g} s")
        with contextlib.suppress(TimeoutError):
            link, _ = listener.accept()  # a thread each: a stranger holds up nobody
            threading.Thread(target=admit, args=(link,), daemon=True, name="sparktrain-links").start()
    return found


def dial(gang: Gang, rank: int, address: tuple[str, int], deadline: float) -> socket.socket:
    """Connect to the address where another rank accepts.

    Raises
    ------
    ConnectionError
        Where something else answers there.
    """
    link = socket.create_connection(address, max(deadline - time.monotonic(), 0.1))
    try:
        link.settimeout(None)
        with Connection(os.dup(link.fileno())) as connection:
            if not rendezvous.authenticated(connection, bytes.fromhex(gang.secret), deadline, answer_first=True):
                raise ConnectionError(f"rank {rank}'s address answers, but not as rank {rank} would")
            connection.send_bytes(_RANK.pack(gang.rank))
    except BaseException:
        link.close()
        raise
    return link


def _rank_of(link: socket.socket, secret: bytes) -> int | None:
    """Who has connected; None: a stranger."""
    deadline = time.monotonic() + rendezvous.GREETING_S
    link.settimeout(None)
    try:
        with Connection(os.dup(link.fileno())) as connection:
            if not rendezvous.authenticated(connection, secret, deadline, answer_first=False):
                return None
            return int(_RANK.unpack(rendezvous.received(connection, deadline))[0])
    except (OSError, EOFError, struct.error):
        return None


def send(link: socket.socket, data: memoryview, rank: int) -> None:
    """Send all of it to `rank`; each part within the socket's time-out."""
    while data:
        data = sent(link, data, rank)


def receive(link: socket.socket, into: memoryview, rank: int) -> None:
    """Fill `into` with what `rank` sends; each part within the socket's time-out."""
    while into:
        into = received(link, into, rank)


def sent(link: socket.socket, data: memoryview, rank: int) -> memoryview:
    """Send a part of it; what is left."""
    with _telling(link, rank):
        return data[link.send(data) :]


def received(link: socket.socket, into: memoryview, rank: int) -> memoryview:
    """Receive a part of it; what is left to fill."""
    with _telling(link, rank):
        count = link.recv_into(into)
    if not count:
        raise closed(rank)
    return into[count:]


@contextlib.contextmanager
def _telling(link: socket.socket, rank: int) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise silent(rank, link.gettimeout()) from None
    except ConnectionError as error:
        raise closed(rank) from error


def silent(rank: int, timeout_s: float | None) -> ConnectionError:
    return ConnectionError(f"rank {rank} has not taken part for {timeout_s:g} s (collective_timeout_s)")


def closed(rank: int) -> ConnectionError:
    return ConnectionError(f"Connection closed by peer: rank {rank}")

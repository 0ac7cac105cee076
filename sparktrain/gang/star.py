"""Small messages between all ranks, by sockets that the calling thread itself reads and writes.

gloo hands every message from thread to thread. Where as many processes compute as there are cores, each hand-over may
wait for the scheduler: a sum of 6 KB between two busy processes took 2 to 2.8 ms, and over these sockets 0.2 to 0.5.
Rank 0 is the centre: it hears from each other rank, and tells each. Connections are shown the run's secret first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from sparktrain.gang import rendezvous
from sparktrain.gang.spec import Gang

MOST_BYTES = 256 << 10
"""So much comes to rank 0 at once; what is larger goes faster where ranks pass it round in a ring."""
_RANK = struct.Struct("!I")


class Star:
    """The connections of one rank: rank 0's to each other, in rank order; another's to rank 0.

    Parameters
    ----------
    links : sequence of socket
    timeout_s : float
        How long one operation may wait for one rank.
    """

    def __init__(self, links: Sequence[socket.socket], timeout_s: float) -> None:
        self._links, self._timeout_s = links, timeout_s
        for link in links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(timeout_s)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def collect(self, parts: Sequence[memoryview]) -> None:
        """On rank 0: what each other rank sends, in rank order."""
        for number, (link, part) in enumerate(zip(self._links, parts, strict=True), start=1):
            self._receive(link, part, number)

    def spread(self, data: memoryview) -> None:
        """On rank 0: tell all others."""
        for number, link in enumerate(self._links, start=1):
            self._send(link, data, number)

    def exchange(self, data: memoryview) -> None:
        """On another rank: send, and receive rank 0's answer in its place."""
        self._send(self._links[0], data, 0)
        self._receive(self._links[0], data, 0)

    def _send(self, link: socket.socket, data: memoryview, rank: int) -> None:
        try:
            link.sendall(data)
        except TimeoutError:
            raise self._silent(rank) from None

    def _receive(self, link: socket.socket, into: memoryview, rank: int) -> None:
        while into:
            try:
                count = link.recv_into(into)
            except TimeoutError:
                raise self._silent(rank) from None
            if not count:
                raise ConnectionError(f"Connection closed by peer: rank {rank}")
            into = into[count:]

    def _silent(self, rank: int) -> ConnectionError:
        return ConnectionError(f"rank {rank} has not taken part for {self._timeout_s:g} s (collective_timeout_s)")


def connect(gang: Gang, tell: Callable[[int], None], ask: Callable[[], int]) -> Star:
    """Make the connections; all ranks call this together.

    Parameters
    ----------
    gang : Gang
    tell, ask : callable
        How rank 0 tells the others the port that it listens on, and how they learn it.

    Raises
    ------
    ConnectionError
        Where a rank has not come in time.
    """
    deadline = time.monotonic() + gang.collective_timeout_s
    if gang.rank:
        return Star([_to_first(gang, ask(), deadline)], gang.collective_timeout_s)
    found: dict[int, socket.socket] = {}
    lock = threading.Lock()

    def admit(link: socket.socket) -> None:
        rank = _rank_of(link, bytes.fromhex(gang.secret))
        with lock:
            if rank is None or not 0 < rank < gang.world_size or rank in found:
                link.close()
                return
            found[rank] = link

    with rendezvous.listen(gang.endpoint[0]) as listener:
        listener.settimeout(rendezvous.ACCEPT_S)
        tell(listener.getsockname()[1])
        while len(found) < gang.world_size - 1:
            if time.monotonic() > deadline:
                raise ConnectionError(f"only {len(found) + 1} of {gang.world_size} ranks have joined in time")
            with contextlib.suppress(TimeoutError):
                link, _ = listener.accept()  # a thread each: a stranger holds up nobody
                threading.Thread(target=admit, args=(link,), daemon=True, name="sparktrain-star").start()
    return Star([found[rank] for rank in range(1, gang.world_size)], gang.collective_timeout_s)


def _to_first(gang: Gang, port: int, deadline: float) -> socket.socket:
    link = socket.create_connection((gang.endpoint[0], port), max(deadline - time.monotonic(), 0.1))
    try:
        link.settimeout(None)
        with Connection(os.dup(link.fileno())) as connection:
            if not rendezvous.authenticated(connection, bytes.fromhex(gang.secret), deadline, answer_first=True):
                raise ConnectionError("rank 0's address answers, but not as rank 0 would")
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

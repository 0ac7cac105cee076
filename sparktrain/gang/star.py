"""Small messages between all ranks, by sockets that the calling thread itself reads and writes.

gloo hands every message from thread to thread. Where as many processes compute as there are cores, each hand-over may
wait for the scheduler: a sum of 6 KB between two busy processes took 2 to 2.8 ms, and over these sockets 0.2 to 0.5.
Rank 0 is the centre: it hears from each other rank, and tells each.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence

from sparktrain.gang import links, rendezvous
from sparktrain.gang.spec import Gang

MOST_BYTES = 256 << 10
"""So much comes to rank 0 at once; what is larger goes faster where ranks pass it round in a ring."""
_SIZE = struct.Struct("!Q")


class Star:
    """The connections of one rank: rank 0's to each other, in rank order; another's to rank 0.

    Parameters
    ----------
    connections : sequence of socket
    timeout_s : float
        How long one operation may wait for one rank.
    """

    def __init__(self, connections: Sequence[socket.socket], timeout_s: float) -> None:
        self._links = connections
        for link in connections:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that has gone is told, too
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float | None) -> None:
        for link in self._links:
            link.settimeout(timeout_s)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def collect(self, parts: Sequence[memoryview]) -> None:
        """On rank 0: what each other rank sends, in rank order."""
        for number, (link, part) in enumerate(zip(self._links, parts, strict=True), start=1):
            links.receive(link, part, number)

    def spread(self, data: memoryview) -> None:
        """On rank 0: tell all others."""
        for number, link in enumerate(self._links, start=1):
            links.send(link, data, number)

    def exchange(self, data: memoryview) -> None:
        """On another rank: send, and receive rank 0's answer in its place."""
        links.send(self._links[0], data, 0)
        links.receive(self._links[0], data, 0)

    def hand_in(self, data: bytes) -> list[bytes]:
        """On another rank: give some bytes, and get those of all ranks, in rank order."""
        self._send_sized(self._links[0], data, 0)
        count = _SIZE.unpack(self._received(self._links[0], _SIZE.size, 0))[0]
        return [self._receive_sized(self._links[0], 0) for _ in range(count)]

    def pass_on(self, data: bytes) -> list[bytes]:
        """On rank 0: likewise, and tell all others."""
        found = [data, *(self._receive_sized(link, number) for number, link in enumerate(self._links, start=1))]
        for number, link in enumerate(self._links, start=1):
            links.send(link, memoryview(_SIZE.pack(len(found))), number)
            for one in found:
                self._send_sized(link, one, number)
        return found

    @staticmethod
    def _send_sized(link: socket.socket, data: bytes, rank: int) -> None:
        links.send(link, memoryview(_SIZE.pack(len(data)) + data), rank)

    def _receive_sized(self, link: socket.socket, rank: int) -> bytes:
        return self._received(link, _SIZE.unpack(self._received(link, _SIZE.size, rank))[0], rank)

    @staticmethod
    def _received(link: socket.socket, size: int, rank: int) -> bytes:
        data = bytearray(size)
        links.receive(link, memoryview(data), rank)
        return bytes(data)


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
    host = gang.endpoint[0]
    if gang.rank:
        return Star([links.dial(gang, 0, (host, ask()), deadline)], gang.collective_timeout_s)
    with rendezvous.listen(host) as listener:
        tell(listener.getsockname()[1])
        found = links.accept(listener, gang, range(1, gang.world_size), deadline)
    return Star([found[rank] for rank in range(1, gang.world_size)], gang.collective_timeout_s)

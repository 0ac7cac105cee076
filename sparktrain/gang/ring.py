"""Sums of large arrays over all ranks, each of which talks to its two neighbours alone: a ring all-reduce.

Every rank sends and receives 2 (n - 1) / n times the array, however many ranks there are. See P. Patarasuk and X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sparktrain.gang import links, rendezvous
from sparktrain.gang.spec import Gang

Array = np.ndarray[Any, Any]


class Ring:
    """One rank's connections: to the next rank, and from the one before.

    Parameters
    ----------
    rank, world_size : int
    following, previous : socket
    timeout_s : float
        How long one operation may wait for a neighbour.
    """

    def __init__(
        self, rank: int, world_size: int, following: socket.socket, previous: socket.socket, timeout_s: float
    ) -> None:
        self._rank, self._world_size, self._timeout_s = rank, world_size, timeout_s
        self._following, self._previous = following, previous
        for link in (following, previous):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setblocking(False)

    def close(self) -> None:
        self._following.close()
        self._previous.close()

    def sum(self, values: Array) -> None:
        """Add up a contiguous vector over all ranks, in place; each part in the same order of ranks on all of them."""
        ranks, own = self._world_size, self._rank
        parts = np.array_split(values, ranks)
        arrived = np.empty_like(parts[0])
        for step in range(ranks - 1):
            part = parts[(own - step - 1) % ranks]
            buffer = arrived[: len(part)]
            self._pass(parts[(own - step) % ranks], buffer)
            part += buffer
        for step in range(ranks - 1):
            self._pass(parts[(own - step + 1) % ranks], parts[(own - step) % ranks])

    def _pass(self, outgoing: Array, incoming: Array) -> None:
        """Send to the next rank and receive from the one before, at the same time."""
        following, previous = ((self._rank + one) % self._world_size for one in (1, -1))
        sending, receiving = outgoing.data.cast("B"), incoming.data.cast("B")
        with selectors.DefaultSelector() as selector:
            if sending:
                selector.register(self._following, selectors.EVENT_WRITE)
            if receiving:
                selector.register(self._previous, selectors.EVENT_READ)
            while sending or receiving:
                ready = [key.fileobj for key, _ in selector.select(self._timeout_s)]
                if not ready:
                    raise links.silent(previous if receiving else following, self._timeout_s)
                if self._following in ready:
                    sending = links.sent(self._following, sending, following)
                    if not sending:
                        selector.unregister(self._following)
                if self._previous in ready:
                    receiving = links.received(self._previous, receiving, previous)
                    if not receiving:
                        selector.unregister(self._previous)


def connect(gang: Gang, gather: Callable[[int], list[int]]) -> Ring:
    """Make the connections; all ranks call this together.

    Parameters
    ----------
    gang : Gang
        Of at least two ranks.
    gather : callable
        Gives every rank's number, in rank order.

    Raises
    ------
    ConnectionError
        Where a neighbour has not come in time.
    """
    deadline = time.monotonic() + gang.collective_timeout_s
    following, previous = (gang.rank + 1) % gang.world_size, (gang.rank - 1) % gang.world_size
    with ThreadPoolExecutor(1) as pool, rendezvous.listen(gang.hosts[gang.rank]) as listener:  # closed first
        port = gather(listener.getsockname()[1])[following]
        accepted = pool.submit(links.accept, listener, gang, [previous], deadline)
        made = links.dial(gang, following, (gang.hosts[following], port), deadline)
        found = accepted.result()[previous]
    return Ring(gang.rank, gang.world_size, made, found, gang.collective_timeout_s)

"""A collective of NumPy arrays that needs no framework: small messages by way of rank 0, large sums round a ring."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparktrain.gang import announce, ring, star
from sparktrain.gang.ring import Ring
from sparktrain.gang.spec import Gang
from sparktrain.gang.star import MOST_BYTES, Star

Array = np.ndarray[Any, Any]
_NUMBER = struct.Struct("!q")


class Sockets:
    """The peers of one rank. All ranks make the same calls in the same order.

    Parameters
    ----------
    gang : Gang
    small : Star or None
        None: a gang of one.
    """

    def __init__(self, gang: Gang, small: Star | None) -> None:
        self._gang, self._star = gang, small
        self._ring: Ring | None = None
        self.rank = gang.rank
        self.world_size = gang.world_size

    def sum(self, values: Array) -> Array:
        """Add up a contiguous array over all ranks, in place; all get the same bits."""
        small = self._star
        if small is None or not values.size:
            return values
        flat = values.reshape(-1)
        if (self.world_size - 1) * values.nbytes > MOST_BYTES:
            if self._ring is None:
                self._ring = ring.connect(self._gang, self.gather)
            self._ring.sum(flat)
        elif self.rank:
            small.exchange(_bytes_of(flat))
        else:
            parts = np.empty((self.world_size - 1, len(flat)), flat.dtype)
            small.collect([_bytes_of(part) for part in parts])
            for part in parts:
                flat += part
            small.spread(_bytes_of(flat))
        return values

    def gather(self, value: int) -> list[int]:
        """Every rank's value, in rank order."""
        return [int(_NUMBER.unpack(one)[0]) for one in self.gather_bytes(_NUMBER.pack(value))]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order; they may differ in length."""
        if self._star is None:
            return [data]
        return self._star.hand_in(data) if self.rank else self._star.pass_on(data)

    def wait(self) -> None:
        """Until all ranks have come here, however long that takes; one that ends instead is told."""
        if self._star is not None:
            self._star.set_timeout(None)
            self.gather(0)
            self._star.set_timeout(self._gang.collective_timeout_s)

    def close(self) -> None:
        for one in (self._star, self._ring):
            if one is not None:
                one.close()


def _bytes_of(values: Array) -> memoryview:
    return values.data.cast("B")


@contextlib.contextmanager
def join(gang: Gang, listen_fd: int | None) -> Iterator[Sockets]:
    """Meet the other ranks; leave the block together with all of them.

    Parameters
    ----------
    gang : Gang
    listen_fd : int or None
        On rank 0 the socket that its task listens on, where the others ask for the way.
    """
    if gang.world_size == 1:
        yield Sockets(gang, None)
        return

    def tell(port: int) -> None:
        assert listen_fd is not None
        announce.tell(listen_fd, {"star": port})

    timeout_s = gang.collective_timeout_s
    peers = Sockets(gang, star.connect(gang, tell, lambda: int(announce.ask(gang.endpoint, timeout_s)["star"])))
    yield peers
    peers.gather(0)
    peers.close()  # but not after an error: the others would hear of that before this rank has told it

"""The other ranks, as the Keras trainer needs them: sums and broadcasts of NumPy arrays, outside of any graph."""

from __future__ import annotations

import pickle
from typing import Any, Protocol

import numpy as np

from sparktrain.gang.sockets import Sockets

Array = np.ndarray[Any, Any]


class Peers(Protocol):
    """All ranks make the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def sum(self, values: Array) -> Array:
        """The sum over all ranks."""

    def gather(self, value: int) -> list[int]:
        """Every rank's value, in rank order."""

    def from_rank(self, root: int, values: list[Array]) -> list[Array]:
        """The root's arrays, on every rank; the others' may be of other lengths."""


class TorchPeers:
    """Over `torch.distributed`, or alone."""

    def __init__(self, collective: Any) -> None:
        self._collective = collective
        self.rank: int = collective.rank
        self.world_size: int = collective.world_size

    def sum(self, values: Array) -> Array:
        import torch

        summed: Array = self._collective.sum(torch.from_numpy(np.array(values))).numpy()
        return summed

    def gather(self, value: int) -> list[int]:
        found: list[int] = self._collective.gather(value)
        return found

    def from_rank(self, root: int, values: list[Array]) -> list[Array]:
        data = pickle.dumps(values) if self.rank == root else b""
        found: list[Array] = pickle.loads(self._collective.gather_bytes(data)[root])
        return found


class SocketPeers:
    """Over sockets of our own, or alone."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self.rank: int = sockets.rank
        self.world_size: int = sockets.world_size

    def sum(self, values: Array) -> Array:
        return self._sockets.sum(np.array(values))

    def gather(self, value: int) -> list[int]:
        return self._sockets.gather(value)

    def from_rank(self, root: int, values: list[Array]) -> list[Array]:
        data = pickle.dumps(values) if self.rank == root else b""
        found: list[Array] = pickle.loads(self._sockets.gather_bytes(data)[root])
        return found


class JaxPeers:
    """Over JAX's own processes."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def sum(self, values: Array) -> Array:
        return np.asarray(self._every(values).sum(axis=0, dtype=values.dtype))

    def gather(self, value: int) -> list[int]:
        high, low = divmod(value, 1 << 31)  # JAX has no int64 unless told
        return [int(one[0]) * (1 << 31) + int(one[1]) for one in self._every(np.array([high, low], np.int32))]

    def from_rank(self, root: int, values: list[Array]) -> list[Array]:
        data = np.frombuffer(pickle.dumps(values) if self.rank == root else b"", np.uint8)
        size = max(self.gather(len(data)))
        padded = np.zeros(size, np.uint8)
        padded[: len(data)] = data
        found: list[Array] = pickle.loads(np.asarray(self._every(padded)[root]).tobytes())
        return found

    def _every(self, values: Array) -> Array:
        if self.world_size == 1:
            return values[None]
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(values))

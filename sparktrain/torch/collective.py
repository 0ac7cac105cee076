"""The trainer's view of its peers: sums, gathers and broadcasts, over torch.distributed or alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from sparktrain import backends
from sparktrain.gang.spec import Gang
from sparktrain.gang.star import MOST_BYTES, Star, connect


class Collective(Protocol):
    """What every backend offers a trainer. All ranks make the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""

    def gather(self, value: int) -> list[int]:
        """Every rank's value, in rank order."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order; they may differ in length."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Give every rank the root's values, in place."""

    def is_small(self, size: int) -> bool:
        """Whether the sum of so many bytes in memory takes a short way, which ends in the calling thread."""

    def channel(self) -> Collective:
        """The same peers by connections of their own: its operations need no order among those of this one."""


class Alone:
    """A gang of one: nothing to exchange."""

    rank = 0
    world_size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, value: int) -> list[int]:
        return [value]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        return

    def is_small(self, size: int) -> bool:
        return False

    def channel(self) -> Collective:
        return self


class TorchDistributed:
    """A process group of `torch.distributed`: gloo for CPU tensors, nccl for CUDA ones; small sums go past gloo.

    Parameters
    ----------
    group : ProcessGroup or None
        None: the default one.
    star : callable or None
        Makes the connections for small sums; None: there are none.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, star: Callable[[], Star] | None = None) -> None:
        self._group = group
        self._connect = star
        self._star = None if star is None else star()

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def is_small(self, size: int) -> bool:
        return self._star is not None and (self.world_size - 1) * size <= MOST_BYTES

    def sum(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda or not tensor.numel() or not self.is_small(tensor.nbytes):
            dist.all_reduce(tensor, group=self._group)
            return tensor
        assert self._star is not None
        own = tensor.reshape(-1)
        if self.rank:
            self._star.exchange(_bytes_of(own))
        else:
            parts = torch.empty((self.world_size - 1, len(own)), dtype=own.dtype)
            self._star.collect([_bytes_of(part) for part in parts])
            for part in parts:  # one after the other, so that the order of ranks is that of the sum
                own += part
            self._star.spread(_bytes_of(own))
        return tensor if own.data_ptr() == tensor.data_ptr() else tensor.copy_(own.view_as(tensor))

    def gather(self, value: int) -> list[int]:
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(found, torch.tensor([value]), group=self._group)
        return [int(one) for one in found]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        sizes = self.gather(len(data))
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in sizes]
        if len(padded):
            dist.all_gather(found, padded, group=self._group)
        return [bytes(one[:size].numpy()) for one, size in zip(found, sizes, strict=True)]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        values = tensor.detach().reshape(-1).contiguous()
        dist.broadcast(values.view(torch.uint8), root, group=self._group)  # as bytes: gloo knows few dtypes
        tensor.detach().copy_(values.view_as(tensor))

    def channel(self) -> Collective:
        return TorchDistributed(dist.new_group(), self._connect)


Join = Callable[[Gang, int | None], AbstractContextManager[Collective]]


def joining(backend: str) -> Join:
    """How a rank joins its peers on that backend: takes the gang and, on rank 0, its task's listening socket."""
    if backend == "native":
        return join
    from sparktrain.torch import horovod

    found: Any = backends.load(backend)
    return functools.partial(horovod.join, backend=found)


def _bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory."""
    values: Any = tensor.view(torch.uint8).numpy()
    return memoryview(values)


@contextlib.contextmanager
def join(gang: Gang, listen_fd: int | None) -> Iterator[Collective]:
    """Join the gang's process group for the life of this process; leave the block together with all ranks.

    The group is not destroyed: its destructor joins gloo's threads while it holds the GIL, and a thread
    that is just releasing a tensor waits for the GIL for ever (seen with torch 2.13, once in some twenty
    fits). The process ends by `os._exit`, which runs no destructors.

    Parameters
    ----------
    gang : Gang
    listen_fd : int or None
        On rank 0 the socket its task listens on, bound to one address: the store uses it, so no port
        is picked twice and none is open on other interfaces.
    """
    if gang.world_size == 1:
        yield Alone()
        return
    timeout = timedelta(seconds=gang.collective_timeout_s)
    host, port = gang.endpoint
    if gang.rank == 0:
        store = TCPStore(host, port, gang.world_size, True, timeout, wait_for_workers=False, master_listen_fd=listen_fd)
    else:
        store = TCPStore(host, port, gang.world_size, False, timeout)
    kind = "cpu:gloo,cuda:nccl" if gang.device == "cuda" else "gloo"
    dist.init_process_group(kind, store=store, rank=gang.rank, world_size=gang.world_size, timeout=timeout)
    numbers = itertools.count()

    def star() -> Star:
        key = f"sparktrain/star/{next(numbers)}"
        return connect(gang, lambda port: store.set(key, str(port)), lambda: int(store.get(key)))

    yield TorchDistributed(star=None if gang.device == "cuda" else star)
    dist.barrier()  # rank 0 holds the store, so nobody goes before all are done with it

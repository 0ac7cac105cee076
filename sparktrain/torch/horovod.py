"""The trainer's view of its peers over Horovod."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sparktrain.backends.horovod import BACKEND, HorovodBackend
from sparktrain.backends.mpi import MpiBackend
from sparktrain.errors import GangError
from sparktrain.gang import sockets
from sparktrain.gang.spec import Gang
from sparktrain.torch.collective import Alone, Collective

_channels = itertools.count()
_LOOK_S = 5.0


class Watch:
    """Gives operations a deadline, which Horovod has none of where gloo is its controller.

    A rank that computes for ever still answers by its background thread, so gloo waits on; and Horovod's inspector of
    stalls looks at a list of ranks that its gloo controller leaves empty (0.28.1, unless `scripts/horovod` has mended
    it). Shutting Horovod down reaches all ranks, and ends every operation with an error.

    Parameters
    ----------
    timeout_s : float
    shut_down : callable
    """

    def __init__(self, timeout_s: float, shut_down: Callable[[], object]) -> None:
        self.timeout_s = timeout_s
        self._shut_down = shut_down
        self._started: dict[int, float] = {}
        threading.Thread(target=self._run, daemon=True, name="sparktrain-horovod").start()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """An operation of this thread's."""
        own = threading.get_ident()
        self._started[own] = time.monotonic()
        try:
            yield
        finally:
            self._started.pop(own, None)

    def _run(self) -> None:
        while True:
            time.sleep(min(self.timeout_s / 4, _LOOK_S))
            since = time.monotonic() - self.timeout_s
            if any(started < since for started in list(self._started.values())):
                self._shut_down()
                return


class HorovodCollective:
    """Horovod's operations, by names that come again, which spares them most of the ranks' negotiation.

    Parameters
    ----------
    hvd : module
        `horovod.torch`, initialised.
    watch : Watch
        Ends operations that take too long.
    """

    def __init__(self, hvd: Any, watch: Watch) -> None:
        self._hvd, self._watch = hvd, watch
        self._name = f"sparktrain.{next(_channels)}"

    @property
    def rank(self) -> int:
        return int(self._hvd.rank())

    @property
    def world_size(self) -> int:
        return int(self._hvd.size())

    def is_small(self, size: int) -> bool:
        return False

    def sum(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        values = self._placed(tensor.detach()).contiguous()
        name = f"{self._name}.sum.{values.dtype}.{values.numel()}"
        with self._explaining():
            self._hvd.allreduce_(values, op=self._hvd.Sum, name=name)
        return tensor if values.data_ptr() == tensor.data_ptr() else tensor.copy_(values)

    def gather(self, value: int) -> list[int]:
        with self._explaining():
            found: list[int] = self._hvd.allgather(torch.tensor([value]), name=f"{self._name}.gather").tolist()
        return found

    def gather_bytes(self, data: bytes) -> list[bytes]:
        sizes = self.gather(len(data))
        if not any(sizes):
            return [b""] * len(sizes)
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        with self._explaining():
            joined = self._hvd.allgather(own, name=f"{self._name}.gather_bytes")
        return [bytes(one.numpy()) for one in torch.split(joined, sizes)]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        if not tensor.numel():
            return
        values = self._placed(tensor.detach()).reshape(-1).contiguous().view(torch.uint8)
        with self._explaining():
            self._hvd.broadcast_(values, root, name=f"{self._name}.broadcast.{values.numel()}")
        tensor.detach().copy_(values.view(tensor.dtype).view_as(tensor))

    def channel(self) -> Collective:
        return HorovodCollective(self._hvd, self._watch)

    def _placed(self, tensor: Tensor) -> Tensor:
        """Where Horovod can reduce it: without NCCL, in memory."""
        return tensor if self._hvd.nccl_built() else tensor.cpu()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with self._watch.watching():
                yield
        except self._hvd.HorovodInternalError as error:
            error.add_note(
                f"another rank has ended, or has not taken part for {self._watch.timeout_s:g} s (collective_timeout_s)"
            )
            raise


@contextlib.contextmanager
def join(gang: Gang, listen_fd: int | None, backend: HorovodBackend | MpiBackend) -> Iterator[Collective]:
    """Initialise Horovod; leave the block together with all ranks.

    Parameters
    ----------
    gang : Gang
    listen_fd : int or None
        On rank 0 the socket that its task listens on, where the others ask for the way to Horovod's rendezvous.
    backend : HorovodBackend or MpiBackend
        How Horovod's ranks meet.
    """
    missing = BACKEND.missing()
    if missing is not None:
        raise GangError(f"{missing}. This is rank {gang.rank} on {gang.hosts[gang.rank]}")
    import horovod.torch as hvd

    with sockets.join(gang, listen_fd) as peers:
        os.environ.update(backend.horovod(gang, peers))
        hvd.init()
        if gang.world_size == 1:
            yield Alone()
        else:
            yield HorovodCollective(hvd, Watch(gang.collective_timeout_s, hvd.mpi_ops._basics.shutdown))
        peers.gather(0)  # nobody shuts down before all are done: the first to do so ends it for all
        hvd.shutdown()

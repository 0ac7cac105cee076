"""The Horovod backend: `horovod.torch.init()` finds the gang, whose ranks meet at rank 0 and talk by gloo."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparktrain.backends import native
from sparktrain.backends.companion import Alone, Companion
from sparktrain.backends.key_values import KeyValues
from sparktrain.errors import GangError
from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets  # with it comes pyarrow, which the worker leaves to its trainer

BUILD = (
    "build it with `make horovod` in a checkout of sparktrain, or for the environment of any interpreter with "
    "`scripts/horovod PYTHON`; on executors too"
)
_OPERATIONS = "mpi_lib_v2*"
_STALL_WARNING_S = 60


@dataclass(frozen=True)
class Place:
    """Where a rank is, in Horovod's words: its host, and its host among those that have such a local rank."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def place(hosts: tuple[str, ...], rank: int) -> Place:
    """A rank's place in a gang whose ranks run on these hosts."""
    host = hosts[rank]
    local_rank = hosts[:rank].count(host)
    peers = [one for one in dict.fromkeys(hosts) if hosts.count(one) > local_rank]
    return Place(local_rank, hosts.count(host), peers.index(host), len(peers))


def environment(gang: Gang, port: int | None) -> dict[str, str]:
    """What Horovod reads when it is initialised.

    Parameters
    ----------
    gang : Gang
    port : int or None
        Where rank 0 serves the rendezvous; None: a gang of one.
    """
    own = place(gang.hosts, gang.rank)
    timeout_s = max(int(gang.collective_timeout_s), 1)
    found = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_RANK": str(gang.rank),
        "HOROVOD_SIZE": str(gang.world_size),
        "HOROVOD_LOCAL_RANK": str(own.local_rank),
        "HOROVOD_LOCAL_SIZE": str(own.local_size),
        "HOROVOD_CROSS_RANK": str(own.cross_rank),
        "HOROVOD_CROSS_SIZE": str(own.cross_size),
        "HOROVOD_HOSTNAME": gang.hosts[gang.rank],
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(timeout_s),
        # where MPI is the controller; see `sparktrain.torch.horovod.Watch`
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(_STALL_WARNING_S, timeout_s)),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(timeout_s),
    }
    if port is not None:
        # Horovod makes http://ADDR:PORT/scope/key of the two. So ADDR may bring the port itself and the start of the
        # path, which is the only way to have it show a secret.
        found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = f"{_ipv4(gang.endpoint[0])}:{port}/{_token(gang)}"
        found["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
    return found


def _token(gang: Gang) -> str:
    """What a request for the rendezvous starts with: derived, since it travels in the clear, as gloo's data does."""
    return hmac.digest(bytes.fromhex(gang.secret), b"horovod", hashlib.sha256).hex()


def _ipv4(host: str) -> str:
    """Horovod's client knows no other addresses."""
    try:
        return str(socket.getaddrinfo(host, 0, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise GangError(f"backend='horovod' needs an IPv4 address of rank 0's host, {host!r}: {error}") from error


def _has_operations() -> bool:
    found = importlib.util.find_spec("horovod")
    roots = found.submodule_search_locations if found is not None else None
    return any(True for root in roots or () for _ in Path(root, "torch").glob(_OPERATIONS))


class HorovodBackend:
    def missing(self) -> str | None:
        """What this Python lacks, and how to get it."""
        if importlib.util.find_spec("horovod") is None:
            return f"Horovod isn't installed here; {BUILD}"
        if not _has_operations():
            return f"the Horovod that is installed here was built without PyTorch; {BUILD}"
        return None

    def companion(self, address: str, log: Callable[[str], None], environment: Mapping[str, str]) -> Companion:
        return Alone()

    def prepare(self, gang: Gang) -> None:
        """As on the native backend; and Horovod's gloo uses the same interface.

        Raises
        ------
        GangError
            Where this executor has no Horovod.
        """
        missing = self.missing()
        if missing is not None:
            raise GangError(f"{missing}. This is rank {gang.rank} on {gang.hosts[gang.rank]}")
        native.BACKEND.prepare(gang)
        if "GLOO_SOCKET_IFNAME" in os.environ:
            os.environ.setdefault("HOROVOD_GLOO_IFACE", os.environ["GLOO_SOCKET_IFNAME"])

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """As on the native backend, and what `horovod.torch.init()` reads."""
        return {**native.BACKEND.environment(gang, peers), **self.horovod(gang, peers)}

    def horovod(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """What `horovod.torch.init()` reads; rank 0 serves the rendezvous from now on, for the life of its process.

        All ranks call this together.
        """
        if gang.world_size == 1:
            return environment(gang, None)
        port = 0
        if gang.rank == 0:
            from sparktrain.gang import rendezvous  # late: with it comes pyarrow

            listener = rendezvous.listen(_ipv4(gang.endpoint[0]))
            port = listener.getsockname()[1]
            KeyValues(listener, f"/{_token(gang)}:{port}/").start()
        return environment(gang, peers.gather(port)[0])

    def leave(self) -> None:
        """End Horovod where a function has left it running: the others' threads would complain of a lost peer."""
        if "horovod.torch.mpi_ops" in sys.modules:
            sys.modules["horovod.torch.mpi_ops"].shutdown()


BACKEND = HorovodBackend()

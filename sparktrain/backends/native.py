"""The native backend: ranks are the worker processes as they are; frameworks read their environment."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psutil

from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets


def environment(gang: Gang) -> dict[str, str]:
    """What ``torch.distributed``'s ``env://`` and its kin read."""
    host, port = gang.endpoint
    return {
        "RANK": str(gang.rank),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_RANK": str(gang.local_rank),
        "LOCAL_WORLD_SIZE": str(gang.local_world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def interface_of(addresses: set[str]) -> str | None:
    """Name of the network interface that has one of these addresses."""
    for name, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] in addresses for entry in found):
            return name
    return None


class NativeBackend:
    def missing(self) -> str | None:
        """Nothing: each framework brings its own."""
        return None

    def prepare(self, gang: Gang) -> None:
        """Set this worker's environment; collectives use the interface that Spark knows this host by."""
        os.environ.update(environment(gang))
        host = gang.hosts[gang.rank]
        resolved = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
        name = interface_of(resolved)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        return environment(gang)


BACKEND = NativeBackend()

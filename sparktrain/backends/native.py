"""The native backend: ranks are the worker processes as they are; frameworks read their environment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import psutil

from sparktrain.backends import jax_cluster
from sparktrain.backends.companion import Alone, Companion
from sparktrain.gang import announce
from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets  # with it comes pyarrow, which the worker leaves to its trainer


def environment(gang: Gang, port: int) -> dict[str, str]:
    """What ``torch.distributed``'s ``env://`` and its kin read.

    Parameters
    ----------
    gang : Gang
    port : int
        Of rank 0, for them to meet.
    """
    return {
        "RANK": str(gang.rank),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_RANK": str(gang.local_rank),
        "LOCAL_WORLD_SIZE": str(gang.local_world_size),
        "MASTER_ADDR": gang.endpoint[0],
        "MASTER_PORT": str(port),
    }


def tf_config(gang: Gang, ports: list[int]) -> str:
    """``TF_CONFIG`` as TensorFlow's users know it: rank 0 is the chief, the others are workers."""
    addresses = [f"{host}:{port}" for host, port in zip(gang.hosts, ports, strict=True)]
    cluster = {"chief": addresses[:1], **({"worker": addresses[1:]} if addresses[1:] else {})}
    task = {"type": "worker", "index": gang.rank - 1} if gang.rank else {"type": "chief", "index": 0}
    return json.dumps({"cluster": cluster, "task": task})


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

    def companion(self, address: str, log: Callable[[str], None], environment: Mapping[str, str]) -> Companion:
        return Alone()

    def prepare(self, gang: Gang) -> None:
        """Set this worker's environment; collectives use the interface that Spark knows this host by."""
        os.environ.update(environment(gang, gang.endpoint[1]))
        host = gang.hosts[gang.rank]
        resolved = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
        name = interface_of(resolved)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """A port of their own for PyTorch, TensorFlow and JAX each: the gang's endpoint is taken by the gang."""
        own = gang.hosts[gang.rank]
        meeting, coordinating, serving = (peers.gather(port) for port in announce.free_ports(own, 3))
        host = announce.address_of(gang.endpoint[0])
        coordinator = f"[{host}]:{coordinating[0]}" if ":" in host else f"{host}:{coordinating[0]}"
        return {
            **environment(gang, meeting[0]),
            "TF_CONFIG": tf_config(gang, serving),
            **jax_cluster.environment(gang, coordinator),
        }

    def leave(self) -> None:
        """Nothing: frameworks' communicators end with the process."""


BACKEND = NativeBackend()

"""How the ranks of a Keras gang reach one another, by Keras's backend."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from sparktrain.backends.native import tf_config
from sparktrain.gang import announce, sockets
from sparktrain.gang.spec import Gang
from sparktrain.keras.lockstep import Tensors
from sparktrain.keras.peers import JaxPeers, Peers, SocketPeers, TorchPeers


@contextlib.contextmanager
def join(gang: Gang, listen_fd: int | None, backend: str = "native") -> Iterator[tuple[Peers, Tensors | None]]:
    """Be one rank of the gang; leave the block together with all others.

    Parameters
    ----------
    gang : Gang
    listen_fd : int or None
        On rank 0 the socket that its task listens on.
    backend : str
        The gang's.

    Yields
    ------
    peers : Peers
    tensors : Tensors or None
        None on JAX, whose ranks run one program.
    """
    framework = keras.backend.backend()
    if framework == "jax":
        with _jax(gang, listen_fd) as jax_peers:
            yield jax_peers, None
        return
    if framework == "torch":
        with _torch(gang, listen_fd, backend) as found:
            yield found
        return
    with _tensorflow(gang, listen_fd, backend) as found:
        yield found


@contextlib.contextmanager
def _torch(gang: Gang, listen_fd: int | None, backend: str) -> Iterator[tuple[Peers, Tensors]]:
    import torch

    from sparktrain.keras.tensors_torch import TorchTensors
    from sparktrain.torch import collective

    hides = torch.cuda.is_available() and gang.device != "cuda"  # GPUs that Spark does not schedule
    joined = collective.joining(backend)(gang, listen_fd)
    with joined as ranks, keras.device("cpu") if hides else contextlib.nullcontext():
        yield TorchPeers(ranks), TorchTensors(ranks)


@contextlib.contextmanager
def _tensorflow(gang: Gang, listen_fd: int | None, backend: str) -> Iterator[tuple[Peers, Tensors]]:
    """On the native backend, without a GPU, the ranks need nothing of PyTorch, whose import would take seconds."""
    from sparktrain.keras.tensors_tensorflow import HostTensors, limit

    limit(on_gpu=gang.device == "cuda")
    if gang.device == "cuda" or backend != "native":
        from sparktrain.torch import collective

        with collective.joining(backend)(gang, listen_fd) as ranks:
            peers = TorchPeers(ranks)
            os.environ["TF_CONFIG"] = tf_config(gang, peers.gather(announce.free_port(gang.hosts[gang.rank])))
            if gang.device == "cuda":
                from sparktrain.keras.tensors_nccl import DeviceTensors

                yield peers, DeviceTensors(ranks)
            else:
                yield peers, HostTensors(peers.sum)
        return
    with sockets.join(gang, listen_fd) as own:
        os.environ["TF_CONFIG"] = tf_config(gang, own.gather(announce.free_port(gang.hosts[gang.rank])))
        yield SocketPeers(own), HostTensors(own.sum)


@contextlib.contextmanager
def _jax(gang: Gang, listen_fd: int | None) -> Iterator[JaxPeers]:
    import jax

    if gang.device == "cpu":
        config: Any = jax.config
        config.update("jax_platforms", "cpu")
    if gang.world_size > 1:
        timeout_s = int(gang.collective_timeout_s)
        if gang.rank == 0:
            assert listen_fd is not None
            host = announce.address_of(gang.endpoint[0])
            port = announce.free_port(gang.endpoint[0])
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            announce.tell(listen_fd, {"coordinator": address})
        else:
            address = announce.ask(gang.endpoint, timeout_s)["coordinator"]
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=gang.world_size,
            process_id=gang.rank,
            local_device_ids=None,
            coordinator_bind_address=address if gang.rank == 0 else None,
            initialization_timeout=timeout_s,
        )
    yield JaxPeers(gang.rank, gang.world_size)
    if gang.world_size > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("sparktrain")  # rank 0 holds the coordinator

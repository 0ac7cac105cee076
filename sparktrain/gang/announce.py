"""Rank 0 tells the others where a framework's own service listens: on the gang's endpoint, before anything else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

CONNECT_S = 10.0


def tell(listen_fd: int, arguments: dict[str, Any]) -> None:
    """Tell whoever asks, until this process ends: nothing that is told may be secret, and nobody is waited for.

    Parameters
    ----------
    listen_fd : int
        The socket that rank 0's task listens on.
    arguments : dict
        Of plain values.
    """
    listener = socket.socket(fileno=listen_fd)
    text = json.dumps(arguments).encode()
    threading.Thread(target=_serve, args=(listener, text), daemon=True, name="sparktrain-announce").start()


def _serve(listener: socket.socket, text: bytes) -> None:
    while True:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(CONNECT_S)
                connection.sendall(text)


def ask(endpoint: tuple[str, int], timeout_s: float) -> dict[str, Any]:
    """What rank 0 tells; its socket has listened since before the ranks met, so this only waits."""
    with socket.create_connection(endpoint, CONNECT_S) as connection:
        connection.settimeout(timeout_s)
        with connection.makefile("rb") as file:
            arguments: dict[str, Any] = json.loads(file.read())
            return arguments


def address_of(host: str) -> str:
    """The numeric address that a host's name stands for."""
    return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])


def free_port(host: str) -> int:
    """A port of `host`, this machine's name, that nobody listens on right now."""
    return free_ports(host, 1)[0]


def free_ports(host: str, count: int) -> list[int]:
    """As many different ones."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family, kind, protocol)) for _ in range(count)]
        for probe in probes:
            probe.bind(address)
        return [int(probe.getsockname()[1]) for probe in probes]

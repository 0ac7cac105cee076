"""Horovod's rendezvous: who knows the prefix gets and puts, others nothing; it listens where it is told."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from sparktrain.backends import key_values
from sparktrain.backends.key_values import KeyValues

PREFIX = "/secret:123/"
Address = tuple[str, int]


@pytest.fixture
def address() -> Iterator[Address]:
    listener = socket.create_server(("127.0.0.2", 0))
    server = KeyValues(listener, PREFIX)
    server.start()
    yield listener.getsockname()
    server.shutdown()
    server.server_close()


def ask(address: Address, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=5)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_what_was_put_can_be_got_until_it_is_deleted(address: Address) -> None:
    key = f"{PREFIX}global/0"
    assert ask(address, "GET", key) == (404, b"")
    assert ask(address, "PUT", key, b"\x00where\n")[0] == 200
    assert ask(address, "GET", key) == (200, b"\x00where\n")
    assert ask(address, "GET", f"{PREFIX}local/0")[0] == 404
    assert ask(address, "DELETE", key)[0] == 200
    assert ask(address, "DELETE", key)[0] == 200
    assert ask(address, "GET", key)[0] == 404


@pytest.mark.parametrize("prefix", ["/", "/global/", "/secret:124/", "/SECRET:123/", "/secret:123"])
def test_a_stranger_learns_and_changes_nothing(address: Address, prefix: str) -> None:
    key = f"{PREFIX}global/0"
    ask(address, "PUT", key, b"where")
    assert ask(address, "GET", f"{prefix}global/0")[0] == 404
    assert ask(address, "PUT", f"{prefix}global/0", b"elsewhere")[0] == 403
    assert ask(address, "DELETE", f"{prefix}global/0")[0] == 404
    assert ask(address, "GET", key) == (200, b"where")


def test_idle_and_broken_connections_hold_up_nobody(address: Address) -> None:
    with socket.create_connection(address), socket.create_connection(address) as broken:
        broken.sendall(b"PUT /secret:123/global/1 HTTP/1.1\r\nContent-Length: x\r\n\r\n")
        assert ask(address, "PUT", f"{PREFIX}global/0", b"where")[0] == 200


def test_a_value_too_large_is_refused(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MOST_BYTES", 3)
    assert ask(address, "PUT", f"{PREFIX}global/0", b"more")[0] == 403


def test_it_listens_on_the_one_address(address: Address) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", address[1]))

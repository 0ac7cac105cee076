"""Horovod's rendezvous: values by key over HTTP, for those who know how a path must start.

Horovod brings a server of its own, which listens on all interfaces and answers whoever asks.
"""

from __future__ import annotations

import hmac
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

REQUEST_S = 10.0
MOST_BYTES = 1 << 20
"""Largest value; Horovod's are addresses."""


class KeyValues(ThreadingTCPServer):
    """Serves GET, PUT and DELETE on a listening socket, in threads that end with the process.

    Parameters
    ----------
    listener : socket
    prefix : str
        The start of each path, a secret.
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, prefix: str) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.prefix = prefix.encode()
        self.values: dict[str, bytes] = {}

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True, name="sparktrain-key-values").start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever breaks off its request has only itself to tell."""


class _Handler(BaseHTTPRequestHandler):
    server: KeyValues
    timeout = REQUEST_S

    def do_GET(self) -> None:
        key = self._key()
        value = None if key is None else self.server.values.get(key)
        if value is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, value)

    def do_PUT(self) -> None:
        key, size = self._key(), int(self.headers["Content-Length"])
        if key is None or not 0 <= size <= MOST_BYTES:
            self._answer(HTTPStatus.FORBIDDEN)
            return
        self.server.values[key] = self.rfile.read(size)
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        """All of a rank's peers have found it: where it is next time it puts anew."""
        key = self._key()
        if key is not None:
            self.server.values.pop(key, None)
        self._answer(HTTPStatus.NOT_FOUND if key is None else HTTPStatus.OK)

    def _key(self) -> str | None:
        """What comes after the prefix; None: a stranger's request."""
        prefix = self.server.prefix
        given = self.path.encode()
        known = hmac.compare_digest(given[: len(prefix)], prefix)
        return given[len(prefix) :].decode() if known else None

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, format: str, *args: Any) -> None:
        return

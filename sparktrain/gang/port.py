"""A port of the driver's that one run's tasks may talk to: one address, a random secret, closed after the run."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import socketserver
import threading
from typing import Any

from sparktrain.gang.spec import DriverAddress

logger = logging.getLogger(__name__)


class DriverPort(socketserver.ThreadingTCPServer):
    """Listens from the start, with a thread a connection, until closed.

    Parameters
    ----------
    host : str
        The driver's address as executors know it (``spark.driver.host``).
    bind : str
        The one address to listen on; most often the same.
    handler : type
        Must close a connection that does not show the secret.
    name : str
        Of the thread, and of what the port is for.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, bind: str, handler: type[socketserver.BaseRequestHandler], name: str) -> None:
        self.address_family, _, _, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
        self.secret = secrets.token_bytes(32)
        self._name = name
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)  # type: ignore[arg-type]
        self.address = DriverAddress(host, self.server_address[1], self.secret)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True, name=f"sparktrain-{name}")
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection for %s ended", self._name, exc_info=True)

    def close(self) -> None:
        """Close the port and all connections."""
        self.shutdown()
        self.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)

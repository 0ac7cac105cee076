"""Events from the gang to the driver: rank 0's task sends, the driver shows a progress bar.

A convenience on classic sessions only: whatever goes wrong here never stops a fit. The connection is
authenticated both ways by a random key of the run (`multiprocessing.connection`'s HMAC challenge); the
messages are JSON, of limited size.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from sparktrain.gang.spec import ProgressAddress

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES = 1 << 20
QUEUE_SIZE = 256


def _family(host: str, port: int) -> tuple[str, Any]:
    """``AF_INET`` or ``AF_INET6``, and the address to use, for a host name."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return ("AF_INET6" if family == socket.AF_INET6 else "AF_INET"), address


class EventRelay:
    """The task's end: a thread that forwards events, and drops them where the driver can't be reached."""

    def __init__(self, target: ProgressAddress | None) -> None:
        self._target = target
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(QUEUE_SIZE)
        self._thread = threading.Thread(target=self._forward, daemon=True, name="sparktrain-events")

    def send(self, event: dict[str, Any]) -> None:
        """Never blocks; a full queue drops the event."""
        if self._target is not None:
            with contextlib.suppress(queue.Full):
                self._events.put_nowait(event)

    def _forward(self) -> None:
        assert self._target is not None
        try:
            family, address = _family(self._target.host, self._target.port)
            with Client(address, family=family, authkey=self._target.secret) as connection:
                while (event := self._events.get()) is not None:
                    connection.send_bytes(json.dumps(event).encode())
        except (OSError, EOFError, AuthenticationError) as error:
            logger.warning("no live progress: the driver at %s can't be reached: %s", self._target.host, error)

    def __enter__(self) -> EventRelay:
        if self._target is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._target is not None:
            with contextlib.suppress(queue.Full):
                self._events.put_nowait(None)
            self._thread.join(1.0)


class ProgressListener:
    """The driver's end: one authenticated connection, each event to `on_event`, until closed.

    Parameters
    ----------
    host : str
        The driver's address as executors know it (``spark.driver.host``).
    bind : str
        The one address to listen on; most often the same.
    on_event : callable
        Called in the listener's thread.
    """

    def __init__(self, host: str, bind: str, on_event: Callable[[dict[str, Any]], None]) -> None:
        secret = secrets.token_bytes(32)
        family, address = _family(bind, 0)
        self._listener = Listener(address, family=family, authkey=secret)
        self._bound = (bind, self._listener.address[1])
        self.address = ProgressAddress(host, self._bound[1], secret)
        self._on_event = on_event
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name="sparktrain-progress")
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                self._connection = self._listener.accept()
            except AuthenticationError:
                continue  # a stranger; the gang's task may still come
            except (OSError, EOFError):
                if self._closed.is_set():
                    return
                continue
            with contextlib.suppress(OSError, EOFError, ValueError), self._connection as connection:
                while not self._closed.is_set():
                    self._on_event(json.loads(connection.recv_bytes(MAX_EVENT_BYTES)))

    def close(self) -> None:
        """Close the port and end the thread."""
        self._closed.set()
        family, address = _family(*self._bound)
        with contextlib.suppress(OSError), socket.socket(getattr(socket, family)) as knock:
            knock.settimeout(1.0)
            knock.connect(address)  # wakes accept()
        with contextlib.suppress(OSError):
            self._listener.close()
        self._thread.join(2.0)


class ProgressBar:
    """A live line per fit: epoch, step, loss, rows/s. Shows nothing where output is no terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[Any] | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            self._progress(event)

    def _progress(self, event: dict[str, Any]) -> None:
        if self._bar is None:
            total = event["steps"] * event["epochs"]
            self._bar = tqdm(total=total, desc=self._label, unit="step", disable=None, dynamic_ncols=True)
        shown = {name: f"{value:.4g}" for name, value in event["metrics"].items()}
        self._bar.set_description(f"{self._label} epoch {event['epoch']}/{event['epochs']}", refresh=False)
        self._bar.set_postfix({**shown, "rows/s": f"{event['rows_per_s']:,.0f}"}, refresh=False)
        done = (event["epoch"] - 1) * event["steps"] + event["step"]
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

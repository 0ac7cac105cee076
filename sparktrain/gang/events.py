"""Events from the gang to the driver: rank 0's task sends, the driver shows a progress bar.

A convenience on classic sessions only: whatever goes wrong here never stops a fit. An event is a line
of JSON, of limited size, behind its HMAC-SHA256 by a random key of the run over its number and text;
the driver drops a connection at the first line that is not signed so.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib.util
import json
import logging
import queue
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tqdm.std import tqdm

from sparktrain.gang.port import DriverPort
from sparktrain.gang.spec import DriverAddress

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 16
MAX_EVENT_BYTES = MAX_LINE_BYTES - 128  # less the signature
QUEUE_SIZE = 256
CONNECT_S = 5.0
DRAIN_S = 5.0
"""How long the end of a task waits until its last events are gone."""


def _signed(secret: bytes, number: int, text: bytes) -> bytes:
    return hmac.new(secret, b"%d:%s" % (number, text), "sha256").hexdigest().encode()


class EventRelay:
    """The task's end: a thread that forwards events, and drops them where the driver can't be reached.

    Parameters
    ----------
    target : DriverAddress or None
        None: nobody listens.
    size : int
        How many events may wait.

    Attributes
    ----------
    trouble : str or None
        Why the driver has not got all events, where something went wrong.
    """

    def __init__(self, target: DriverAddress | None, size: int = QUEUE_SIZE) -> None:
        self._target = target
        self._events: queue.Queue[bytes | None] = queue.Queue(size)
        self.trouble: str | None = None
        self._thread = threading.Thread(target=self._forward, daemon=True, name="sparktrain-events")

    def send(self, event: dict[str, Any]) -> bool:
        """Never blocks or raises: an event too large, or no JSON, or that finds the queue full is dropped (False)."""
        if self._target is None or self.trouble is not None:
            return False
        with contextlib.suppress(queue.Full, TypeError, ValueError):
            text = json.dumps(event, default=str).encode()
            if len(text) <= MAX_EVENT_BYTES:
                self._events.put_nowait(text)
                return True
        return False

    def _forward(self) -> None:
        assert self._target is not None
        try:
            with socket.create_connection((self._target.host, self._target.port), CONNECT_S) as connection:
                number = 0
                while (text := self._events.get()) is not None:
                    connection.sendall(_signed(self._target.secret, number, text) + b" " + text + b"\n")
                    number += 1
        except OSError as error:
            self.trouble = f"the driver at {self._target.host}:{self._target.port} can't be reached: {error}"
            logger.warning("no live progress: %s", self.trouble)

    def __enter__(self) -> EventRelay:
        if self._target is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._target is not None:
            with contextlib.suppress(queue.Full, queue.Empty):
                if self._events.full():  # nothing drains it: make room for the end
                    self._events.get_nowait()
                self._events.put_nowait(None)
            self._thread.join(DRAIN_S)


class _Lines(socketserver.StreamRequestHandler):
    """One connection: signed lines to `on_event`, until it closes or sends another line."""

    server: ProgressListener

    def handle(self) -> None:
        number = 0
        while line := self.rfile.readline(MAX_LINE_BYTES):
            signature, _, text = line.rstrip(b"\n").partition(b" ")
            if not hmac.compare_digest(signature, _signed(self.server.secret, number, text)):
                return
            self.server.on_event(json.loads(text))
            number += 1


class ProgressListener(DriverPort):
    """The driver's end: calls `on_event` for each event that carries the run's signature, until closed.

    Parameters
    ----------
    host, bind : str
        As for `DriverPort`.
    on_event : callable
        Called in a thread of the listener.
    """

    def __init__(self, host: str, bind: str, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.on_event = on_event
        super().__init__(host, bind, _Lines, "progress")


class ProgressBar:
    """A live line per fit: epoch, step, loss, rows/s.

    A widget in a notebook, text where that has no ipywidgets, a line on a terminal; elsewhere nothing.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[Any] | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            self._progress(event)
        elif event["kind"] == "rounds":
            self._rounds(event)
        elif event["kind"] == "finished" and self._bar is not None:
            self._bar.total = self._bar.n  # it may have stopped early, which is no failure
            self._bar.refresh()

    def _rounds(self, event: dict[str, Any]) -> None:
        if self._bar is None:
            self._bar = _live_line(total=event["total"], desc=self._label, unit="round", dynamic_ncols=True)
        self._bar.set_postfix({name: f"{value:.4g}" for name, value in event["metrics"].items()}, refresh=False)
        self._bar.update(event["done"] - self._bar.n)

    def _progress(self, event: dict[str, Any]) -> None:
        if self._bar is None:
            total = event["steps"] * event["epochs"]
            self._bar = _live_line(total=total, desc=self._label, unit="step", dynamic_ncols=True)
        shown = {name: f"{value:.4g}" for name, value in event["metrics"].items()}
        self._bar.set_description(f"{self._label} epoch {event['epoch']}/{event['epochs']}", refresh=False)
        self._bar.set_postfix({**shown, "rows/s": f"{event['rows_per_s']:,.0f}"}, refresh=False)
        done = (event["epoch"] - 1) * event["steps"] + event["step"]
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class LogLines:
    """Shows what the ranks of a gang print, each line behind its rank."""

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "log":
            self.show(event["rank"], event["text"])

    def show(self, rank: int, text: str) -> None:
        tqdm.write(f"[rank {rank}] {text}")  # which leaves progress bars whole

    def close(self) -> None:
        return


def _live_line(**settings: Any) -> tqdm[Any]:
    if not _in_notebook():
        return tqdm(**settings, disable=None)  # None: unless it is a terminal
    # A notebook's output is no terminal, and shows the bar nevertheless.
    if importlib.util.find_spec("ipywidgets") is None:
        return tqdm(**settings, disable=False, file=sys.stdout)  # its stderr looks like an error
    from tqdm.notebook import tqdm as widget

    return widget(**settings, disable=False)


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel, which IPython's own terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None

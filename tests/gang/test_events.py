"""Events from a task to the driver over loopback; whatever goes wrong, nobody else notices."""

import json
import logging
import pickle
import queue
import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sparktrain.gang.events import MAX_LINE_BYTES, QUEUE_SIZE, EventRelay, ProgressBar, ProgressListener, _signed
from sparktrain.gang.spec import DriverAddress

WAIT_S = 10.0
LOOPBACK = "127.0.0.1"
EVENT = {"kind": "progress", "step": 1}
TEXT = json.dumps(EVENT).encode()


class Driver:
    """A listener, and the events it got."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.listener = ProgressListener(host, host, self.events.put)
        self.address = self.listener.address

    def next(self) -> dict[str, Any]:
        return self.events.get(timeout=WAIT_S)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address.host, self.address.port), timeout=WAIT_S)

    def line(self, number: int, text: bytes = TEXT) -> bytes:
        return line(self.address.secret, number, text)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.listener.close()


def line(secret: bytes, number: int, text: bytes = TEXT) -> bytes:
    """A line as a task that knows the secret sends it."""
    return _signed(secret, number, text) + b" " + text + b"\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def works(driver: Driver) -> bool:
    """Whether a task's event still gets through."""
    with EventRelay(driver.address) as relay:
        relay.send({"kind": "still there?"})
        return driver.next() == {"kind": "still there?"}


def is_dropped(stranger: socket.socket) -> bool:
    """Whether the driver ends the connection, and sends nothing before."""
    try:
        return stranger.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def test_events_arrive_in_order(driver: Driver) -> None:
    with EventRelay(driver.address) as relay:
        for step in range(20):
            relay.send({"kind": "progress", "step": step, "metrics": {"loss": 0.5}})
        got = [driver.next() for _ in range(20)]
    assert got == [{"kind": "progress", "step": step, "metrics": {"loss": 0.5}} for step in range(20)]


def test_a_second_relay_is_served_after_the_first(driver: Driver) -> None:
    assert works(driver)
    assert works(driver)


def test_over_ipv6() -> None:
    try:
        driver = Driver("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        assert works(driver)
    finally:
        driver.listener.close()


def test_values_that_json_does_not_know_are_sent_as_text(driver: Driver) -> None:
    with EventRelay(driver.address) as relay:
        relay.send({"kind": "progress", "loss": Decimal("0.5"), "at": Path("data")})
        assert driver.next() == {"kind": "progress", "loss": "0.5", "at": "data"}


# Strangers


@pytest.mark.parametrize(
    "sent",
    [
        lambda secret: line(b"guessed", 0),
        lambda secret: TEXT + b"\n",
        lambda secret: b" " + TEXT + b"\n",
        lambda secret: _signed(secret, 0, b"{}") + b" " + TEXT + b"\n",
        lambda secret: line(secret, 1),
        lambda secret: b"\n",
        lambda secret: b"GET / HTTP/1.1\r\n\r\n",
        lambda secret: b"\xff" * 400 + b"\n",
        lambda secret: pickle.dumps(EVENT) + b"\n",
        lambda secret: b"x" * MAX_LINE_BYTES,
        lambda secret: line(secret, 0, json.dumps("x" * MAX_LINE_BYTES).encode()),
    ],
    ids=[
        "wrong key",
        "unsigned JSON",
        "empty signature",
        "signature of another text",
        "number of another line",
        "empty line",
        "HTTP",
        "binary",
        "pickle",
        "no end of line",
        "signed but too long",
    ],
)
def test_a_connection_is_dropped_at_the_first_line_with_a_wrong_signature(
    driver: Driver, sent: Callable[[bytes], bytes]
) -> None:
    with driver.connect() as stranger:
        stranger.sendall(sent(driver.address.secret))
        assert is_dropped(stranger)
    assert works(driver)
    assert driver.events.empty()


def test_a_replayed_line_is_dropped(driver: Driver) -> None:
    with driver.connect() as stranger:
        stranger.sendall(driver.line(0) * 2)
        assert driver.next() == EVENT
        assert is_dropped(stranger)
    assert driver.events.empty()


def test_what_follows_a_wrong_line_does_not_count(driver: Driver) -> None:
    with driver.connect() as stranger:
        stranger.sendall(line(b"guessed", 0) + driver.line(0) + driver.line(1))
        assert is_dropped(stranger)
    assert driver.events.empty()


def test_the_longest_line(driver: Driver) -> None:
    text = json.dumps("x" * (MAX_LINE_BYTES - len(driver.line(0, b'""')))).encode()
    assert len(driver.line(0, text)) == MAX_LINE_BYTES
    with driver.connect() as task:
        task.sendall(driver.line(0, text) + driver.line(1))
        assert len(driver.next()) == len(text) - 2
        assert driver.next() == EVENT


def test_a_signed_line_that_is_no_json(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    with driver.connect() as stranger:
        stranger.sendall(driver.line(0, b"{not json"))
        assert is_dropped(stranger)
    assert works(driver)
    assert driver.events.empty()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("sent", [b"", b"half a li"])
def test_a_stranger_that_leaves(driver: Driver, sent: bytes) -> None:
    with driver.connect() as stranger:
        stranger.sendall(sent)
    assert works(driver)
    assert driver.events.empty()


@pytest.mark.parametrize("sent", [b"", b"half a li"])
def test_a_silent_stranger_keeps_no_task_out(driver: Driver, sent: bytes) -> None:
    with driver.connect() as stranger:
        stranger.sendall(sent)
        assert works(driver)


def test_a_task_that_does_not_know_the_secret(driver: Driver) -> None:
    with EventRelay(DriverAddress(LOOPBACK, driver.address.port, b"of another run")) as relay:
        relay.send(EVENT)
    assert works(driver)
    assert driver.events.empty()


def test_the_secret_is_random_and_not_shown(driver: Driver) -> None:
    assert len(driver.address.secret) >= 16
    other = Driver()
    try:
        assert other.address.secret != driver.address.secret
    finally:
        other.listener.close()
    assert repr(driver.address.secret) not in repr(driver.address)


# Ends


def test_close_frees_the_port(driver: Driver) -> None:
    assert works(driver)
    driver.listener.close()
    with pytest.raises(ConnectionRefusedError):
        driver.connect()
    driver.listener.close()  # again does no harm


def test_close_while_connected(driver: Driver) -> None:
    with driver.connect() as stranger, EventRelay(driver.address) as relay:
        relay.send(EVENT)
        assert driver.next() == EVENT
        driver.listener.close()
        assert not driver.listener._thread.is_alive()
        assert is_dropped(stranger)
        relay.send(EVENT)  # lost, without an error
    assert driver.events.empty()


def test_an_unreachable_driver_does_not_stop_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    address = DriverAddress(LOOPBACK, free_port(), b"secret")
    with caplog.at_level(logging.WARNING, logger="sparktrain"), EventRelay(address) as relay:
        for step in range(2 * QUEUE_SIZE):  # more than the queue holds: dropped, not waited for
            relay.send({"kind": "progress", "step": step})
        relay._thread.join(WAIT_S)
    assert f"no live progress: the driver at {LOOPBACK}:{address.port} can't be reached" in caplog.text
    assert "secret" not in caplog.text


def test_a_driver_that_does_not_read_holds_nobody_up() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        with EventRelay(DriverAddress(LOOPBACK, silent.getsockname()[1], b"secret")) as relay:
            for _ in range(2 * QUEUE_SIZE):
                relay.send({"kind": "progress", "metrics": "x" * 50_000})
        assert relay._thread.is_alive(), "it still tries; the task has gone on"
    relay._thread.join(WAIT_S)
    assert not relay._thread.is_alive()


def test_an_event_that_the_driver_can_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(event: dict[str, Any]) -> None:
        raise KeyError("steps")

    listener = ProgressListener(LOOPBACK, LOOPBACK, fail)
    try:
        with socket.create_connection((LOOPBACK, listener.address.port), timeout=WAIT_S) as task:
            task.sendall(line(listener.address.secret, 0))
            assert is_dropped(task)
    finally:
        listener.close()
    assert capsys.readouterr() == ("", "")


def test_nobody_listens() -> None:
    with EventRelay(None) as relay:
        relay.send({"kind": "progress"})


def test_the_bar_shows_nothing_where_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("TorchEstimator")
    step = {"epoch": 1, "epochs": 2, "step": 3, "steps": 5, "metrics": {"loss": 0.25}, "rows_per_s": 1e6}
    bar({"kind": "progress", **step})
    bar({"kind": "something else"})
    bar.close()
    assert capsys.readouterr() == ("", "")

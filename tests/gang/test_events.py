"""Events from a task to the driver over loopback; whatever goes wrong, nobody else notices."""

import logging
import queue
import socket
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import pytest

from sparktrain.gang.events import QUEUE_SIZE, EventRelay, ProgressBar, ProgressListener
from sparktrain.gang.spec import ProgressAddress

WAIT_S = 30.0
LOOPBACK = "127.0.0.1"


class Driver:
    """A listener, and the events it got."""

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.listener = ProgressListener(LOOPBACK, LOOPBACK, self.events.put)
        self.address = self.listener.address

    def next(self) -> dict[str, Any]:
        return self.events.get(timeout=WAIT_S)

    def connect(self, secret: bytes | None = None) -> Any:
        return Client((LOOPBACK, self.address.port), authkey=secret or self.address.secret)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.listener.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def works(driver: Driver) -> bool:
    """Whether a task's event still gets through."""
    with EventRelay(driver.address) as relay:
        relay.send({"kind": "still there?"})
        return driver.next() == {"kind": "still there?"}


def test_events_arrive_in_order(driver: Driver) -> None:
    with EventRelay(driver.address) as relay:
        for step in range(20):
            relay.send({"kind": "progress", "step": step, "metrics": {"loss": 0.5}})
        got = [driver.next() for _ in range(20)]
    assert got == [{"kind": "progress", "step": step, "metrics": {"loss": 0.5}} for step in range(20)]


def test_a_second_relay_is_served_after_the_first(driver: Driver) -> None:
    assert works(driver)
    assert works(driver)


def test_a_stranger_with_a_wrong_key(driver: Driver) -> None:
    with pytest.raises(AuthenticationError):
        driver.connect(b"guessed")
    assert works(driver)


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 400, b"\x00\x00\x00\x08garbage!"])
def test_a_stranger_with_garbage(driver: Driver, garbage: bytes) -> None:
    with socket.create_connection((LOOPBACK, driver.address.port), timeout=WAIT_S) as stranger:
        stranger.sendall(garbage)
    assert works(driver)


def test_a_message_that_is_no_event(driver: Driver) -> None:
    with driver.connect() as connection:
        connection.send_bytes(b"{not json")
    assert works(driver)
    assert driver.events.empty()


def test_messages_are_never_unpickled(driver: Driver) -> None:
    with driver.connect() as connection:
        connection.send({"kind": "progress"})  # a pickle
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


def test_close_frees_the_port(driver: Driver) -> None:
    assert works(driver)
    driver.listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, driver.address.port), timeout=WAIT_S)
    driver.listener.close()  # again does no harm


def test_an_unreachable_driver_does_not_stop_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    address = ProgressAddress(LOOPBACK, free_port(), b"secret")
    with caplog.at_level(logging.WARNING, logger="sparktrain"), EventRelay(address) as relay:
        for step in range(2 * QUEUE_SIZE):  # more than the queue holds: dropped, not waited for
            relay.send({"kind": "progress", "step": step})
    relay._thread.join(WAIT_S)
    assert f"no live progress: the driver at {LOOPBACK} can't be reached" in caplog.text
    assert "secret" not in caplog.text


def test_a_driver_that_does_not_know_the_secret(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    address = ProgressAddress(LOOPBACK, driver.address.port, b"of another run")
    with caplog.at_level(logging.WARNING, logger="sparktrain"), EventRelay(address) as relay:
        relay.send({"kind": "progress"})
    assert works(driver)
    assert driver.events.empty()


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

"""A result's way over a socket: what arrives is whole and signed, or nothing arrives."""

import contextlib
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sparktrain.errors import GangError
from sparktrain.gang import delivery
from sparktrain.gang.delivery import DeliveryError, ResultReceiver, deliver, receive_exactly
from sparktrain.gang.result import Result
from sparktrain.gang.spec import DriverAddress

LOOPBACK = "127.0.0.1"
WAIT_S = 10.0
RESULT = bytes(range(256)) * 5  # 1,280 bytes: three chunks, the last one short


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHUNK_BYTES", 512)


@pytest.fixture
def receiver() -> Iterator[ResultReceiver]:
    made = ResultReceiver(LOOPBACK, LOOPBACK)
    yield made
    made.close()


def send(address: DriverAddress, data: bytes = RESULT) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return deliver(address, file.fileno())


class Task:
    """A connection that plays the task by hand."""

    def __init__(self, address: DriverAddress, secret: bytes | None = None) -> None:
        self.socket = socket.create_connection((address.host, address.port), WAIT_S)
        nonce = bytes(receive_exactly(self.socket, 32, time.monotonic() + WAIT_S))
        self.channel = delivery._Channel(self.socket, secret or address.secret, nonce)

    def announce(self, size: int) -> None:
        self.send((0).to_bytes(4, "big") + size.to_bytes(8, "big"))

    def send(self, data: bytes) -> None:
        self.channel.send(b"to driver", data, WAIT_S)

    def is_dropped(self) -> bool:
        """The driver closed the connection, without a receipt."""
        self.socket.settimeout(WAIT_S)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        finally:
            self.socket.close()


def nothing_arrived(receiver: ResultReceiver) -> bool:
    with pytest.raises(GangError, match="but nothing arrived"):
        receiver.take(0, len(RESULT))
    return True


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1280])
def test_a_result_arrives_whole(receiver: ResultReceiver, size: int) -> None:
    assert send(receiver.address, RESULT[:size]) == size
    assert receiver.take(0, size).read() == RESULT[:size]
    receiver.close()
    assert receiver.take(0, size).read() == RESULT[:size], "after the port is closed as well"


def test_another_size_than_rank_0_tells(receiver: ResultReceiver) -> None:
    send(receiver.address)
    with pytest.raises(GangError, match="a result of 1,281 bytes, but 1,280 bytes arrived"):
        receiver.take(0, 1281)


def test_the_secret_is_random_and_not_shown(receiver: ResultReceiver) -> None:
    other = ResultReceiver(LOOPBACK, LOOPBACK)
    other.close()
    assert len(receiver.address.secret) == 32
    assert receiver.address.secret != other.address.secret
    assert repr(receiver.address.secret) not in repr(receiver.address)


def test_the_port_is_on_the_given_address_only(receiver: ResultReceiver) -> None:
    assert receiver.server_address[0] == LOOPBACK


def test_a_task_of_another_run(receiver: ResultReceiver) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - closed or reset, by timing
        send(replace(receiver.address, secret=b"of another run"))
    assert nothing_arrived(receiver)


def test_a_task_that_does_not_know_the_secret_makes_no_file(
    receiver: ResultReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Result] = []
    monkeypatch.setattr(delivery, "Result", lambda: made.append(Result()) or made[0])
    stranger = Task(receiver.address, b"guessed")
    stranger.announce(0)
    assert stranger.is_dropped()
    assert not made


def test_a_cut_connection(receiver: ResultReceiver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sparktrain"):
        task = Task(receiver.address)
        task.announce(len(RESULT))
        task.send(RESULT[:512])
        task.socket.shutdown(socket.SHUT_WR)
        assert task.is_dropped()
    assert nothing_arrived(receiver)
    assert "a result of 1,280 bytes did not arrive" in caplog.text
    assert send(receiver.address) == 1280, "and a new try is welcome"


def test_a_replayed_chunk(receiver: ResultReceiver) -> None:
    task = Task(receiver.address)
    task.announce(1024)
    frames: list[bytes] = []
    task.socket = task.channel._connection = Recorder(task.socket, frames)  # type: ignore[assignment]
    task.send(RESULT[:512])
    for frame in frames[:2]:  # head and data, again
        task.socket.sendall(frame)
    assert task.is_dropped()
    assert nothing_arrived(receiver)


def test_a_replayed_connection(receiver: ResultReceiver) -> None:
    frames: list[bytes] = []
    task = Task(receiver.address)
    task.socket = task.channel._connection = Recorder(task.socket, frames)  # type: ignore[assignment]
    task.announce(4)
    task.send(b"evil")
    task.channel.receive(b"to task", 8, WAIT_S)
    task.socket.close()
    receiver._results.clear()
    again = Task(receiver.address)
    again.socket.sendall(b"".join(frames))
    assert again.is_dropped()
    assert nothing_arrived(receiver)


class Recorder:
    def __init__(self, connection: socket.socket, frames: list[bytes]) -> None:
        self._connection, self._frames = connection, frames

    def sendall(self, data: bytes) -> None:
        self._frames.append(bytes(data))
        self._connection.sendall(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.mark.parametrize("sent", [513, 0])
def test_a_chunk_too_long_or_empty(receiver: ResultReceiver, sent: int) -> None:
    task = Task(receiver.address)
    task.announce(len(RESULT))
    task.send(bytes(sent))
    assert task.is_dropped()
    assert nothing_arrived(receiver)


def test_more_bytes_than_announced(receiver: ResultReceiver) -> None:
    task = Task(receiver.address)
    task.announce(100)
    task.send(bytes(101))
    assert task.is_dropped()
    assert nothing_arrived(receiver)


def test_a_silent_stranger_is_shown_out_and_keeps_no_task_waiting(
    receiver: ResultReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "CONNECT_S", 0.3)
    stranger = Task(receiver.address)
    assert send(receiver.address) == 1280
    assert stranger.is_dropped()


def test_a_dripping_stranger_meets_the_same_deadline(receiver: ResultReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CONNECT_S", 0.5)
    stranger = Task(receiver.address)
    deadline = time.monotonic() + 5
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            stranger.socket.sendall(b"\0")
            time.sleep(0.1)
    assert time.monotonic() < deadline
    stranger.socket.close()


def test_a_task_that_stalls(receiver: ResultReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHUNK_S", 0.3)
    task = Task(receiver.address)
    task.announce(len(RESULT))
    assert task.is_dropped()


def test_a_driver_whose_disk_is_full(receiver: ResultReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(delivery.Result, "append", full)
    with pytest.raises(OSError):  # noqa: PT011 - closed or reset, by timing
        send(receiver.address)
    assert nothing_arrived(receiver)


@pytest.fixture
def impostor() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield listening


def test_a_driver_that_does_not_greet(impostor: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CONNECT_S", 0.3)
    with pytest.raises(TimeoutError):
        send(DriverAddress(LOOPBACK, impostor.getsockname()[1], b"secret"))


def test_a_receipt_that_is_not_the_driver_s(impostor: socket.socket) -> None:
    def serve() -> None:
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(bytes(32))
            receive_exactly(connection, 36 + 12 + 36 + 5, time.monotonic() + WAIT_S)
            delivery._Channel(connection, b"guessed", bytes(32)).send(b"to task", (5).to_bytes(8, "big"), WAIT_S)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(DeliveryError, match="not signed for this run"):
        send(DriverAddress(LOOPBACK, impostor.getsockname()[1], b"secret"), b"model")
    thread.join(WAIT_S)


def test_nobody_listens(receiver: ResultReceiver) -> None:
    receiver.close()
    with pytest.raises(ConnectionRefusedError):
        send(receiver.address)


def test_close_in_the_middle_of_a_delivery(receiver: ResultReceiver) -> None:
    task = Task(receiver.address)
    task.announce(len(RESULT))
    time.sleep(0.1)
    receiver.close()
    assert task.is_dropped()
    assert nothing_arrived(receiver)

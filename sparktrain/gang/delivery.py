"""A large result from a rank's task to a file of the driver, past Spark's rows.

`spark.driver.maxResultSize` and the driver's heap bound what rows can carry, so on classic sessions a
result over `result.IN_ROWS_BYTES` takes a socket. The driver greets each connection with a random
nonce; what the task sends is frames (length, HMAC-SHA256, data), signed with the run's secret over
nonce, frame number and data: first rank and size, then the result in chunks. The driver drops a connection
at the first frame that is not signed so, and signs its receipt. Nothing is encrypted, as Spark's own
traffic isn't by default.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import socketserver
import struct
import time

from sparktrain.errors import GangError
from sparktrain.gang.port import DriverPort
from sparktrain.gang.result import Result
from sparktrain.gang.spec import DriverAddress

logger = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20
CONNECT_S = 10.0
"""For the connection, the greeting and the first frame: how long a stranger may stay."""
CHUNK_S = 60.0
"""For each later chunk, and for the receipt."""
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_HEAD = struct.Struct("!IQ")
_NONCE_BYTES = _MAC_BYTES = 32


class DeliveryError(ConnectionError):
    """The other side broke the protocol, or is not who it should be."""


class _Channel:
    """Signed frames over one connection, each numbered within its direction, each with a deadline."""

    def __init__(self, connection: socket.socket, secret: bytes, nonce: bytes) -> None:
        self._connection = connection
        self._secret = secret
        self._nonce = nonce
        self._sent = self._received = 0

    def send(self, direction: bytes, data: bytes, timeout_s: float) -> None:
        signature = self._sign(direction, self._sent, data)
        self._sent += 1
        self._connection.settimeout(timeout_s)  # for all of `sendall`
        self._connection.sendall(_LENGTH.pack(len(data)) + signature)
        self._connection.sendall(data)

    def receive(self, direction: bytes, limit: int, timeout_s: float) -> bytearray:
        deadline = time.monotonic() + timeout_s
        head = receive_exactly(self._connection, _LENGTH.size + _MAC_BYTES, deadline)
        (length,) = _LENGTH.unpack(head[: _LENGTH.size])
        if length > limit:
            raise DeliveryError(f"a frame of {length:,} bytes where at most {limit:,} were expected")
        data = receive_exactly(self._connection, length, deadline)
        if not hmac.compare_digest(head[_LENGTH.size :], self._sign(direction, self._received, data)):
            raise DeliveryError("a frame that is not signed for this run, connection and place")
        self._received += 1
        return data

    def _sign(self, direction: bytes, number: int, data: bytes | bytearray) -> bytes:
        signature = hmac.new(self._secret, direction + self._nonce + _NUMBER.pack(number), "sha256")
        signature.update(data)
        return signature.digest()


def receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytearray:
    """`size` bytes, before the clock (`time.monotonic`) shows `deadline`."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other side was too slow")
        connection.settimeout(left_s)
        count = connection.recv_into(rest)
        if not count:
            raise DeliveryError(f"the connection closed with {len(rest):,} of {size:,} bytes missing")
        rest = rest[count:]
    return data


_TO_DRIVER, _TO_TASK = b"to driver", b"to task"


def deliver(address: DriverAddress, fd: int, rank: int = 0) -> int:
    """The task's end: send the file `fd`, the result of `rank`, and wait for the receipt.

    Returns
    -------
    int
        The bytes sent.

    Raises
    ------
    OSError
        The driver can't be reached, refused, or gave no receipt in time: nothing was delivered.
    """
    size = os.fstat(fd).st_size
    with socket.create_connection((address.host, address.port), CONNECT_S) as connection:
        nonce = receive_exactly(connection, _NONCE_BYTES, time.monotonic() + CONNECT_S)
        channel = _Channel(connection, address.secret, bytes(nonce))
        channel.send(_TO_DRIVER, _HEAD.pack(rank, size), CONNECT_S)
        offset = 0
        while offset < size:  # by offset: the worker shares the file's position
            data = os.pread(fd, CHUNK_BYTES, offset)
            if not data:
                raise DeliveryError("the result file was cut short meanwhile")
            channel.send(_TO_DRIVER, data, CHUNK_S)
            offset += len(data)
        receipt = channel.receive(_TO_TASK, _NUMBER.size, CHUNK_S)
        if receipt != _NUMBER.pack(size):
            raise DeliveryError("the driver's receipt is of another size")
    return size


class _Delivery(socketserver.BaseRequestHandler):
    """One connection: a whole result to `complete`, or nothing."""

    server: ResultReceiver
    request: socket.socket

    def handle(self) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self.request.settimeout(CONNECT_S)
        self.request.sendall(nonce)
        channel = _Channel(self.request, self.server.secret, nonce)
        rank, size = _HEAD.unpack(channel.receive(_TO_DRIVER, _HEAD.size, CONNECT_S))
        result = Result()  # not before a signed frame: strangers make no files
        try:
            missing = size
            while missing:
                data = channel.receive(_TO_DRIVER, min(CHUNK_BYTES, missing), CHUNK_S)
                if not data:
                    raise DeliveryError("an empty chunk")
                result.append(data)
                missing -= len(data)
        except OSError as error:
            result.close()
            logger.warning("a result of %s bytes did not arrive, the gang falls back to rows: %s", f"{size:,}", error)
            raise
        self.server.complete(rank, result)
        channel.send(_TO_TASK, _NUMBER.pack(size), CHUNK_S)


class ResultReceiver(DriverPort):
    """The driver's end: keeps of each rank the result that arrives whole and signed.

    Parameters
    ----------
    host, bind : str
        As for `DriverPort`.
    """

    def __init__(self, host: str, bind: str) -> None:
        self._results: dict[int, Result] = {}
        super().__init__(host, bind, _Delivery, "result")

    def complete(self, rank: int, result: Result) -> None:
        self._results[rank] = result

    def take(self, rank: int, size: int) -> Result:
        """What arrived of a rank, which says in its rows that it sent `size` bytes.

        Raises
        ------
        GangError
            Where something else arrived.
        """
        result = self._results.get(rank)
        found = "nothing" if result is None else f"{result.size:,} bytes"
        if result is None or result.size != size:
            raise GangError(f"rank {rank} delivered a result of {size:,} bytes, but {found} arrived at the driver")
        return result

"""How ranks find one another: each task offers a card through Spark's barrier, all get the same Gang."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass

from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang.spec import Gang
from sparktrain.shards.spool import SpoolReport


@dataclass(frozen=True)
class BarrierView:
    """What a task knows of its barrier stage; `all_gather` blocks until every task has called it."""

    rank: int
    hosts: tuple[str, ...]
    all_gather: Callable[[str], Sequence[str]]
    cpus: int = 1
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """What each rank tells all others: where it can be reached, what it holds, where it computes."""

    address: str
    port: int
    device: str
    report: SpoolReport


def host_of(task_address: str) -> str:
    """The host in a Spark task address: ``host:port``, ``[::1]:port``, or a bare host or IPv6 address."""
    if task_address.startswith("["):
        return task_address[1:].partition("]")[0]
    head, _, port = task_address.rpartition(":")
    return head if head and port.isdigit() and ":" not in head else task_address


def listen(host: str) -> socket.socket:
    """A listening socket on the address of `host` only, on a free port; IPv4 or IPv6, as it resolves.

    Where the name resolves to an address that is not this machine's (NAT), on all interfaces.
    """
    candidates = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in candidates:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.bind(address)
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    family = candidates[0][0]
    listener = socket.socket(family)
    listener.bind(("", 0))
    listener.listen(128)
    return listener


def meet(barrier: BarrierView, card: Card, timeout_s: float, collective_timeout_s: float) -> tuple[Gang, list[Card]]:
    """Exchange cards; every rank returns the same gang, but for `rank`.

    Raises
    ------
    GangTimeout
        Where a rank has not come within `timeout_s`.
    GangError
        Where some ranks compute on a GPU and others don't.
    """
    gathered: Future[Sequence[str]] = Future()

    def gather() -> None:
        try:
            gathered.set_result(barrier.all_gather(json.dumps(asdict(card))))
        except BaseException as error:
            gathered.set_exception(error)

    threading.Thread(target=gather, daemon=True, name="sparktrain-rendezvous").start()
    try:
        texts = gathered.result(timeout_s)
    except FutureTimeout:
        raise GangTimeout(
            f"rank {barrier.rank} waited {timeout_s:g} s for all {len(barrier.hosts)} ranks to spool their shards "
            "and meet; raise rendezvous_timeout_s if shards are that large or uneven"
        ) from None
    cards = [_card(text) for text in texts]
    devices = {one.device: rank for rank, one in enumerate(cards)}
    if len(devices) > 1:
        where = ", ".join(f"rank {rank}: {device}" for device, rank in devices.items())
        raise GangError(f"ranks would compute on different kinds of device ({where}); give every task a GPU, or none")
    first = cards[0]
    gang = Gang(
        barrier.rank,
        tuple(one.address for one in cards),
        (first.address, first.port),
        first.device,
        collective_timeout_s,
    )
    return gang, cards


def _card(text: str) -> Card:
    values = json.loads(text)
    report = values.pop("report")
    shapes = tuple(None if shape is None else tuple(shape) for shape in report["shapes"])
    return Card(**values, report=SpoolReport(report["rows"], shapes))

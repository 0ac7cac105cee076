"""What travels through a gang, as frozen data: driver -> task -> worker. Imports no pyspark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparktrain.shards.tensors import TensorSpec


@dataclass(frozen=True)
class DriverAddress:
    """A port of the driver's for rank 0's task, and the secret that it must show there."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class GangSpec:
    """All that a task needs to know: the closure of the barrier stage.

    Parameters
    ----------
    num_proc : int
        Ranks.
    trainer : str
        ``module:function`` that trains; called in the worker with a `WorkerContext`.
    payload : mapping
        What that function needs, small: plain values and bytes.
    payload_file : str or None
        Name of the Spark file with the large part (initial weights).
    tensors : tuple of TensorSpec
        The shard's tensors.
    split : tuple of bool
        Which columns come in parts: see `ColumnPlan.columns`.
    backend : str
        How N processes become one gang.
    rendezvous_timeout_s, collective_timeout_s : float
        Deadlines: for all ranks to spool and meet, and for one collective operation.
    progress : DriverAddress or None
        Where events for the progress bar go; None: nobody listens.
    delivery : DriverAddress or None
        Where a large result goes; None: into the stage's rows.
    every_result : bool
        Whether each rank has a result, not rank 0 alone.
    shows_logs : bool
        Whether what the workers print goes to the driver.
    log_url : str or None
        A directory to keep it in as well.
    """

    num_proc: int
    trainer: str
    payload: Mapping[str, Any]
    payload_file: str | None
    tensors: tuple[TensorSpec, ...]
    backend: str
    rendezvous_timeout_s: float
    collective_timeout_s: float
    progress: DriverAddress | None = None
    delivery: DriverAddress | None = None
    split: tuple[bool, ...] = ()
    every_result: bool = False
    shows_logs: bool = False
    log_url: str | None = None


@dataclass(frozen=True)
class Gang:
    """The gang as one rank sees it.

    Parameters
    ----------
    rank : int
    hosts : tuple of str
        Address of each rank's host, as Spark knows it.
    endpoint : tuple of (str, int)
        Where rank 0 listens for the rendezvous of the collective.
    device : str
        ``"cpu"`` or ``"cuda"``; the same on every rank.
    collective_timeout_s : float
    secret : str
        Hexadecimal, of this run: what ranks show one another on connections of our own.
    """

    rank: int
    hosts: tuple[str, ...]
    endpoint: tuple[str, int]
    device: str = "cpu"
    collective_timeout_s: float = 1800.0
    secret: str = field(default="", repr=False, compare=False)

    @property
    def world_size(self) -> int:
        return len(self.hosts)

    @property
    def local_rank(self) -> int:
        """Position among the ranks of the same host."""
        return self.hosts[: self.rank].count(self.hosts[self.rank])

    @property
    def local_world_size(self) -> int:
        return Counter(self.hosts)[self.hosts[self.rank]]


@dataclass(frozen=True)
class WorkerJob:
    """What a task hands its worker once the gang has met."""

    gang: Gang
    trainer: str
    backend: str
    payload: Mapping[str, Any]
    payload_path: str | None
    tensors: tuple[TensorSpec, ...]
    tensor_fds: tuple[int, ...]
    rows: int
    result_fd: int
    listen_fd: int | None
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the backend adds to the worker's."""

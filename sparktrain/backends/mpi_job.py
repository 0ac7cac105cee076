"""A task's part of an MPI job: starts the daemon that `mpirun` asks for, and on rank 0 `mpirun` itself."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from sparktrain.backends.mpi import root_environment
from sparktrain.backends.native import interface_of
from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang import announce, rendezvous
from sparktrain.gang.guarded import Guarded
from sparktrain.gang.rendezvous import PeerGoneError
from sparktrain.gang.spec import Gang
from sparktrain.shards.disk import local_directory

SECRET, AGENTS = "SPARKTRAIN_MPI_SECRET", "SPARKTRAIN_MPI_AGENTS"
PREFIXES = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "OPAL_")
"""Of the variables that MPI knows a rank by."""
INTERFACE_SETTINGS = ("oob_tcp_if_include", "btl_tcp_if_include")
"""By name: of an address Open MPI 4.1 takes the loopback interface as well, and two hosts then talk to themselves."""
FINISH_S = 20.0
"""How long `mpirun` may take to end after the last worker."""
KILL_SEEN_S = 1.0
"""A killed program can be waited for a little after what it started, or was connected to, has met its end."""


class MpiJob:
    """A `Companion`.

    Parameters
    ----------
    address : str
        This host, as Spark knows it.
    log : callable
        Takes what `mpirun` and the daemon print.
    environment : mapping
        The worker's.
    """

    def __init__(self, address: str, log: Callable[[str], None], environment: Mapping[str, str]) -> None:
        self._address, self._log, self._inherited = address, log, environment
        self._listener = rendezvous.listen(address)
        self._interface = interface_of({announce.address_of(address)})
        self._scratch = os.path.join(local_directory(), f"sparktrain-{uuid.uuid4().hex}")
        self._gang: Gang | None = None
        self._programs: list[Guarded] = []
        self._seat: Connection | None = None
        self._found: Future[dict[str, str]] = Future()
        self._done = False
        self._trouble_since: float | None = None
        self._lock = threading.Lock()

    def tells(self) -> str:
        return str(self._listener.getsockname()[1])

    def start(self, gang: Gang, told: Sequence[str]) -> None:
        self._gang = gang
        threading.Thread(target=self._accept, daemon=True, name="sparktrain-mpi").start()
        if gang.rank == 0:
            os.makedirs(self._scratch, mode=0o700, exist_ok=True)
            agents = {label(gang.hosts, rank): [gang.hosts[rank], int(told[rank])] for rank in firsts(gang.hosts)}
            environment = {**self._environment(), AGENTS: json.dumps(agents)}
            command = mpirun(gang.hosts, [int(one) for one in told])
            self._programs.append(Guarded(command, environment, self._log, self._scratch))

    def _environment(self) -> dict[str, str]:
        """Of `mpirun` and the daemon: they use this host's address alone, and leave nothing behind."""
        assert self._gang is not None
        return {
            **self._inherited,
            **root_environment(),
            SECRET: self._gang.secret,
            **{f"OMPI_MCA_{name}": self._interface for name in INTERFACE_SETTINGS if self._interface is not None},
            "OMPI_MCA_orte_tmpdir_base": self._scratch,
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # which containers mostly forbid
            "OMPI_MCA_orte_leave_session_attached": "1",
        }

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                link, _ = self._listener.accept()
                link.setblocking(True)
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        assert self._gang is not None
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):  # a stranger, or one that ended
            connection = Connection(link.detach())
            deadline = time.monotonic() + rendezvous.GREETING_S
            if not rendezvous.authenticated(connection, bytes.fromhex(self._gang.secret), deadline, answer_first=False):
                connection.close()
                return
            message = json.loads(rendezvous.received(connection, deadline))
            if message["kind"] == "seat":
                self._take_seat(connection, message["environment"])
            elif message["kind"] == "daemon":
                with connection:
                    connection.send_bytes(str(self._run_daemon(message["command"])).encode())

    def _take_seat(self, connection: Connection, environment: dict[str, str]) -> None:
        assert self._gang is not None
        with self._lock:
            if int(environment["OMPI_COMM_WORLD_RANK"]) != self._gang.rank or self._found.done():
                connection.close()
                return
            self._seat = connection
        self._found.set_result(environment)

    def _run_daemon(self, command: str) -> int:
        """Start what `mpirun` asks for, which is its daemon and nothing else; its exit status."""
        words = shlex.split(command)
        if os.path.basename(words[0]) != "orted":
            self._log(f"mpirun asked for {words[0]!r} in place of orted, and did not get it\n")
            return 127
        os.makedirs(self._scratch, mode=0o700, exist_ok=True)
        for place, word in enumerate(words[:-1]):  # mpirun hands on the name that rank 0's host has for it
            if word in INTERFACE_SETTINGS and self._interface is not None:
                words[place + 1] = self._interface
        daemon = Guarded(words, self._environment(), self._log, self._scratch)
        with self._lock:
            self._programs.append(daemon)
        return daemon.wait() or 0

    def environment(self, timeout_s: float) -> Mapping[str, str]:
        deadline = time.monotonic() + timeout_s
        while not self._found.done():
            self.check()
            if time.monotonic() > deadline:
                raise GangTimeout(
                    f"mpirun has not started this rank within {timeout_s:g} s (rendezvous_timeout_s); can the hosts "
                    "reach one another on any port?"
                )
            time.sleep(0.02)
        network = {key: value for key, value in self._environment().items() if key.startswith("OMPI_MCA_")}
        return {**self._found.result(), **network}  # mpirun hands on those of rank 0's host

    def check(self) -> None:
        """Raises where a program has ended: of itself, because another rank has, which then tells more."""
        if self._done or self._gang is None:
            return
        where = f"rank {self._gang.rank} on {self._address}"
        ended = [program for program in list(self._programs) if program.ended() is not None]
        for program in ended:
            if program.was_killed:
                raise GangError(f"{where}: {program.name} {program.ended()} while the gang was at work")
        seat_gone = self._seat is not None and self._seat.poll()  # it says nothing: it has ended
        if not ended and not seat_gone:
            return
        self._trouble_since = self._trouble_since or time.monotonic()
        if time.monotonic() < self._trouble_since + KILL_SEEN_S:
            return
        if ended:
            raise PeerGoneError(f"{where}: {ended[0].name} {ended[0].ended()} while the gang was at work")
        raise PeerGoneError(f"{where}: the process that holds its place in mpirun's job has ended")

    def finish(self) -> None:
        self._done = True
        if self._seat is not None:
            with contextlib.suppress(OSError):
                self._seat.send_bytes(b"done")
        deadline = time.monotonic() + FINISH_S
        for program in list(self._programs):
            program.wait(max(deadline - time.monotonic(), 0))

    def close(self) -> None:
        self._done = True
        self._listener.close()
        if self._seat is not None:
            self._seat.close()
        for program in list(self._programs):
            program.close()


def firsts(hosts: Sequence[str]) -> list[int]:
    """The first rank of each host: its task starts the daemon."""
    return [hosts.index(host) for host in dict.fromkeys(hosts)]


def label(hosts: Sequence[str], rank: int) -> str:
    """What `mpirun` is to call a rank's host: a name that means nothing to any resolver."""
    return f"sparktrain-{list(dict.fromkeys(hosts)).index(hosts[rank])}"


def mpirun(hosts: Sequence[str], ports: Sequence[int]) -> list[str]:
    """The command line: a context for each rank, in rank order, so that MPI's ranks are the gang's.

    Parameters
    ----------
    hosts : sequence of str
        Of each rank.
    ports : sequence of int
        Where each rank's task listens.
    """
    python = [sys.executable, "-P", "-m"]
    agent = " ".join([*python, "sparktrain.backends.mpi_agent"])
    settings = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1"}
    command = ["mpirun", *(word for key, value in settings.items() for word in ("--mca", key, value))]
    command += ["--bind-to", "none"]
    for rank, (host, port) in enumerate(zip(hosts, ports, strict=True)):
        place = f"{label(hosts, rank)}:{hosts.count(host)}"
        separator = [":"] if rank else []
        command += [*separator, "-np", "1", "-H", place, *python, "sparktrain.backends.mpi_seat", host, str(port)]
    return command


def show(connection: Connection, secret: str, message: dict[str, Any]) -> bool:
    """For those who connect: show that they know the secret, see that the task does, and say what they want."""
    deadline = time.monotonic() + rendezvous.GREETING_S
    if not rendezvous.authenticated(connection, bytes.fromhex(secret), deadline, answer_first=True):
        return False
    connection.send_bytes(json.dumps(message).encode())
    return True

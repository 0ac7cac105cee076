"""What `mpirun` is told, and who may have a task start something."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sparktrain.backends import mpi
from sparktrain.backends.mpi_job import MpiJob, firsts, label, mpirun, show
from sparktrain.backends.native import interface_of
from sparktrain.errors import GangError, GangTimeout
from sparktrain.gang.spec import Gang

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.1")
SECRET = "0f" * 32
WAIT_S = 20.0


def test_a_context_for_each_rank_in_rank_order_on_its_host() -> None:
    words = mpirun(HOSTS, [7001, 7002, 7003])
    contexts = " ".join(words[words.index("-np") :]).split(" : ")
    seat = f"{sys.executable} -P -m sparktrain.backends.mpi_seat"
    assert contexts == [
        f"-np 1 -H sparktrain-0:2 {seat} 10.0.0.1 7001",
        f"-np 1 -H sparktrain-1:1 {seat} 10.0.0.2 7002",
        f"-np 1 -H sparktrain-0:2 {seat} 10.0.0.1 7003",
    ]
    assert words[words.index("plm_rsh_agent") + 1] == f"{sys.executable} -P -m sparktrain.backends.mpi_agent"


def test_one_daemon_a_host() -> None:
    assert firsts(HOSTS) == [0, 1]
    assert [label(HOSTS, rank) for rank in range(3)] == ["sparktrain-0", "sparktrain-1", "sparktrain-0"]


def test_the_secret_is_in_no_command_line() -> None:
    assert SECRET not in " ".join(mpirun(HOSTS, [1, 2, 3]))


def test_missing_open_mpi_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GangError, match=r"no mpirun and no orted here; install Open MPI .*This is 127\.0\.0\.1"):
        mpi.BACKEND.companion("127.0.0.1", print, {})


@pytest.fixture
def job() -> Iterator[MpiJob]:
    """Rank 1's part: it starts no `mpirun`."""
    made = MpiJob("127.0.0.1", lambda line: None, dict(os.environ))
    made.start(Gang(1, ("127.0.0.1",) * 2, ("127.0.0.1", 1), "cpu", 60.0, SECRET), ["1", made.tells()])
    yield made
    made.close()


def dialled(job: MpiJob) -> Connection:
    link = socket.create_connection(("127.0.0.1", int(job.tells())), WAIT_S)
    link.settimeout(None)
    return Connection(link.detach())


def test_a_rank_gets_the_environment_of_its_seat(job: MpiJob) -> None:
    given = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "7"}
    with dialled(job) as connection:
        assert show(connection, SECRET, {"kind": "seat", "environment": given})
        found = job.environment(WAIT_S)
        assert given.items() <= found.items()
        assert found["OMPI_MCA_btl_tcp_if_include"] == interface_of({"127.0.0.1"})
        job.finish()
        assert connection.poll(WAIT_S)
        assert connection.recv_bytes() == b"done"


def test_another_rank_s_seat_is_turned_away(job: MpiJob) -> None:
    with dialled(job) as connection:
        assert show(connection, SECRET, {"kind": "seat", "environment": {"OMPI_COMM_WORLD_RANK": "0"}})
        assert connection.poll(WAIT_S)
        with pytest.raises(EOFError):
            connection.recv_bytes()
    with pytest.raises(GangTimeout, match=r"mpirun has not started this rank within 0\.2 s"):
        job.environment(0.2)


@pytest.mark.parametrize("secret", [SECRET, "aa" * 32])
def test_nothing_but_the_daemon_is_started_and_that_for_nobody_else(job: MpiJob, tmp_path: Path, secret: str) -> None:
    """Who knows the secret may start `orted`; who does not, nothing; and nobody anything else."""
    made = tmp_path / "made"
    with dialled(job) as connection:
        knows = show(connection, secret, {"kind": "daemon", "command": f"touch {made}"})
        assert knows == (secret == SECRET)
        if knows:
            assert connection.poll(WAIT_S)
            assert connection.recv_bytes() == b"127"
    (tmp_path / "orted").write_text(f"#!/bin/sh\ntouch {made}\n")
    (tmp_path / "orted").chmod(0o755)
    with dialled(job) as connection:
        if show(connection, secret, {"kind": "daemon", "command": f"{tmp_path}/orted --x"}):
            assert connection.poll(WAIT_S)
            assert connection.recv_bytes() == b"0"
    time.sleep(0.3)
    assert made.exists() == (secret == SECRET)


def test_garbage_is_dropped(job: MpiJob) -> None:
    with socket.create_connection(("127.0.0.1", int(job.tells())), WAIT_S) as link:
        link.sendall(json.dumps({"kind": "daemon", "command": "touch x"}).encode() * 1000)
        link.settimeout(WAIT_S)
        try:
            while link.recv(4096):
                pass
        except ConnectionResetError:
            pass

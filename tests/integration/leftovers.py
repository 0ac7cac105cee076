"""What a gang could leave behind: worker processes, their open files and their ports."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import psutil

from tests.conftest import TEST_ID


def processes() -> list[psutil.Process]:
    """Processes that these tests started, zombies aside: JVMs, Spark's daemons and workers, ours."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(TEST_ID) == os.environ[TEST_ID]
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def workers() -> list[psutil.Process]:
    """Worker processes and guards among them."""
    return running("sparktrain.gang.worker")


def running(*words: str) -> list[psutil.Process]:
    """Those of them with one of these words in their command line, or that a path of it ends with."""
    found = []
    for process in processes():
        line = command(process)
        if any(word in line or os.path.basename(line[0]) == word for word in words if line):
            found.append(process)
    return found


def command(process: psutil.Process) -> list[str]:
    """Its command line; none of a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def held() -> set[str]:
    """Unlinked files and listening ports held by any of them."""
    found = set()
    for process in processes():
        try:
            directory = f"/proc/{process.pid}/fd"
            links = [os.readlink(f"{directory}/{fd}") for fd in os.listdir(directory)]
            found |= {f"{process.pid} {link}" for link in links if link.endswith("(deleted)")}
            ports = [c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
            found |= {f"{process.pid} port {port}" for port in ports}
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition until it holds; False where it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def all_training() -> bool:
    """Both workers are past the rendezvous: each is connected to the other."""
    leaders = [process for process in workers() if process.pid == os.getpgid(process.pid)]
    return len(leaders) == 2 and all(_connected(process) for process in leaders)


def _connected(process: psutil.Process) -> bool:
    return any(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections())

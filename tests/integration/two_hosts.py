"""A standalone Spark cluster over network namespaces: a driver's host and two executors' hosts.

Each "host" has an address of its own on a bridge, so what only works over loopback fails here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

BRIDGE, SUBNET = "sparktrain0", "10.87.3"
DRIVER = f"{SUBNET}.1"
WORKERS = (f"{SUBNET}.11", f"{SUBNET}.12")
PORTS = (7178, 7179)
"""Of the driver, beside the master's."""
MASTER_PORT = 7177
START_S = 60.0


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """The bridge, and one namespace a worker."""
    names = [f"sparktrain-{number}" for number in range(len(WORKERS))]
    run("ip", "link", "add", BRIDGE, "type", "bridge")  # where there is one, it is another run's: leave all to that
    try:
        run("ip", "addr", "add", f"{DRIVER}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for number, (name, address) in enumerate(zip(names, WORKERS, strict=True)):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"st-v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"st-v{number}", "master", BRIDGE, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, timeout=20)


def ports_in_use(number: int) -> set[int]:
    """Ports of the driver's host to which a worker's host has connections now."""
    command = ["ip", "netns", "exec", f"sparktrain-{number}", "ss", "-Htn", "dst", DRIVER]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    return {int(line.split()[4].rpartition(":")[2]) for line in listed.splitlines()}


@contextlib.contextmanager
def firewall() -> Iterator[None]:
    """From the workers' hosts only Spark's own ports of the driver's can be reached."""
    open_ports = f"{min(MASTER_PORT, *PORTS)}-{max(MASTER_PORT, *PORTS)}"
    rules = [["to", DRIVER, "ipproto", "tcp", "dport", open_ports, "lookup", "main", "pref", "10"]]
    rules += [["to", DRIVER, "ipproto", "tcp", "prohibit", "pref", "11"]]
    names = [f"sparktrain-{number}" for number in range(len(WORKERS))]
    with contextlib.ExitStack() as stack:
        for name in names:
            for rule in rules:
                run("ip", "-n", name, "rule", "add", *rule)
                stack.callback(run, "ip", "-n", name, "rule", "del", *rule)
        yield


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A master on the driver's host and one worker of one core on each of the others; yields its URL."""
    home = os.path.dirname(pyspark.__file__)
    env = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "SPARK_LOCAL_DIRS": str(directory),
    }
    launch = f"{home}/bin/spark-class"
    url = f"spark://{DRIVER}:{MASTER_PORT}"
    processes = []
    try:
        master = [launch, "org.apache.spark.deploy.master.Master", "--host", DRIVER, "--port", str(MASTER_PORT)]
        processes.append(_start(master, env, directory / "master.log"))
        for number, address in enumerate(WORKERS):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", address, "--cores", "1", "--memory", "1g", url]
            command = ["ip", "netns", "exec", f"sparktrain-{number}", launch, *worker, "--work-dir", str(directory)]
            processes.append(_start(command, env, directory / f"worker-{number}.log"))
        _wait_for(directory / "master.log", "Registering worker", len(WORKERS))
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()


def _start(command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)


def _wait_for(log: Path, text: str, times: int) -> None:
    deadline = time.monotonic() + START_S
    while log.read_text(errors="replace").count(text) < times:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {times} x {text!r} in {log} after {START_S:g} s:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)

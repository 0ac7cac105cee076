"""A Spark Connect server started apart from its client: own port, working directory, home and Python path."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
START_S, FIT_S = 120, 240

pytestmark = pytest.mark.integration


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, path: Path) -> dict[str, str]:
    home.mkdir()
    return {**os.environ, "HOME": str(home), "PYTHONPATH": str(path), "PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that knows the package, and nothing else of this project."""
    spark_home, site, directory = Path(pyspark.__path__[0]), tmp_path / "site", tmp_path / "server"
    site.mkdir()
    directory.mkdir()
    (site / "sparktrain").symlink_to(ROOT / "sparktrain")
    port = free_port()
    command = [
        *(str(spark_home / "bin" / "spark-submit"), "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.ui.enabled=false"),
    ]
    settings = {**environment(tmp_path / "server-home", site), "SPARK_HOME": str(spark_home)}
    log = tmp_path / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=directory, env=settings, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_S
        while "server started at" not in log.read_text():
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no server after {START_S} s:\n{log.read_text()[-4000:]}"
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(START_S + FIT_S + 40)
def test_a_client_elsewhere(server: str, tmp_path: Path) -> None:
    files, directory = tmp_path / "files", tmp_path / "client"
    files.mkdir()
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.remote_session", server, str(files)],
        cwd=directory,
        env=environment(tmp_path / "client-home", ROOT),
        capture_output=True,
        text=True,
        timeout=FIT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "remote: all passed" in done.stdout

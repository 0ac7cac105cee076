"""Two executors under Spark's real scheduler: GPUs by rank, shipped code, an executor that dies.

Each part is a session in a process of its own: see `cluster_session`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.integration import cluster_session

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = os.path.dirname(pyspark.__file__)
SHIPPED = """
from torch import nn


class ShippedLine(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A package that is importable nowhere, but from this file."""
    path = tmp_path / "shipped.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("shipped/__init__.py", "")
        file.writestr("shipped/nets.py", SHIPPED)
    return path


def spark_home(directory: Path) -> str:
    """The installed Spark, but for the directory where local-cluster lets its executors work."""
    home = directory / "spark"
    home.mkdir()
    for entry in os.scandir(SPARK_HOME):
        (home / entry.name).symlink_to(entry.path)
    return str(home)


def run_part(part: str, directory: Path, *launcher: str) -> None:
    command = [*(launcher or [sys.executable]), cluster_session.__file__, part, str(directory)]
    environment = {
        **os.environ,
        "SPARK_HOME": spark_home(directory),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=280)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{done.stdout[-4000:]}"
    assert f"{part}: all passed" in done.stdout


def test_each_rank_sees_the_gpu_that_spark_gave_it(tmp_path: Path) -> None:
    run_part("gpus", tmp_path)


def test_code_of_spark_submit_py_files_reaches_the_workers(tmp_path: Path, archive: Path) -> None:
    submit = [f"{SPARK_HOME}/bin/spark-submit", "--master", cluster_session.MASTER, "--py-files", str(archive)]
    run_part("submitted", tmp_path, *submit)


def test_code_added_to_a_session_reaches_the_workers(tmp_path: Path, archive: Path) -> None:
    run_part("added", tmp_path)


def test_code_sent_as_a_connect_artifact_reaches_the_workers(tmp_path: Path, archive: Path) -> None:
    run_part("connect", tmp_path)


def test_a_killed_executor_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    run_part("executor_killed", tmp_path)

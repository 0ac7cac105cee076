"""Saves with and without a scheme, on file systems of several kinds, on classic sessions and on Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparktrain import filesystem

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["classic", pytest.param("connect", marks=pytest.mark.slow)])
def test_every_part_of_a_save_goes_where_its_path_says(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.filesystem_session", kind, str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "file systems: all passed" in done.stdout


def test_a_file_in_pieces_that_connect_wrote_is_read_on_a_classic_session(spark: SparkSession, tmp_path: Path) -> None:
    pieces = [(3, bytearray(b"defg")), (0, bytearray(b"abc")), (7, bytearray(b"h"))]
    spark.createDataFrame(pieces, filesystem._PIECES).repartition(3).write.parquet(str(tmp_path / "file"))
    filesystem.read_file(spark, str(tmp_path / "file"), str(tmp_path / "local"))
    assert (tmp_path / "local").read_bytes() == b"abcdefgh"

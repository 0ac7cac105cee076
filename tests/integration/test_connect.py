"""Spark Connect: a session without `sparkContext`, in a process of its own, which can have no classic session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "session",
    [
        "connect_session",
        pytest.param("keras_connect_session", marks=pytest.mark.slow),
        pytest.param("xgboost_connect_session", marks=pytest.mark.slow),
    ],
)
def test_fit_transform_save_load_and_errors(session: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"tests.integration.{session}", str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}  # the nets, on executors
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "connect: all passed" in done.stdout

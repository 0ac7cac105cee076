"""A shard larger than the local disk: the user reads which disk is full, and the session lives on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CAN_MOUNT = sys.platform == "linux" and os.geteuid() == 0


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.skipif(not CAN_MOUNT, reason="a small tmpfs needs root (Linux)")
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    environment.pop("SPARK_LOCAL_DIRS", None)  # would win over spark.local.dir
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(tmp_path)], check=True, timeout=20)
    try:
        command = [sys.executable, "-m", "tests.integration.full_disk_session", str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=230)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, timeout=20)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "full disk: all passed" in done.stdout

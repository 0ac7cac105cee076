"""The gang over two hosts with addresses of their own: what works only over loopback fails here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.two_hosts import DRIVER, cluster, hosts

ROOT = Path(__file__).resolve().parents[2]
CAN_MAKE_HOSTS = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.skipif(not CAN_MAKE_HOSTS, reason="network namespaces need root and iproute2 (Linux)")
def test_two_ranks_on_two_hosts_train_as_one(tmp_path: Path) -> None:
    with hosts(), cluster(tmp_path) as master:
        command = [sys.executable, "-m", "tests.integration.two_hosts_session", master, DRIVER]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "two hosts: all passed" in done.stdout

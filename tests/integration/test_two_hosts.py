"""The gang over two hosts with addresses of their own: what works only over loopback fails here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.two_hosts import DRIVER, MASTER_PORT, PORTS, WORKERS, cluster, hosts, ports_in_use

SESSION_S = 240.0
ROOT = Path(__file__).resolve().parents[2]
CAN_MAKE_HOSTS = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.skipif(not CAN_MAKE_HOSTS, reason="network namespaces need root and iproute2 (Linux)")
def test_two_ranks_on_two_hosts_train_as_one(tmp_path: Path) -> None:
    with hosts(), cluster(tmp_path) as master:
        command = [sys.executable, "-m", "tests.integration.two_hosts_session", master, DRIVER]
        with (
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session,
            ThreadPoolExecutor(1) as pool,
        ):
            output = pool.submit(session.communicate, timeout=SESSION_S)
            used: set[int] = set()
            while not output.done():
                used |= {port for number in range(len(WORKERS)) for port in ports_in_use(number)}
                time.sleep(0.2)
            stdout, stderr = output.result()
    assert session.returncode == 0, stderr[-4000:]
    assert "two hosts: all passed" in stdout
    assert used, "no connection was seen"
    assert used <= {MASTER_PORT, *PORTS}, "executors connect to ports of the driver that are not Spark's own"

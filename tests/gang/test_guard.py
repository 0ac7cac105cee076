"""The guard alone, without the kernel's help: what holds where PR_SET_PDEATHSIG does not exist."""

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.gang.test_process import GONE_S, WAIT_S, left_after, with_guard

WORKER = """
import ctypes, subprocess, sys
from sparktrain.gang import guard
guard.die_with_parent = lambda: None
guard.start(int(sys.argv[1]), sys.argv[2])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("guarded", flush=True)
ctypes.PyDLL(None).sleep(3600)  # holds the GIL
"""


@pytest.mark.parametrize("end", ["lifeline", "worker"])
def test_the_guard_ends_the_group_and_removes_its_files(end: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deeper").mkdir(parents=True)
    (scratch / "deeper" / "page").write_bytes(b"0" * 100)
    lifeline_end, lifeline = os.pipe()
    try:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(lifeline_end), str(scratch)],
            stdout=subprocess.PIPE,
            pass_fds=[lifeline_end],
            start_new_session=True,
        )
    finally:
        os.close(lifeline_end)
    with worker:
        try:
            assert worker.stdout is not None
            assert wait([worker.stdout], WAIT_S)
            assert worker.stdout.readline() == b"guarded\n"
            pids = with_guard(worker.pid)
            assert left_after(pids, 0.0) == pids, "all alive while the lifeline is held"
            if end == "lifeline":
                os.close(lifeline)
            else:
                os.kill(worker.pid, signal.SIGKILL)
                worker.wait(WAIT_S)
            assert not left_after(pids, GONE_S)
            assert list(tmp_path.iterdir()) == []
        finally:  # leave nothing behind when the test has failed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            if end == "worker":
                os.close(lifeline)

"""The driver ends in the middle of a fit, by Ctrl-C or by SIGKILL: nothing of the gang outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.leftovers import all_training, held, processes, wait_until, workers

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[2]
START_S, END_S, LEFT_S = 90.0, 20.0, 5.0


@contextlib.contextmanager
def training(fault: str, tmp_path: Path) -> Iterator[psutil.Popen]:
    """A driver script, as soon as both its workers train; afterwards nothing of it may be left."""
    assert not workers()
    before, files = set(processes()), held()
    command = [sys.executable, "-m", "tests.integration.driver_session", fault]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(tmp_path)}
    with (tmp_path / "stderr").open("wb") as stderr:
        # a session of its own: the shell's foreground process group, which gets the Ctrl-C
        driver = psutil.Popen(command, cwd=ROOT, env=environment, stderr=stderr, start_new_session=True)
    try:
        assert wait_until(lambda: len(workers()) == 4 and all_training(), START_S), (tmp_path / "stderr").read_text()
        yield driver
        driver.wait(END_S)
        assert wait_until(lambda: not set(processes()) - before, LEFT_S), set(processes()) - before
        assert not held() - files
    finally:
        for process in set(processes()) - before:
            process.kill()


@pytest.mark.parametrize("fault", ["sleep", "c_call"])
def test_ctrl_c_ends_fit_and_gang(fault: str, tmp_path: Path) -> None:
    with training(fault, tmp_path) as driver:
        os.killpg(driver.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in (tmp_path / "stderr").read_text()


def test_a_killed_driver_leaves_no_gang(tmp_path: Path) -> None:
    with training("c_call", tmp_path) as driver:
        jvm = next(child for child in driver.children(recursive=True) if child.name() == "java")
        for process in (driver, jvm):
            process.kill()

"""Which GPU a task predicts on, and how many copies of models it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import torch

from sparktrain import gpus
from sparktrain.gang.resources import device_ordinal
from sparktrain.gpus import free_slot
from sparktrain.torch.placement import CPU, take_seat


@pytest.mark.parametrize(
    ("assigned", "visible", "ordinal"),
    [
        ((), None, None),
        ((), "0,1", None),
        (("1",), None, 1),
        (("3",), "2,3", 1),
        (("2,3",), "2,3", 0),
        (("2, 3",), None, 2),
        (("GPU-7f",), "GPU-1a,GPU-7f", 1),
        (("GPU-7f",), None, None),
        (("5",), "0,1", None),
        (("0",), "", None),
    ],
)
def test_the_ordinal_of_an_assigned_gpu(assigned: tuple[str, ...], visible: str | None, ordinal: int | None) -> None:
    assert device_ordinal(assigned, visible) == ordinal


HOLD = """
import sys
from sparktrain.gpus import free_slot
held = free_slot("0", 2, sys.argv[1])
print(held is not None, flush=True)
sys.stdin.read()
"""


def taken(directory: Path, gpu: str, limit: int) -> IO[bytes]:
    slot = free_slot(gpu, limit, str(directory))
    assert slot is not None
    return slot


def test_a_gpu_takes_no_more_copies_than_its_limit_from_all_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "True\n"
            with taken(tmp_path, "0", 2):
                assert free_slot("0", 2, str(tmp_path)) is None
                with taken(tmp_path, "1", 2):
                    pass
            with taken(tmp_path, "0", 2):
                pass
        finally:
            other.kill()
            other.wait(20)
    with taken(tmp_path, "0", 1):  # a process that was killed holds none
        pass


def test_a_full_gpu_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first = take_seat(("1",), 1)
    assert first.device == torch.device("cuda", 1)
    assert take_seat(("1",), 1).device == CPU
    assert take_seat(("7",), 1).device == CPU
    assert take_seat((), 1).device == CPU
    other = take_seat(("0",), 1)
    assert other.device == torch.device("cuda", 0)
    first.leave()
    again = take_seat(("1",), 1)
    assert again.device == torch.device("cuda", 1)
    other.leave()
    again.leave()

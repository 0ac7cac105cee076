"""A model of 300 MB: its metadata stays small, and the driver's memory is not filled with copies of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from sparktrain.torch import TorchModel

pytestmark = pytest.mark.integration

WIDTH = 8660  # WIDTH * WIDTH float32 are 300 MB
MB = 1 << 20
HISTORY = [{"epoch": epoch, "loss": 1 / epoch} for epoch in range(1, 101)]


def resident(kind: str) -> int:
    """Bytes of this process in memory: ``VmRSS`` now, ``VmHWM`` at most, ``RssAnon`` without mapped files."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_a_model_of_300_mb(spark: SparkSession, tmp_path: Path) -> None:
    net = nn.Linear(WIDTH, WIDTH, bias=False)
    model = TorchModel(model=net, feature_cols=["x"])
    model._fitted(HISTORY, ((WIDTH,),), (("float32", (WIDTH,)),), ("y",))
    path = tmp_path / "model"
    forget_peak()
    before = resident("VmRSS")
    model.save(str(path))
    assert resident("VmHWM") - before < 50 * MB, "saving copies no weights in memory"
    assert size(path / "metadata") < MB
    assert size(path / "structure.pkl") < MB
    assert size(path / "model.safetensors") == pytest.approx(300e6, rel=0.01)

    forget_peak()
    before = resident("RssAnon")
    loaded = TorchModel.load(str(path))
    assert resident("RssAnon") - before < 50 * MB, "loading maps them"
    assert resident("VmHWM") - resident("VmRSS") < 50 * MB
    assert loaded.history == HISTORY
    assert torch.equal(loaded.getModel().weight, net.weight)
    with torch.no_grad():
        loaded.getModel().weight[0] += 1  # mapped, but the process's own
    again = TorchModel.load(str(path)).getModel().weight
    assert torch.equal(again, net.weight)

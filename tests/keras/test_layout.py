"""Models spread over the devices and processes of a gang on JAX: `keras.distribution.ModelParallel`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.keras.rank import run_ranks


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_spread_model_trains_as_one_on_one_device(tmp_path: Path) -> None:
    for name in ("plain", "ranks"):
        (tmp_path / name).mkdir()
    plain = run_ranks("jax", "tests.keras.meshes:plain", 1, tmp_path / "plain")[0]
    ranks = run_ranks("jax", "tests.keras.meshes:train", 2, tmp_path / "ranks", devices=2)
    wrong = []
    for mesh, results in ranks[0].items():
        for name, (values, history) in results.items():
            expected, logs = plain[name]
            for mine, others, theirs in zip(values["model"], ranks[1][mesh][name][0]["model"], expected, strict=True):
                np.testing.assert_array_equal(mine, others, err_msg=f"{mesh} {name}: ranks differ")
                if mine.dtype.kind == "f" and not np.allclose(mine, theirs, atol=1e-4):
                    wrong.append(f"{mesh} {name}: weights differ by {np.abs(mine - theirs).max():.2e}")
            for metric, series in logs.items():
                mine = [entry["lr" if metric == "learning_rate" else metric] for entry in history]
                if metric != "spread" and not np.allclose(mine, series, atol=1e-4):
                    wrong.append(f"{mesh} {name}: {metric} {np.round(mine, 5)} instead of {np.round(series, 5)}")
    assert len(ranks[0]) == 4
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(300)
def test_what_a_spread_model_can_be_asked_for(tmp_path: Path) -> None:
    first, second = run_ranks("jax", "tests.keras.meshes:features", 2, tmp_path, devices=2)
    assert first["spread"]
    assert first["moment"]
    assert first["part"] == (5, 2), "a quarter of the kernel on each device"
    for mine, theirs in zip(first["values"], second["values"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    kept, optimizer = first["kept"]
    for name, found, expected in (
        ("model", kept, first["values"]),
        ("optimizer", optimizer, first["optimizer"]),
        ("weights", first["weights"], first["values"]),
    ):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert "use ModelCheckpoint" in first["refused"]
    none, half = first["wrong"]
    assert "must return a keras.distribution.ModelParallel or DataParallel, got NoneType" in none
    assert "must have all of" in half

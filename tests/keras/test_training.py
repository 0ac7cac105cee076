"""Callbacks, seeds and what users find in a worker, on three ranks (one without rows) of each backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.keras.rank import run_ranks


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_topics(backend: str, tmp_path: Path) -> None:
    ranks = run_ranks(backend, "tests.keras.features:topics", 3, tmp_path)
    first = ranks[0]
    assert [one["stopped"] for one in ranks] == [2, 2, 2]
    assert first["nan"] < 5
    assert {one["nan"] for one in ranks} == {first["nan"]}
    assert first["validated"] == [False, True, False, True]
    np.testing.assert_allclose(first["rates"], [0.1, 0.05, 0.1 / 3, 0.025], rtol=1e-5)
    assert all(one["repeated"] for one in ranks)
    for other in ranks[1:]:
        for mine, theirs in zip(first["weights"], other["weights"], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert first["lines"] == 3  # a heading and two epochs
    assert first["kept"]
    assert first["kept_loss"] == "mse"
    assert all(one["interrupted"] for one in ranks)
    assert [one["resumed"] for one in ranks] == [[3, 4]] * 3
    assert first["same"]
    if backend == "tensorflow":
        tasks = [one["tf_config"]["task"] for one in ranks]
        assert tasks == [
            {"type": "chief", "index": 0},
            {"type": "worker", "index": 0},
            {"type": "worker", "index": 1},
        ]
        assert len(first["tf_config"]["cluster"]["worker"]) == 2

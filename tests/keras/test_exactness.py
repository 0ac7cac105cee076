"""N ranks end with the weights, losses and metrics of plain Keras on the same global batches, on each backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends import horovod, mpi
from tests.keras.rank import run_ranks

pytestmark = pytest.mark.timeout(900)
FRAMEWORKS = ("tensorflow", pytest.param("jax", marks=pytest.mark.slow), "torch")
BRIEF = "weighted binary two_outputs batchnorm own_step early_stopping mixed"
"""Cases that between them take every road between the ranks."""


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(framework, "tests.keras.exactness:plain", 1, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_n_ranks_train_as_one_process(framework: str, plain: dict[str, Any], world: int, tmp_path: Path) -> None:
    ranks = run_ranks(framework, "tests.keras.exactness:train", world, tmp_path)
    assert_same(framework, plain, ranks)


@pytest.mark.parametrize(
    "backend", [pytest.param("horovod", marks=horovod), pytest.param("mpi", marks=[horovod, mpi, pytest.mark.slow])]
)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"], indirect=True)
@pytest.mark.parametrize(
    ("world", "cases"),
    [pytest.param(3, BRIEF, id="brief", marks=pytest.mark.slow), pytest.param(2, "", id="all", marks=pytest.mark.slow)],
)
def test_over_other_backends(
    framework: str,
    plain: dict[str, Any],
    world: int,
    cases: str,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARKTRAIN_CASES", cases)
    ranks = run_ranks(framework, "tests.keras.exactness:train", world, tmp_path, backend=backend)
    assert len(ranks[0]) >= len(cases.split())
    assert_same(framework, plain, ranks)


def assert_same(framework: str, plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    wrong = []
    for name, (values, history) in ranks[0].items():
        for other in ranks[1:]:
            for mine, theirs in zip(values["model"], other[name][0]["model"], strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{name}: ranks differ")
        expected, logs = plain[name]
        tolerance = 3e-3 if name.startswith("mixed") else 1e-4
        for mine, theirs in zip(values["model"], expected, strict=True):
            if mine.dtype.kind == "f" and not np.allclose(mine, theirs, atol=tolerance):
                wrong.append(f"{name}: weights differ by {np.abs(mine - theirs).max():.2e}")
                break
        logs = {metric: logs["mae" if metric == "spread" else metric] for metric in logs}  # ours counts rows
        for metric, series in logs.items():
            if framework == "tensorflow" and metric.endswith(("kind_loss", "value_loss")):
                continue  # plain Keras counts batches there, whatever their size; ours counts rows
            mine = [entry["lr" if metric == "learning_rate" else metric] for entry in history]
            if not np.allclose(mine, series, atol=tolerance):
                wrong.append(f"{name}: {metric} {np.round(mine, 5)} instead of {np.round(series, 5)}")
    assert not wrong, "\n".join(wrong)

"""A fit that goes on from a checkpoint ends as the one that was never broken: 31, 0 and 10 rows, no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparktrain.errors import ParamError
from sparktrain.torch.state import _check_plain
from tests.torch.features import SPLIT
from tests.torch.rank import run_ranks


def ranks_of(topic: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("SPARKTRAIN_TEST_RUN", str(out / "runs"))
    return run_ranks(f"tests.torch.resuming:{topic}", len(SPLIT), out, timeout_s=200)


def without_clocks(history: list[dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {name: pytest.approx(value, abs=1e-6, nan_ok=True) for name, value in entry.items() if name not in CLOCKS}
        for entry in history
    ]


CLOCKS = ("seconds", "rows_per_s")


@pytest.mark.parametrize("topic", ["plainly", "in_half_precision"])
def test_from_each_checkpoint_to_the_same_end(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ranks_of(topic, tmp_path, monkeypatch):
        whole = found.pop("whole")
        assert whole["history"][-1]["counted"] == 6 * len(whole["history"])
        assert len([name for name in found if not name.endswith("-000000000")]) == 4  # within epochs
        assert len(found) == 8
        for name, again in found.items():
            history = without_clocks(whole["history"])
            kept = [{key: entry[key] for key in entry if key not in CLOCKS} for entry in again["history"]]
            assert kept == history, name
            for mine, theirs in zip(again["weights"], whole["weights"], strict=True):
                torch.testing.assert_close(
                    mine, theirs, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
                )
            assert whole["outputs"] in (None, again["outputs"]), name  # None: it had no rows
            assert again["warnings"] == []


def test_what_can_t_be_used_is_passed_over_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranks_of("of_others", tmp_path, monkeypatch)
    for found in ranks:
        for mine, theirs in zip(found["damaged"]["weights"], found["whole"]["weights"], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    warnings = ranks[0]["damaged"]["warnings"]
    assert "rank-0.data is not what was written" in warnings[0]
    assert all("passed over a checkpoint" in one for one in warnings)
    others = ranks[0]["others"]
    assert "the ranks' rows or settings have become others" in others["warnings"][0]
    assert others["history"][0]["epoch"] == 1  # from the beginning


def test_by_the_clock_and_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranks_of("in_other_ways", tmp_path, monkeypatch)
    epochs = ranks[0]["full"]["history"][-1]["epoch"]
    assert len(ranks[0]["positions"]) == 6 * epochs  # each step, the last ones at the epochs' ends
    assert all("a checkpoint could not be written" in one for one in ranks[0]["full"]["warnings"])
    assert ranks[0]["full"]["warnings"]
    assert len(ranks[0]["full"]["history"]) == epochs


def test_a_state_that_would_run_code_when_read_is_refused() -> None:
    class Odd:
        pass

    with pytest.raises(ParamError, match=r"callbacks: Mine: its state can't be kept in a checkpoint, which holds"):
        _check_plain({"optimizer": {"lr": 0.1}, "callbacks: Mine": {"odd": Odd()}})

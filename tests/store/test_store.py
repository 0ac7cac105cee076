"""Stores by path and URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktrain.store import HDFSStore, LocalStore, Store
from sparktrain.store.store import check_run_id, new_run_id


def test_a_path_is_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"file://{tmp_path}/runs"
    for given in ("runs", tmp_path / "runs", f"{tmp_path}/runs/", expected):
        assert Store.create(given).url == expected
        assert LocalStore(given) == Store(given)
    assert Store("memory://bucket/runs/").url == "memory://bucket/runs"
    assert Store("dbfs:/runs").url == "file:///dbfs/runs"
    assert HDFSStore("hdfs://node:9000/runs").url == "hdfs://node:9000/runs"
    assert HDFSStore("/runs").url == "hdfs:///runs"
    assert Store("runs").get_run_path("first") == f"{expected}/first"


def test_what_is_no_store() -> None:
    with pytest.raises(ValueError, match="LocalStore takes a local path, got memory://runs"):
        LocalStore("memory://runs")
    with pytest.raises(ValueError, match="nosuch"):
        Store("nosuch://runs")


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "-a", "a b", "a\n"])
def test_a_run_s_name_stays_below_its_store(run_id: str) -> None:
    with pytest.raises(ValueError, match="a name of letters"):
        Store("runs").get_run_path(run_id)


def test_names_of_runs_are_their_own() -> None:
    names = {new_run_id() for _ in range(100)}
    assert len(names) == 100
    assert all(check_run_id(name) for name in names)

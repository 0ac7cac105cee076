"""A run's directory on a worker, and what of it is in the store."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from sparktrain.store.folder import Folder


@pytest.fixture
def memory() -> fsspec.AbstractFileSystem:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    return filesystem


def test_a_local_store_is_written_to_directly(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}/runs/first", str(tmp_path / "scratch"))
    assert folder.is_local
    assert folder.path == f"{tmp_path}/runs/first"
    folder.push()
    assert not list(tmp_path.iterdir())


def test_what_changes_goes_to_the_store(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    folder = Folder("memory://runs/first", str(tmp_path))
    folder.push()
    assert not memory.find("/runs")
    here = Path(folder.path)
    (here / "logs").mkdir(parents=True)
    (here / "logs" / "a").write_text("1")
    (here / "b").write_text("2")
    folder.push()
    assert memory.find("/runs") == ["/runs/first/b", "/runs/first/logs/a"]
    memory.pipe_file("/runs/first/b", b"somebody else's")
    (here / "logs" / "a").write_text("longer")
    folder.push()
    assert memory.cat_file("/runs/first/logs/a") == b"longer"
    assert memory.cat_file("/runs/first/b") == b"somebody else's", "only what changed is written"
    (here / "b").unlink()
    folder.push()
    assert memory.find("/runs") == ["/runs/first/logs/a"]


def test_a_backup_is_fetched(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/runs/first/backup/state", b"kept")
    memory.pipe_file("/runs/first/other", b"not asked for")
    folder = Folder("memory://runs/first", str(tmp_path))
    folder.pull("nothing")
    folder.pull("backup")
    assert (Path(folder.path) / "backup" / "state").read_bytes() == b"kept"
    assert not (Path(folder.path) / "other").exists()
    folder.push()
    assert memory.find("/runs") == ["/runs/first/backup/state", "/runs/first/other"]
    (Path(folder.path) / "backup" / "state").unlink()
    folder.push()
    assert memory.find("/runs") == ["/runs/first/other"]

"""A reader sees all of a checkpoint or nothing, whatever happens to its files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparktrain.store.checkpoints import Background, Checkpoints, DamagedCheckpoint, Position

PARTS = 2


def content(position: Position, rank: int) -> bytes:
    return f"{position} of rank {rank}".encode() * 50


def write(store: Checkpoints, position: Position, rank: int, ranks: int = PARTS, attempt: str = "first") -> None:
    def save(file: IO[bytes]) -> None:
        for piece in (content(position, rank)[:100], content(position, rank)[100:]):
            file.write(piece)

    store.write(position, rank, ranks, attempt, save, {"rank": rank})


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/run" if request.param == "file" else f"memory://{tmp_path}/run"


def test_one_counts_when_all_ranks_have_written_it(url: str) -> None:
    store, one, other = Checkpoints(url), Position(1), Position(1, 7)
    assert store.positions() == []
    write(store, one, 0, ranks=1)
    write(store, other, 1)
    assert store.positions() == [one]
    write(store, other, 0)
    assert store.positions() == [other, one]
    assert [store.read(other, rank) for rank in range(PARTS)] == [content(other, rank) for rank in range(PARTS)]
    assert store.facts(other) == {"rank": 0}


def test_parts_of_two_attempts_make_none(url: str) -> None:
    store, position = Checkpoints(url), Position(0, 3)
    write(store, position, 0)
    write(store, position, 1, attempt="second")
    assert store.positions() == []
    write(store, position, 0, attempt="second")
    assert store.positions() == [position]


def test_the_newest_and_the_best_are_kept(url: str) -> None:
    store = Checkpoints(url)
    for epoch in range(1, 6):
        write(store, Position(epoch), 0, ranks=1)
    write(store, Position(3, 2), 0)  # incomplete
    store.keep(2, Position(1))
    assert store.positions() == [Position(5), Position(4), Position(1)]
    write(store, Position(6, 2), 0)  # another rank is still at it
    store.keep(1, None)
    assert store.positions() == [Position(5)]
    write(store, Position(6, 2), 1)
    write(store, Position(6, 4), 0, ranks=1)
    store.keep(1, None)
    assert store.positions() == [Position(6, 4), Position(5)]  # and the newest epoch's end


def test_what_a_fit_will_write_anew_is_taken_away(url: str) -> None:
    store = Checkpoints(url)
    for position in (Position(1), Position(1, 3), Position(2)):
        write(store, position, 0, ranks=1)
    store.remove_after(Position(1))
    assert store.positions() == [Position(1)]
    store.remove_after(None)
    assert store.positions() == []


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_never_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Truncated, changed, deleted, swapped: what is read is what was written, or it is an error."""
    directory = tmp_path_factory.mktemp("run")
    store = Checkpoints(f"file://{directory}")
    positions = [Position(1), Position(1, 4), Position(2)]
    for position in positions:
        for rank in range(PARTS):
            write(store, position, rank)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in data.draw(st.lists(st.sampled_from(files), max_size=4, unique=True)):
        raw = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["truncate", "flip", "delete", "swap", "grow"]))
        place = data.draw(st.integers(0, len(raw) - 1)) if raw else 0
        if kind == "delete":
            path.unlink()
            continue
        if kind == "truncate":
            raw = raw[:place]
        elif kind == "flip" and raw:
            raw[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "swap":
            other = data.draw(st.sampled_from([one for one in files if one.suffix == path.suffix]))
            raw = bytearray(other.read_bytes()) if other.exists() else raw
        else:
            raw += b"x"
        path.write_bytes(raw)
    for position in store.positions():
        for rank in range(PARTS):
            try:
                found = store.read(position, rank)
            except DamagedCheckpoint:
                continue
            assert found == content(position, rank)


def test_the_background_does_one_thing_at_a_time_and_tells_what_went_wrong() -> None:
    background, begun, go_on, done = Background(), threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        done.append(1)

    background.do(work)
    assert begun.wait(10)
    assert not done  # the caller has gone on meanwhile
    go_on.set()
    background.do(lambda: done.append(2))
    background.finish()
    assert done == [1, 2]
    background.do(lambda: 1 / 0)
    background.finish()
    assert isinstance(background.trouble, ZeroDivisionError)

"""Which rows train in which order: functions of keys, seed and epoch, and of nothing else."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sparktrain.shards import disk, plan

Keys = npt.NDArray[np.int64]


def spark_keys(*rows_by_partition: int) -> Keys:
    """What `monotonically_increasing_id` gives: the partition above bit 33, the position below."""
    parts = [(partition << 33) + np.arange(rows) for partition, rows in enumerate(rows_by_partition)]
    return np.concatenate(parts).astype(np.int64)


KEYS = spark_keys(4000, 0, 2500, 3500)


def dealt(keys: Keys, ranks: int, seed: int) -> list[Keys]:
    """The rows dealt to ranks at random, as a shuffle would."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(ranks, size=len(keys))
    return [rng.permutation(keys[owner == rank]) for rank in range(ranks)]


def held_out(shards: Sequence[Keys], fraction: float, seed: int) -> Keys:
    return np.sort(np.concatenate([keys[plan.split(keys, fraction, seed)[1]] for keys in shards]))


def test_key_order_sorts_by_key() -> None:
    keys = np.array([30, 10, 20], dtype=np.int64)
    np.testing.assert_array_equal(plan.key_order(keys), [1, 2, 0])
    assert plan.key_order(keys[:0]).shape == (0,)


def chunked(monkeypatch: pytest.MonkeyPatch, rows: int = 1000) -> None:
    """Work as on a large shard: in many chunks, with every array on disk."""
    monkeypatch.setattr(plan, "CHUNK_ROWS", rows)
    monkeypatch.setattr(disk, "IN_MEMORY_BYTES", 0)


ARRIVALS = {
    "by hash": dealt(KEYS, 1, seed=1)[0],
    "one run": KEYS,
    "runs": np.concatenate([KEYS[6500:], KEYS[:4000], KEYS[4000:6500]]),
    "interleaved runs": np.concatenate([KEYS[::2], KEYS[1::2]]),
    "backwards": KEYS[::-1],
    "a chunk and a row": dealt(KEYS, 1, seed=2)[0][:1001],
    "one row": KEYS[-1:],
    "no row": KEYS[:0],
    "repeated": np.repeat(KEYS, 2)[::-1],
    "of many partitions": np.arange(5000, dtype=np.int64)[::-1] << plan.POSITION_BITS,
    "negative": -KEYS,
    "of too many partitions": KEYS << 15,
    "of too many bits": np.arange(5000, dtype=np.int64)[::-1] << 40 | (1 << plan.POSITION_BITS) - 1,
}


@pytest.mark.parametrize("keys", ARRIVALS.values(), ids=ARRIVALS)
def test_a_large_shard_is_planned_as_a_small_one(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.argsort(keys, kind="stable")
    drawn, mask = plan.hashed_fraction(keys, 5) < 0.3, keys % 7 == 0
    expected_digest = hashlib.blake2b(keys[order].data, digest_size=8).digest()
    chunked(monkeypatch)
    for validation, held_out in ((None, np.zeros(len(keys), bool)), (0.3, drawn), (mask[:, None], mask)):
        train, held = plan.split(keys, validation, seed=5)
        np.testing.assert_array_equal(train, order[~held_out[order]])
        np.testing.assert_array_equal(held, order[held_out[order]])
        assert {train.dtype, held.dtype} == {np.dtype(np.int32)}
    assert plan.digest(keys, plan.key_order(keys)) == int.from_bytes(expected_digest, "little")
    shuffled = plan.epoch_order(order, seed=1, epoch=2, shard_digest=2**63, shuffle=True)
    np.testing.assert_array_equal(shuffled, np.random.default_rng([1, 2, 2**63]).permutation(order))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's count of anonymous memory")
def test_memory_does_not_grow_with_the_shard() -> None:
    """In a fresh process: memory that other tests freed would be reused unseen."""
    script = """
import re, threading
import numpy as np
from sparktrain.shards import disk, plan

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

def watch():
    while not done.wait(0.002):
        peaks.append(anonymous())

rows = 4_000_000
keys = disk.empty_array(rows, np.int64)
for start in range(0, rows, 100_000):
    keys[start : start + 100_000] = (np.arange(100_000) * 7919 + start) % 100_000 + start
peaks, done = [anonymous()], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
train, held = plan.split(keys, 0.5, 0)
order = plan.epoch_order(train, seed=0, epoch=0, shard_digest=plan.digest(keys, train), shuffle=True)
done.set()
thread.join()
assert len(order) + len(held) == rows
print(max(peaks) - peaks[0])
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert int(grown.stdout) <= 24, "MB; 4,000,000 rows take 32 MB an int64 array, 16 MB an int32 one"


def test_the_hashed_draw_does_not_depend_on_the_deal() -> None:
    expected = held_out([KEYS], 0.2, seed=7)
    for ranks in (2, 3, 8):
        np.testing.assert_array_equal(held_out(dealt(KEYS, ranks, seed=ranks), 0.2, seed=7), expected)


def test_the_draw_follows_the_seed() -> None:
    assert set(held_out([KEYS], 0.2, seed=1)) != set(held_out([KEYS], 0.2, seed=2))


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_draw_takes_about_its_fraction_of_every_partition(fraction: float, seed: int) -> None:
    drawn = held_out([KEYS], fraction, seed)
    assert abs(len(drawn) / len(KEYS) - fraction) < 0.02
    for partition in (0, 2, 3):
        keys = KEYS[partition == KEYS >> 33]
        share = np.mean(np.isin(keys, drawn))
        assert abs(share - fraction) < 0.03


def test_a_larger_fraction_adds_rows_to_the_same_draw() -> None:
    assert set(held_out([KEYS], 0.1, seed=3)) < set(held_out([KEYS], 0.3, seed=3))


def test_hashed_fractions_are_in_the_unit_interval() -> None:
    fractions = plan.hashed_fraction(np.array([0, 1, 2**62, 2**63 - 1]), seed=0)
    assert ((fractions >= 0) & (fractions < 1)).all()
    assert len(set(fractions)) == 4


@pytest.mark.parametrize("validation", [None, 0.3, "mask"])
def test_a_split_uses_every_row_once_in_key_order(validation: float | str | None) -> None:
    keys = dealt(KEYS, 3, seed=5)[1]
    given = keys % 7 == 0 if validation == "mask" else validation
    train, held = plan.split(keys, given, seed=0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.sort(np.concatenate([train, held])), np.arange(len(keys)))
    for rows in (train, held):
        assert (np.diff(keys[rows]) > 0).all()


def test_a_mask_splits_as_it_says() -> None:
    keys = np.array([5, 3, 9, 1], dtype=np.int64)
    train, held = plan.split(keys, np.array([True, False, False, True]), seed=0)
    np.testing.assert_array_equal(keys[train], [3, 9])
    np.testing.assert_array_equal(keys[held], [1, 5])


def test_without_validation_all_rows_train() -> None:
    train, held = plan.split(KEYS, None, seed=0)
    assert (len(train), len(held)) == (len(KEYS), 0)


def test_the_digest_names_keys_in_order() -> None:
    keys = np.array([1, 2, 3], dtype=np.int64)
    rows = np.array([0, 1, 2])
    assert plan.digest(keys, rows) == plan.digest(np.array([3, 1, 2]), rows[[1, 2, 0]])
    assert plan.digest(keys, rows) == plan.digest(np.array([1, 0, 2, 0, 3])[::2], rows), "also of a strided view"
    assert len({plan.digest(keys, some) for some in (rows, rows[::-1], rows[:2], rows[:0])}) == 4
    assert 0 <= plan.digest(keys, rows) < 2**64


def order(seed: int = 1, epoch: int = 2, shard_digest: int = 2**63 + 3, shuffle: bool = True) -> list[int]:
    rows = np.arange(10, 60)
    visited = plan.epoch_order(rows, seed=seed, epoch=epoch, shard_digest=shard_digest, shuffle=shuffle)
    np.testing.assert_array_equal(rows, np.arange(10, 60), err_msg="the rows given stay as they are")
    return [int(row) for row in visited]


def test_an_epoch_visits_every_row_once() -> None:
    assert sorted(order()) == list(range(10, 60))


def test_the_order_is_a_pure_function() -> None:
    first = order()
    np.random.seed(4)
    order(epoch=3)
    assert order() == first


@pytest.mark.parametrize("changed", [{"seed": 2}, {"epoch": 3}, {"shard_digest": 4}])
def test_the_order_depends_on_seed_epoch_and_shard(changed: dict[str, int]) -> None:
    assert order(**changed) != order()  # type: ignore[arg-type]


def test_without_shuffle_rows_keep_their_order() -> None:
    assert order(shuffle=False) == list(range(10, 60))


@pytest.mark.parametrize(
    ("rows_by_rank", "batch_size", "by_step"),
    [
        ([4, 4], 2, [[2, 2], [2, 2]]),
        ([5, 1], 2, [[2, 1], [2, 0], [1, 0]]),
        ([0, 3, 2], 2, [[0, 2, 2], [0, 1, 0]]),
        ([1], 8, [[1]]),
    ],
)
def test_steps_bring_every_row_once(rows_by_rank: list[int], batch_size: int, by_step: list[list[int]]) -> None:
    steps = plan.steps_per_epoch(rows_by_rank, batch_size)
    assert [plan.rows_in_step(rows_by_rank, batch_size, step) for step in range(steps)] == by_step
    assert [sum(rows) for rows in zip(*by_step, strict=True)] == rows_by_rank

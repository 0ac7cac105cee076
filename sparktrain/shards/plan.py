"""Which rows train in which order: pure functions of the row keys, the seed and the epoch.

Spark delivers a shard's rows in another order each run, so nothing here depends on where a row lies:
rows are ordered by the key each one got before the shuffle. What has an element a row lies on local disk
where it is large, and is worked through in chunks: memory does not grow with the shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparktrain.shards import disk
from sparktrain.shards.arrow import Array

Indices = npt.NDArray[np.signedinteger]
"""Row indices of a shard: int32 where they fit."""

CHUNK_ROWS = 1 << 18
"""Rows worked on at a time: large enough that NumPy's loops count, small enough for the processor's cache."""

POSITION_BITS = 33
MOST_PARTITIONS = 1 << 20


def key_order(keys: Array) -> Indices:
    """Row indices of a shard in the order of their keys.

    Spark's shuffle delivers a partition's rows in the order of their hashes, so keys come in no order at
    all. A large shard is sorted in place on disk, since `numpy.argsort` takes 16 bytes of memory a row.
    """
    dtype = np.int32 if len(keys) <= np.iinfo(np.int32).max else np.int64
    tagged = _tagged(keys) if len(keys) > CHUNK_ROWS else None
    if tagged is None:
        return np.argsort(keys, kind="stable").astype(dtype)
    tagged.sort()
    row = (1 << len(keys).bit_length()) - 1
    order: Indices = disk.empty_array(len(keys), dtype)
    for part in _chunks(len(keys)):
        order[part] = tagged[part] & row
    return order


def _tagged(keys: Array) -> npt.NDArray[np.int64] | None:
    """Each row's key, its gaps closed up, with the row index in the lower bits; None for keys not made by Spark.

    `monotonically_increasing_id` puts the partition above bit 33 and the position in it below. The
    partitions' positions laid end to end take no more bits than the DataFrame has rows.
    """
    partitions = int(keys.max() >> POSITION_BITS) + 1
    if keys.min() < 0 or partitions > MOST_PARTITIONS:
        return None
    positions = (1 << POSITION_BITS) - 1
    sizes = np.zeros(partitions, np.int64)
    for part in _chunks(len(keys)):
        np.maximum.at(sizes, keys[part] >> POSITION_BITS, (keys[part] & positions) + 1)
    starts = np.cumsum(sizes) - sizes
    row_bits = len(keys).bit_length()
    if int(sizes.sum()).bit_length() + row_bits > 63:
        return None
    tagged = disk.empty_array(len(keys), np.int64)
    for part in _chunks(len(keys)):
        closed_up = starts[keys[part] >> POSITION_BITS] + (keys[part] & positions)
        tagged[part] = closed_up << row_bits | np.arange(part.start, part.stop)
    return tagged


def _chunks(count: int) -> Iterator[slice]:
    """Slices of at most `CHUNK_ROWS` that cover `count` rows."""
    return (slice(start, min(start + CHUNK_ROWS, count)) for start in range(0, count, CHUNK_ROWS))


def hashed_fraction(keys: Array, seed: int) -> npt.NDArray[np.float64]:
    """Each key as a number in [0, 1): SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of key and seed."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64(seed % 2**63) * np.uint64(0x9E3779B97F4A7C15)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) / float(2**53)


def split(keys: Array, validation: Array | float | None, seed: int) -> tuple[Indices, Indices]:
    """Training and validation row indices, each in key order.

    Parameters
    ----------
    keys : ndarray, shape (rows,), int64
    validation : ndarray of bool, float or None
        A mask (True: validation), or the fraction of rows to draw by hashed key, so that the draw is the
        same however the rows are dealt to ranks.
    seed : int
    """
    order = key_order(keys)
    if validation is None:
        return order, order[:0]

    held_out = disk.empty_array(len(keys), np.bool_)
    mask = None if isinstance(validation, float) else np.asarray(validation).reshape(-1)
    for part in _chunks(len(keys)):
        held_out[part] = hashed_fraction(keys[part], seed) < validation if mask is None else mask[part]
    return _chosen(order, held_out, False), _chosen(order, held_out, True)


def _chosen(order: Indices, held_out: npt.NDArray[np.bool_], value: bool) -> Indices:
    """The rows of `order` that are held out, or those that are not."""
    count = int(np.count_nonzero(held_out))
    chosen = disk.empty_array(count if value else len(order) - count, order.dtype)
    filled = 0
    for part in _chunks(len(order)):
        rows = order[part]
        rows = rows[held_out[rows] == value]
        chosen[filled : filled + len(rows)] = rows
        filled += len(rows)
    return chosen


def digest(keys: Array, rows: Indices) -> int:
    """A 64-bit digest of the keys of `rows` in their order: names the shard in seeds and checkpoints."""
    state = hashlib.blake2b(digest_size=8)
    for part in _chunks(len(rows)):
        state.update(keys[rows[part]].data)
    return int.from_bytes(state.digest(), "little")


def fingerprint(keys: Array, columns: Sequence[Array]) -> int:
    """A 64-bit number that rows have in common however they are dealt and ordered, and that other rows hardly have.

    Parameters
    ----------
    keys : ndarray, shape (rows,)
    columns : sequence of ndarray, shape (rows, …)
        Of which each row's first value counts.
    """
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for part in _chunks(len(keys)):
            mixed = keys[part].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            for column in columns:
                first = column[part].reshape(len(mixed), -1)[:, :1]
                if first.shape[1]:
                    bits = np.ascontiguousarray(first[:, 0], np.float64).view(np.uint64)
                    mixed = (mixed ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
                    mixed ^= mixed >> np.uint64(29)
            total += mixed.sum(dtype=np.uint64)
    return int(total)


def epoch_order(rows: Indices, *, seed: int, epoch: int, shard_digest: int, shuffle: bool) -> Indices:
    """The order in which an epoch (counted from 0) visits `rows`."""
    if not shuffle:
        return rows
    order = disk.empty_array(len(rows), rows.dtype)
    order[:] = rows
    np.random.default_rng([seed, epoch, shard_digest]).shuffle(order)  # as `permutation` does, which copies to memory
    return order


def steps_per_epoch(rows_by_rank: Sequence[int], batch_size: int) -> int:
    """Steps until the longest shard is through; ranks that run out join the rest without rows."""
    return max(-(-rows // batch_size) for rows in rows_by_rank)


def rows_in_step(rows_by_rank: Sequence[int], batch_size: int, step: int) -> list[int]:
    """How many rows each rank brings to a step (counted from 0): their sum is the global batch."""
    return [min(batch_size, max(0, rows - step * batch_size)) for rows in rows_by_rank]

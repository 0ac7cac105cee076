"""Which rows train in which order: pure functions of the row keys, the seed and the epoch.

Spark delivers a shard's rows in another order each run, so nothing here depends on where a row lies:
rows are ordered by the key each one got before the shuffle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparktrain.shards.arrow import Array

Indices = npt.NDArray[np.signedinteger]
"""Row indices of a shard: int32 where they fit, since an epoch's order of a large shard is what takes memory."""


def key_order(keys: Array) -> Indices:
    """Row indices of a shard in the order of their keys."""
    fits = len(keys) <= np.iinfo(np.int32).max
    return np.argsort(keys, kind="stable").astype(np.int32 if fits else np.int64)


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
    if isinstance(validation, float):
        held_out = hashed_fraction(keys, seed) < validation
    else:
        held_out = np.asarray(validation).reshape(-1).astype(bool)
    mask = held_out[order]
    return order[~mask], order[mask]


def digest(keys: Array) -> int:
    """A 64-bit digest of a shard's keys in order: names the shard in seeds and checkpoints."""
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(keys).data, digest_size=8).digest(), "little")


def epoch_order(rows: Indices, *, seed: int, epoch: int, shard_digest: int, shuffle: bool) -> Indices:
    """The order in which an epoch (counted from 0) visits `rows`."""
    if not shuffle:
        return rows
    return np.random.default_rng([seed, epoch, shard_digest]).permutation(rows)


def steps_per_epoch(rows_by_rank: Sequence[int], batch_size: int) -> int:
    """Steps until the longest shard is through; ranks that run out join the rest without rows."""
    return max(-(-rows // batch_size) for rows in rows_by_rank)


def rows_in_step(rows_by_rank: Sequence[int], batch_size: int, step: int) -> list[int]:
    """How many rows each rank brings to a step (counted from 0): their sum is the global batch."""
    return [min(batch_size, max(0, rows - step * batch_size)) for rows in rows_by_rank]

"""Queries of a ranker: rows of one lie together, go to training or validation together, and share a weight."""

from __future__ import annotations

import numpy as np

from sparktrain.errors import DataError
from sparktrain.shards import plan
from sparktrain.shards.arrow import Array
from sparktrain.shards.plan import Indices


def split(groups: Array, keys: Array, validation: Array | float | None, seed: int) -> tuple[Indices, Indices]:
    """Training and validation row indices, each by query and, within one, in key order.

    Parameters
    ----------
    groups : ndarray, shape (rows,), int64
    keys : ndarray, shape (rows,), int64
    validation : ndarray of bool, float or None
        A mask, or the fraction of queries to draw by their hashed id.
    seed : int
    """
    order = plan.key_order(keys)
    order = order[np.argsort(groups[order], kind="stable")]
    if validation is None:
        return order, order[:0]
    if isinstance(validation, float):
        held_out = plan.hashed_fraction(groups, seed) < validation
    else:
        held_out = np.asarray(validation).reshape(-1)
    return order[~held_out[order]], order[held_out[order]]


def check_weights(groups: Array, weights: Array, rows: Indices) -> None:
    """Rows of a query have one weight, which is the query's.

    Raises
    ------
    DataError
        Names a query with several.
    """
    same = np.diff(groups[rows]) == 0
    differ = same & (np.diff(weights[rows]) != 0)
    if differ.any():
        query = groups[rows][1:][differ][0]
        count = len(np.unique(groups[rows][1:][differ]))
        raise DataError(
            f"weight_col: a ranker's weights are those of queries, but the rows of {count:,} have several (query "
            f"{query}, for one); give all rows of a query the same weight"
        )


def check_whole(groups_by_rank: list[Array]) -> None:
    """No query has rows on two ranks.

    Raises
    ------
    DataError
        Names a query that has.
    """
    seen, counts = np.unique(np.concatenate(groups_by_rank), return_counts=True)
    split_up = seen[counts > 1]
    if len(split_up):
        raise DataError(
            f"partitioned=True: {len(split_up):,} queries have rows in several partitions (query {split_up[0]}, for "
            "one); df.repartition(num_proc, qid_col) brings each into one, or leave partitioned=False"
        )

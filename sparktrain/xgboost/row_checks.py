"""What XGBoost refuses in rows, told by column instead of by a stack trace of C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from sparktrain.errors import DataError
from sparktrain.shards.arrow import Array
from sparktrain.shards.plan import Indices
from sparktrain.xgboost.matrices import BATCH_BYTES, Features

CHUNK_ROWS = 1 << 20
CATEGORIES = 1 << 24
"""XGBoost's categories are whole numbers below this."""
MOST_RELEVANT = 31
"""XGBoost's gain is 2 to the power of the relevance, less 1."""


def weighs(weights: Array | None, rows: Indices) -> bool:
    """Whether some of these rows counts."""
    if weights is None:
        return True
    return any(weights[rows[start : start + CHUNK_ROWS]].any() for start in range(0, len(rows), CHUNK_ROWS))


def check_margins(margins: Array, outputs: int) -> None:
    """A margin for each class, target or quantile.

    Raises
    ------
    DataError
    """
    width = prod(margins.shape[1:])
    if width != outputs:
        raise DataError(
            f"base_margin_col has {width} values a row, but the model has {outputs} outputs: give an array or vector "
            "with one for each class, target or quantile (a number for two classes or one target)"
        )


def check_relevances(labels: Array, params: Mapping[str, Any], *, evaluated: bool) -> None:
    """Labels of a ranker, as its objective and metrics take them.

    Parameters
    ----------
    labels : ndarray, shape (rows,) or (rows, 1)
    params : mapping
        What `xgboost.train` is given.
    evaluated : bool
        Whether metrics are computed.

    Raises
    ------
    DataError
        Tells how many rows have others, and one of them.
    """
    objective = str(params["objective"]).removeprefix("rank:")
    metrics = params.get("eval_metric") or ["map" if objective == "map" else "ndcg"]
    names = [str(one).partition("@")[0].rstrip("-") for one in ([metrics] if isinstance(metrics, str) else metrics)]
    asked = {objective, *(names if evaluated else ())}
    binary, graded = sorted(asked & {"map", "pre"}), "ndcg" in asked
    if not binary and not graded:
        return
    exponential = str(params.get("ndcg_exp_gain", True)).lower() not in ("false", "0")
    most = 1 if binary else MOST_RELEVANT if exponential else np.inf
    count, example = 0, 0.0
    for start in range(0, len(labels), CHUNK_ROWS):
        part = labels[start : start + CHUNK_ROWS]
        others = part[(part < 0) | (part > most) | (part != np.floor(part))]
        if len(others):
            count, example = count + len(others), float(others[0])
    if count:
        what = "0 or 1" if binary else "whole numbers from 0" + (f" to {most}" if exponential else "")
        hint = "" if binary else "; ndcg_exp_gain=False takes larger ones" if example > MOST_RELEVANT else ""
        raise DataError(
            f"label_col: {(binary or ['ndcg'])[0]!r} takes relevances that are {what}, but {count:,} rows have others "
            f"({example:g}, for one){hint}"
        )


def check_categories(
    features: Features, types: Sequence[str] | None, names: Sequence[str] | None, missing: float
) -> None:
    """Values of categorical features.

    Parameters
    ----------
    features : ndarray, shape (rows, features), float32, or SparseReader
    types : sequence of str or None
        ``c`` is categorical.
    names : sequence of str or None
    missing : float
        The value that means missing, beside NaN.

    Raises
    ------
    DataError
        Names a feature and a value that is no category.
    """
    positions = [number for number, kind in enumerate(types or ()) if kind == "c"]
    if not positions or types is None:
        return
    step = max(BATCH_BYTES // (len(types) * 4), 1)
    for start in range(0, len(features), step):
        rows = np.arange(start, min(start + step, len(features)))
        values = (features[rows] if isinstance(features, np.ndarray) else features.dense(rows))[:, positions]
        given = ~np.isnan(values) & (values != missing)
        wrong = given & ((values < 0) | (values >= CATEGORIES) | (values != np.floor(values)))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            position = positions[column]
            feature = f"feature {position} (counted from 0)" if names is None else repr(names[position])
            raise DataError(
                f"features_col: {feature} is categorical, but has the value "
                f"{values[row, column]:g}; categories are whole numbers from 0 to {CATEGORIES - 1:,}, as StringIndexer "
                "makes them (feature_types or enable_categorical=False declare others)"
            )

"""NumPy results as Arrow columns that Spark takes: lists as deep as the shape, dense ML vectors."""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa

from sparktrain.shards.arrow import Array


def list_column(rows: Array) -> pa.Array:
    """Rows of shape (rows, *shape) as lists as deep as the shape; shape (rows,) as scalars."""
    column = pa.array(np.ascontiguousarray(rows).reshape(-1))
    shape = rows.shape[1:]
    for depth, size in reversed(list(enumerate(shape))):
        lists = len(rows) * prod(shape[:depth])
        column = pa.ListArray.from_arrays(pa.array(np.arange(lists + 1, dtype=np.int32) * size), column)
    return column


def vector_column(rows: Array) -> pa.Array:
    """Rows of shape (rows, size) as dense `VectorUDT` values: struct(type, size, indices, values)."""
    count = len(rows)
    dense = pa.array(np.ones(count, dtype=np.int8))
    no_size = pa.nulls(count, pa.int32())
    no_indices = pa.nulls(count, pa.list_(pa.int32()))
    names = ["type", "size", "indices", "values"]
    return pa.StructArray.from_arrays(
        [dense, no_size, no_indices, list_column(rows.astype(np.float64, copy=False))], names
    )


def raw_column(rows: Array, shape: tuple[int, ...], dtype: str) -> pa.Array:
    """An output as a column: scalars for rows of shape () or (1,), else lists as deep as the shape.

    Parameters
    ----------
    rows : ndarray, shape (rows, *shape)
    shape : tuple of int
    dtype : str
        Name of the output's dtype; where Spark has none such, the column is of the next wider.
    """
    wider = {"float16": "float32", "bfloat16": "float32", "uint8": "int16"}
    values = rows.astype(wider.get(dtype, dtype), copy=False)
    return list_column(values.reshape(-1) if shape == (1,) else values)


def classify(output: Array, kind: str, threshold: float) -> tuple[Array, Array, Array]:
    """Raw scores, probabilities and predicted class of each row, as Spark ML defines them.

    Parameters
    ----------
    output : ndarray, shape (batch, classes), or (batch,) or (batch, 1): the score of class 1
    kind : str
        ``"logits"`` or ``"probabilities"``.
    threshold : float
        For one score a row: class 1 where its probability is above.

    Returns
    -------
    rawPrediction, probability : ndarray, shape (batch, classes), float64
    prediction : ndarray, shape (batch,), float64
    """
    scores = output.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        if scores.ndim == 1 or scores.shape[1] == 1:
            score = scores.reshape(-1)
            logit = score if kind == "logits" else np.log(score) - np.log1p(-score)
            positive = 1 / (1 + np.exp(-score)) if kind == "logits" else score
            raw = np.stack([-logit, logit], axis=1)
            probability = np.stack([1 - positive, positive], axis=1)
            return raw, probability, (positive > threshold).astype(np.float64)
        predicted = scores.argmax(axis=1).astype(np.float64)
        if kind != "logits":
            return np.log(scores), scores, predicted
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores, powers / powers.sum(axis=1, keepdims=True), predicted

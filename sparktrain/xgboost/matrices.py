"""A shard's rows as XGBoost's matrices, built batch by batch in the plan's order, with no copy of the whole.

``hist`` takes a `QuantileDMatrix`, or an `ExtMemQuantileDMatrix` whose pages lie on disk; ``approx`` and
``gblinear`` need the values themselves, in a plain `DMatrix`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse
import xgboost as xgb

from sparktrain.shards import disk
from sparktrain.shards.arrow import Array
from sparktrain.shards.plan import Indices
from sparktrain.shards.sparse import SparseReader
from sparktrain.xgboost.spec import is_quantised

BATCH_BYTES = 16 << 20
"""Features of a batch; a batch at a time is in memory."""
PAGE_BYTES = 256 << 20
"""Features of a page of external memory, before they are quantised."""
COLUMNS_AT_MOST = 512
"""Up to so many features lie column by column, from which XGBoost makes bins a fifth to a third faster (3.2); a batch
of more has too few rows to pay for as many Arrow arrays."""
DEFAULT_MAX_BIN = 256

Features = Array | SparseReader


@dataclass(frozen=True)
class Rows:
    """The rows of a shard for one matrix, in their order.

    Parameters
    ----------
    features : ndarray, shape (rows, features), float32, each of few features in one piece; or SparseReader, of which
        `order` takes the rows
    order : ndarray
    labels : ndarray, shape (rows,) or (rows, targets), float32
    weights, margins, groups : ndarray or None
        groups : int64, each row's query, of which the rows lie together.
    """

    features: Features
    order: Indices
    labels: Array
    weights: Array | None = None
    margins: Array | None = None
    groups: Array | None = None

    @classmethod
    def of(
        cls,
        features: Features,
        order: Indices,
        labels: Array,
        weights: Array | None = None,
        margins: Array | None = None,
        groups: Array | None = None,
    ) -> Rows:
        """Take the rows of a shard once: XGBoost reads its matrix four times over."""
        if isinstance(features, SparseReader):
            dense: Features = features
        else:
            dense = disk.taken(features, order, order="F" if features.shape[1] <= COLUMNS_AT_MOST else "C")
        meta = [None if values is None else disk.taken(values, order) for values in (weights, margins, groups)]
        return cls(dense, order, labels, *meta)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def width(self) -> int:
        return self.features.width if isinstance(self.features, SparseReader) else int(self.features.shape[1])

    def starts(self, batch_bytes: int) -> list[int]:
        """Where batches begin; a query is never cut, since XGBoost would take its parts for two."""
        step = max(batch_bytes // max(self.width * 4, 1), 1)
        starts = list(range(0, max(len(self), 1), step))
        if self.groups is None:
            return starts
        begins = np.concatenate([[0], np.flatnonzero(np.diff(self.groups)) + 1])
        return sorted({int(begins[np.searchsorted(begins, start, side="right") - 1]) for start in starts})

    def batch(self, start: int, stop: int, *, sparse: bool) -> dict[str, Any]:
        """Data and meta data, as XGBoost names them."""
        part = slice(start, stop)
        batch: dict[str, Any] = {"data": self._features(part, sparse), "label": self.labels[part]}
        if self.margins is not None:
            batch["base_margin"] = self.margins[part]
        if self.weights is not None:
            batch["weight"] = self.weights[part]
        if self.groups is not None:
            groups = self.groups[part]
            first = np.ones(len(groups), bool)
            first[1:] = np.diff(groups) != 0
            batch["qid"] = np.cumsum(first)  # XGBoost's are uint32, and ascend
            if self.weights is not None:  # it weighs queries
                batch["weight"] = batch["weight"][first]
        return batch

    def _features(self, part: slice, sparse: bool) -> Any:
        if not isinstance(self.features, SparseReader):
            return self.features[part]
        rows = self.order[part]
        if not sparse:
            return self.features.dense(rows)
        return scipy.sparse.csr_matrix(self.features.csr(rows), shape=(len(rows), self.width))


class Batches(xgb.DataIter):
    """Feeds `Rows` to a matrix, again and again; without rows one empty batch, which tells the number of features.

    Parameters
    ----------
    rows : Rows
    meta : mapping
        ``feature_types``, where known.
    to_device : callable
        Applied to the features of a batch.
    sparse : bool
        Whether sparse rows go in as CSR, in which what is not stored is missing.
    cache : str or None
        Prefix of the files of an external memory.
    """

    def __init__(
        self,
        rows: Rows,
        meta: Mapping[str, Any],
        to_device: Callable[[Any], Any],
        *,
        sparse: bool,
        cache: str | None = None,
    ) -> None:
        super().__init__(cache_prefix=cache, release_data=True)
        self._rows, self._meta, self._to_device, self._sparse = rows, meta, to_device, sparse
        self._starts = [*rows.starts(BATCH_BYTES if cache is None else PAGE_BYTES), len(rows)]
        self._next = 0

    def next(self, input_data: Callable[..., Any]) -> bool:
        if self._next == len(self._starts) - 1:
            return False
        batch = self.batch(self._starts[self._next], self._starts[self._next + 1])
        input_data(**batch, **self._meta)
        self._next += 1
        return True

    def reset(self) -> None:
        self._next = 0

    def batch(self, start: int, stop: int) -> dict[str, Any]:
        batch = self._rows.batch(start, stop, sparse=self._sparse)
        batch["data"] = self._to_device(batch["data"])
        return batch

    def whole(self) -> dict[str, Any]:
        """All rows at once."""
        return {**self.batch(0, self._starts[-1]), **self._meta}


@dataclass(frozen=True)
class MatrixMaker:
    """Makes the training matrix and, with its bins, the validation matrix.

    Parameters
    ----------
    params : mapping
        The booster's.
    missing : float
    types : list of str or None
    names : list of str or None
    threads : int
    scratch : str or None
        Directory for the pages of an external memory; None: no external memory.
    to_device : callable
        See `Batches`.
    """

    params: Mapping[str, Any]
    missing: float
    types: list[str] | None
    names: list[str] | None
    threads: int
    scratch: str | None
    to_device: Callable[[Any], Any]

    def make(self, rows: Rows, name: str, ref: xgb.DMatrix | None = None) -> xgb.DMatrix:
        quantised = is_quantised(self.params)
        cache = None if self.scratch is None or not quantised else os.path.join(self.scratch, name)
        if cache is not None:
            os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
        meta = {"feature_types": self.types}
        batches = Batches(rows, meta, self.to_device, sparse=self.missing == 0, cache=cache)
        general: dict[str, Any] = {
            "missing": float(self.missing),
            "nthread": self.threads,
            "enable_categorical": bool(self.types and "c" in self.types),
        }
        matrix: xgb.DMatrix
        if quantised:
            kind = xgb.QuantileDMatrix if cache is None else xgb.ExtMemQuantileDMatrix
            matrix = kind(batches, max_bin=int(self.params.get("max_bin", DEFAULT_MAX_BIN)), ref=ref, **general)
        else:
            matrix = xgb.DMatrix(**batches.whole(), **general)
        matrix.feature_names, matrix.feature_types = self.names, self.types  # not those of Arrow's columns
        return matrix


def to_columns(data: Any) -> Any:
    """A dense batch that lies column by column as an Arrow table, without a copy; other data as it is."""
    if not isinstance(data, np.ndarray) or not data.size or data.strides[0] != data.itemsize:
        return data
    columns = [pa.Array.from_buffers(pa.float32(), len(data), [None, pa.py_buffer(one)]) for one in data.T]
    return pa.table(columns, names=[str(number) for number in range(len(columns))])  # `pa.array` imports pandas


def to_gpu(data: Any) -> Any:
    """A dense batch as a CuPy array, so that XGBoost makes bins on the device; without CuPy, or sparse, as it is."""
    try:
        import cupy
    except ImportError:
        return data
    return cupy.asarray(data, order="C") if isinstance(data, np.ndarray) else data

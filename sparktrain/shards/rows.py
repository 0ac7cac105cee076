"""A shard for a user's own function: columns by name, rows in the DataFrame's order, in each framework's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparktrain.shards import plan
from sparktrain.shards.arrow import Array
from sparktrain.shards.reader import Shard

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf
    import torch

    Tensors = dict[str, torch.Tensor]

Columns = dict[str, Array]


class Rows:
    """One rank's rows of the DataFrame.

    Ranks may have different numbers of rows (`counts`), and so of batches.

    Parameters
    ----------
    shard : Shard
        One input for each column.
    counts : sequence of int
        Rows of each rank.
    """

    def __init__(self, shard: Shard, counts: Sequence[int]) -> None:
        self._arrays = {spec.name: array for spec, array in zip(shard.tensors, shard.arrays, strict=True)}
        self._order = plan.key_order(self._arrays.pop(plan_key(shard)))
        self._digest = plan.digest(shard.keys, self._order)
        self.counts = tuple(counts)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def columns(self) -> list[str]:
        return list(self._arrays)

    def arrays(self) -> Columns:
        """All rows, in memory: an array of shape (rows, …) for each column."""
        return {name: array[self._order] for name, array in self._arrays.items()}

    def numpy(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
    ) -> Iterator[Columns]:
        """Batches of the rows, read from disk as they are needed.

        Parameters
        ----------
        batch_size : int
            Rows in a batch; the last one may have fewer.
        shuffle : bool
            True: in an order drawn from `seed`, `epoch` and the rows; else in the DataFrame's.
        seed, epoch : int
        drop_last : bool
            True: leave out a last batch that is not full.

        Yields
        ------
        dict of str to ndarray
            For each column an array of shape (rows, …).
        """
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ValueError(f"batch_size: expected a whole number of at least 1, got {batch_size!r}")
        order = plan.epoch_order(self._order, seed=seed, epoch=epoch, shard_digest=self._digest, shuffle=shuffle)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            if len(rows) == batch_size or not drop_last:
                yield {name: array[rows] for name, array in self._arrays.items()}

    def torch(self, batch_size: int, **settings: Any) -> Iterator[Tensors]:
        """As `numpy`, with torch tensors."""
        import torch

        for batch in self.numpy(batch_size, **settings):
            yield {name: torch.from_numpy(array) for name, array in batch.items()}

    def arrow(self, batch_size: int, **settings: Any) -> Iterator[pa.RecordBatch]:
        """As `numpy`, with Arrow's record batches; a column of arrays is one of fixed-size lists."""
        import pyarrow as pa

        for batch in self.numpy(batch_size, **settings):
            columns = {name: _arrow(array) for name, array in batch.items()}
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def tf_data(self, batch_size: int, **settings: Any) -> tf.data.Dataset:
        """As `numpy`, as a `tf.data.Dataset` of dicts; it may be iterated again, and repeated."""
        import tensorflow as tf

        signature = {
            name: tf.TensorSpec((None, *array.shape[1:]), tf.as_dtype(array.dtype))
            for name, array in self._arrays.items()
        }
        return tf.data.Dataset.from_generator(lambda: self.numpy(batch_size, **settings), output_signature=signature)


def plan_key(shard: Shard) -> str:
    """The name under which the rows' keys are among a shard's tensors."""
    return shard.specs("key")[0].name


def _arrow(array: Array) -> pa.Array:
    import pyarrow as pa

    if array.ndim == 1:
        return pa.array(array)
    inner = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        inner = pa.FixedSizeListArray.from_arrays(inner, size)
    return inner

"""Rows of varying length: their items back to back, padded when a batch is taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparktrain.shards import disk
from sparktrain.shards.arrow import Array
from sparktrain.shards.plan import Indices
from sparktrain.shards.tensors import Pad


@dataclass(frozen=True)
class Ragged:
    """Arrays of varying length.

    Parameters
    ----------
    items : ndarray, shape (items of all rows, *shape of one item)
    offsets : ndarray, shape (rows + 1,), int64
        Row i has the items from offsets[i] to offsets[i + 1].
    pad : int or "longest"
        Length of a batch's rows: this one, or that of the longest row in it (at least 1).
    """

    items: Array
    offsets: Array
    pad: Pad

    @classmethod
    def of(cls, items: Array, lengths: Array, pad: Pad) -> Ragged:
        offsets = disk.empty_array(len(lengths) + 1, np.int64)
        offsets[0] = 0
        np.cumsum(lengths, out=offsets[1:])
        return cls(items, offsets, pad)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Indices) -> tuple[Array, Array]:
        """Rows by index, filled up with zeros.

        Returns
        -------
        values : ndarray, shape (rows, length, *shape of one item)
        mask : ndarray of bool, shape (rows, length)
            True where there is an item.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        longest = max(int(lengths.max(initial=0)), 1) if self.pad == "longest" else self.pad
        steps = np.arange(longest)
        mask = steps < lengths[:, None]
        values = np.zeros((len(rows), longest, *self.items.shape[1:]), dtype=self.items.dtype)
        values[mask] = self.items[(starts[:, None] + steps)[mask]]
        return values, mask

"""The rows of a fit: which of a rank's train and which validate, and how many each rank has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparktrain.errors import DataError
from sparktrain.shards import plan
from sparktrain.shards.plan import Indices
from sparktrain.shards.reader import Shard


@dataclass(frozen=True)
class Split:
    """One rank's view of them.

    Parameters
    ----------
    train, validation : ndarray
        Row indices of this rank, in key order.
    digest : int
        Names this rank's training rows.
    rows_by_rank, validation_by_rank : list of int
    validates : bool
        Whether rows were to be held out.
    """

    train: Indices
    validation: Indices
    digest: int
    rows_by_rank: list[int]
    validation_by_rank: list[int]
    validates: bool

    @classmethod
    def of(cls, shard: Shard, fraction: float | None, seed: int, gather: Callable[[int], list[int]]) -> Split:
        """Split the shard by its validation column, or by a fraction; all ranks call this together.

        Raises
        ------
        DataError
            Where no row is left to train on, or none to validate with.
        """
        column = shard.validation
        train, validation = plan.split(shard.keys, fraction if column is None else column, seed)
        digest = plan.digest(shard.keys, train)
        rows, held_out = gather(len(train)), gather(len(validation))
        validates = column is not None or fraction is not None
        if not sum(rows):
            raise DataError(f"validation takes all {sum(held_out)} rows: none is left to train on")
        if validates and not sum(held_out):
            given = fraction or repr(shard.specs("validation")[0].name)
            raise DataError(f"validation={given} holds out none of {sum(rows)} rows")
        return cls(train, validation, digest, rows, held_out, validates)

    def epoch_order(self, epoch: int, *, seed: int, shuffle: bool) -> Indices:
        """The order in which an epoch (counted from 0) visits the training rows."""
        return plan.epoch_order(self.train, seed=seed, epoch=epoch, shard_digest=self.digest, shuffle=shuffle)

"""What a batch is made of, as frozen data: shared by driver, task and worker; imports no pyspark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Role = Literal["input", "length", "position", "label", "weight", "margin", "group", "validation", "key"]
"""``length``: how many items each row of a padded input, or values each row of a sparse one, has; ``position``: where
those values are. They follow their input. ``margin``: the prediction to start from; ``group``: the query."""
Pad = int | Literal["longest"]
Kind = Literal["number", "list", "vector", "binary"]


@dataclass(frozen=True)
class ColumnSpec:
    """One DataFrame column.

    Parameters
    ----------
    name : str
        The user's name for it, for errors.
    field : int
        Its position among the columns handed to the task.
    kind : str
        ``number``: numeric or boolean scalar; ``list``: array, nested or not; ``vector``: `VectorUDT`,
        dense or sparse; ``binary``: raw bytes of `storage_dtype`.
    storage_dtype : str or None
        NumPy dtype of the raw bytes of a binary column.
    nullable : bool
        True: a null number, also inside an array, is NaN; else rows with nulls are faults.
    """

    name: str
    field: int
    kind: Kind
    storage_dtype: str | None = None
    nullable: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a batch: which columns fill it, its dtype and the shape of one row.

    Parameters
    ----------
    name : str
        Column name, or the names of joined columns.
    role : str
        What the trainer uses it for.
    columns : tuple of ColumnSpec
        More than one: each is flattened and they are joined along the last axis.
    dtype : str
        NumPy dtype name.
    shape : tuple of int or None
        Shape of one row, without the batch dimension; None until the data has told.
    declared : bool
        True where the user declared `shape`: rows are reshaped to it.
    integral : bool
        True where only whole numbers are allowed (class ids that arrive as floating point).
    pad : int, "longest" or None
        Rows are arrays of varying length, filled up with zeros to this length or to the longest of a batch;
        `shape` is then that of one item, and the rows lie back to back.
    sparse : bool
        Rows are vectors that may be sparse: the values that are stored lie back to back (`shards.sparse`), and
        the tensors of roles ``length`` and ``position`` follow. `shape` is that of the whole vector.
    finite : bool
        True: infinite values, and those beyond `dtype`, are faults.
    argument : str or None
        The argument of the model's ``forward`` that takes it; None: by position.
    """

    name: str
    role: Role
    columns: tuple[ColumnSpec, ...]
    dtype: str
    shape: tuple[int, ...] | None = None
    declared: bool = False
    integral: bool = False
    pad: Pad | None = None
    sparse: bool = False
    finite: bool = False
    argument: str | None = None

    def with_shape(self, shape: tuple[int, ...]) -> TensorSpec:
        return replace(self, shape=shape)

    def describe(self) -> str:
        """``features: float32, shape (batch, 20)``, for error messages."""
        axes = (*(["length"] if self.pad == "longest" else [] if self.pad is None else [self.pad]), *(self.shape or ()))
        sizes = "".join(f", {size}" for size in axes)
        return f"{self.name}: {self.dtype}, shape (batch{sizes or ','})"


KEY = "row key"
"""Name of the tensor that holds each row's stable key."""

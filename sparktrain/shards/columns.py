"""The driver's plan: a Spark schema and the user's column names to `TensorSpec`s, before any job runs.

Dtypes (see `TensorSpec`): floating columns become float32; an integer column that is an input of its
own stays int64, for embeddings; columns joined into one input are float32; labels are what the loss
takes. `feature_dtypes` and `label_dtype` override.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql import types as T

from sparktrain.errors import ColumnError
from sparktrain.shards.plan import POSITION_BITS
from sparktrain.shards.tensors import KEY, ColumnSpec, Kind, Pad, Role, TensorSpec

LabelKind = Literal["class", "float", "as_is"]
"""What the loss takes: class ids (int64), floating values, or the column as it comes."""

Group = str | Sequence[str]
"""A column that is an input of its own, or columns joined into one."""

SUPPORTED = "numeric, boolean, array of those, vector or binary"
KEY_COLUMN = "__sparktrain_key"

_OWN_DTYPES: Mapping[type[T.DataType], str] = {
    T.BooleanType: "bool",
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float32",
}
_SPARSE_TENSORS: tuple[tuple[Role, str, tuple[int, ...] | None], ...] = (
    ("input", "float32", None),
    ("length", "int64", ()),
    ("position", "int32", ()),
)


@dataclass(frozen=True)
class ColumnPlan:
    """Columns to select, and the tensors they fill; a tensor's `ColumnSpec.field` indexes `names`."""

    names: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]

    @property
    def split(self) -> tuple[bool, ...]:
        """Which of `names` go to Python in parts: vectors, where Spark can take them apart (4.1 and later)."""
        vectors = {column.name for spec in self.tensors for column in spec.columns if column.kind == "vector"}
        return tuple(name in vectors and hasattr(DataFrame, "repartitionById") for name in self.names)

    def columns(self) -> list[Column]:
        """The needed columns, as they go to Python: `shards.arrow.whole_columns` puts them together again."""
        parts = [
            vector_parts(name, self._is_float32(name)) if split else [quoted(name)]
            for name, split in zip(self.names, self.split, strict=True)
        ]
        return [column for part in parts for column in part]

    def _is_float32(self, name: str) -> bool:
        """Whether a vector's values are float32 wherever they go: half the bytes to shuffle."""
        values = [spec for spec in self.tensors if spec.role not in ("length", "position")]
        return {spec.dtype for spec in values for column in spec.columns if column.name == name} == {"float32"}

    def select(self, df: DataFrame) -> DataFrame:
        """The needed columns, and each row's key: made before any shuffle moves the row."""
        needed = [column.alias(f"c{field}") for field, column in enumerate(self.columns())]
        return df.select(*needed, functions.monotonically_increasing_id().alias(KEY_COLUMN))

    def shards(
        self, df: DataFrame, num_proc: int | None, *, seed: int | None = None, by: str | None = None
    ) -> DataFrame:
        """The needed columns in one partition a rank.

        Parameters
        ----------
        df : DataFrame
        num_proc : int or None
            None: the partitions are the shards as they are.
        seed : int or None
            Deal rows by a hash of their key and this seed, so that each rank's are drawn from all of them;
            None: by turns.
        by : str or None
            A column of the plan whose equal values must go to one rank.
        """
        rows = self.select(df)
        if num_proc is None:
            return rows
        if by is not None:
            field = sum(4 if split else 1 for split in self.split[: self.names.index(by)])
            return rows.repartition(num_proc, functions.col(f"c{field}"))
        if seed is None:
            return _by_turns(rows, num_proc)
        return rows.repartition(num_proc, functions.xxhash64(functions.lit(seed), functions.col(KEY_COLUMN)))

    def specs(self, role: Role) -> list[TensorSpec]:
        return [spec for spec in self.tensors if spec.role == role]


def _by_turns(rows: DataFrame, num_proc: int) -> DataFrame:
    """Rows dealt evenly, each by its key: Spark's own round robin sorts all rows first, to deal them alike twice."""
    if not hasattr(rows, "repartitionById"):  # before Spark 4.1
        return rows.repartition(num_proc)
    key = functions.col(KEY_COLUMN)
    partition = functions.shiftright(key, POSITION_BITS)
    position = key.bitwiseAND(functions.lit((1 << POSITION_BITS) - 1))
    return rows.repartitionById(num_proc, functions.pmod(position + partition, functions.lit(num_proc)).cast("int"))


def quoted(name: str) -> Column:
    """A column by its exact name, dots and backticks included."""
    return functions.col("`" + name.replace("`", "``") + "`")


def vector_parts(name: str, float32: bool) -> list[Column]:
    """A vector column as the four it is stored in, without nulls but for rows that are null.

    Spark's Arrow writer takes a hundred times longer for a null array than for an empty one, and each dense vector
    has null ``indices``: a million of 20 elements took 8 s instead of 1. A struct of the four takes a third longer.
    """
    stored = functions.unwrap_udt(quoted(name))
    values = stored["values"]
    return [
        stored["type"],
        functions.coalesce(stored["size"], functions.lit(-1)),
        functions.coalesce(stored["indices"], functions.array().cast("array<int>")),
        values.cast("array<float>") if float32 else values,
    ]


class ColumnPlanner:
    """Turns names into specs against one schema; collects the columns to select."""

    def __init__(self, schema: T.StructType) -> None:
        self._types = {field.name: field.dataType for field in schema.fields}
        self._repeated = {name for name in schema.names if schema.names.count(name) > 1}
        self._names: list[str] = []

    def data_type(self, name: str, keyword: str) -> T.DataType:
        """The type of a column.

        Raises
        ------
        ColumnError
            Where the column is missing (the message names the nearest) or its name is not unique.
        """
        if name in self._repeated:
            raise ColumnError(f"{keyword}: the DataFrame has more than one column {name!r}; rename or drop one")
        if name not in self._types:
            folded = [known for known in self._types if known.casefold() == name.casefold()]
            near = folded or difflib.get_close_matches(name, self._types, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, self._types))}"
            raise ColumnError(f"{keyword}: the DataFrame has no column {name!r}; {hint}")
        return self._types[name]

    def inputs(
        self,
        groups: Sequence[Group] | Mapping[str, Group],
        dtypes: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]],
        pad: Pad | Mapping[str, Pad] | None = None,
    ) -> list[TensorSpec]:
        """One spec an input: a name is an input of its own, a list of names is one joined input.

        A mapping gives the argument of ``forward`` for each. A padded input is followed by its lengths.
        """
        arguments: list[str | None] = list(groups) if isinstance(groups, Mapping) else [None] * len(groups)
        members = list(groups.values()) if isinstance(groups, Mapping) else list(groups)
        flat = [name for group in members for name in ([group] if isinstance(group, str) else group)]
        by_column = self._padding(pad, [group for group in members if isinstance(group, str)])
        for keyword, mapping in (("feature_dtypes", dtypes), ("feature_shapes", shapes), ("pad", by_column)):
            for name in mapping:
                if name not in flat:
                    raise ColumnError(f"{keyword} names {name!r}, which is not one of feature_cols {flat}")
        specs = []
        for argument, group in zip(arguments, members, strict=True):
            if isinstance(group, str):
                spec = self._single(group, dtypes, shapes, by_column.get(group))
            else:
                spec = self._joined(group, dtypes, shapes, by_column)
            specs.append(replace(spec, argument=argument))
            if spec.pad is not None:
                specs.append(TensorSpec(spec.name, "length", spec.columns, "int64", ()))
        return specs

    def _padding(self, pad: Pad | Mapping[str, Pad] | None, own: Sequence[str]) -> Mapping[str, Pad]:
        """The padding of each column; a single value is meant for all arrays that are inputs of their own."""
        if pad is None or isinstance(pad, Mapping):
            return pad or {}
        arrays = {name: pad for name in own if kind_of(self.data_type(name, "feature_cols")) == "list"}
        if not arrays:
            raise ColumnError(f"pad={pad!r}: none of feature_cols {list(own)} is an array column of its own")
        return arrays

    def _single(
        self, name: str, dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], pad: Pad | None
    ) -> TensorSpec:
        column = self._column(name, "feature_cols", dtypes.get(name))
        if column.kind == "binary" and (name not in dtypes or name not in shapes):
            raise ColumnError(
                f"feature_cols: binary column {name!r} needs its dtype and shape declared, for example "
                f"feature_dtypes={{{name!r}: 'uint8'}}, feature_shapes={{{name!r}: (1, 28, 28)}}"
            )
        default = "int64" if isinstance(self._element(name), T.IntegralType) else "float32"
        dtype = dtypes.get(name, default)
        shape = shapes.get(name)
        if pad is not None:
            if column.kind != "list":
                raise ColumnError(f"pad: column {name!r} is {self._describe(name)}; only arrays vary in length")
            if shape is not None:
                raise ColumnError(f"pad and feature_shapes both name {name!r}; an array that varies in length has none")
            return TensorSpec(name, "input", (column,), dtype, pad=pad)
        scalar = () if np.dtype(dtype).kind in "iu" else (1,)
        return TensorSpec(
            name,
            "input",
            (column,),
            dtype,
            shape if shape is not None else (scalar if column.kind == "number" else None),
            declared=shape is not None,
        )

    def _joined(
        self,
        names: Sequence[str],
        dtypes: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]],
        pad: Mapping[str, Pad],
    ) -> TensorSpec:
        for keyword, mapping, what in (("feature_shapes", shapes, "has a shape"), ("pad", pad, "can be padded")):
            named = [name for name in names if name in mapping]
            if named:
                raise ColumnError(
                    f"{keyword}: {named[0]!r} is joined with other columns; only an input of its own {what}"
                )
        columns = tuple(self._column(name, "feature_cols") for name in names)
        binary = [column.name for column in columns if column.kind == "binary"]
        if binary:
            raise ColumnError(f"feature_cols: binary column {binary[0]!r} must be an input of its own, not joined")
        wanted = {dtypes.get(name, "float32") for name in names}
        if len(wanted) > 1:
            raise ColumnError(f"feature_dtypes: columns {list(names)} form one input but have dtypes {sorted(wanted)}")
        shape = (len(columns),) if all(column.kind == "number" for column in columns) else None
        return TensorSpec("+".join(names), "input", columns, wanted.pop(), shape)

    def as_they_are(
        self, names: Sequence[str], dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
    ) -> list[TensorSpec]:
        """One spec a column, of the column's own type: numbers of shape (), arrays and vectors of theirs."""
        for keyword, mapping in (("dtypes", dtypes), ("shapes", shapes)):
            for name in mapping:
                if name not in names:
                    raise ColumnError(f"{keyword} names {name!r}, which is not one of the columns {list(names)}")
        return [self._as_it_is(name, dtypes.get(name), shapes.get(name)) for name in names]

    def _as_it_is(self, name: str, dtype: str | None, shape: tuple[int, ...] | None) -> TensorSpec:
        column = self._column(name, "df", dtype)
        if column.kind == "binary" and (dtype is None or shape is None):
            raise ColumnError(
                f"df: binary column {name!r} needs its dtype and shape declared, for example "
                f"dtypes={{{name!r}: 'uint8'}}, shapes={{{name!r}: (1, 28, 28)}}; or select other columns"
            )
        found = shape if shape is not None else (() if column.kind == "number" else None)
        own = dtype or _OWN_DTYPES.get(type(self._element(name)), "float64")
        return TensorSpec(name, "input", (column,), own, found, declared=shape is not None)

    def features(self, given: str | Sequence[str], keyword: str, *, finite: bool = False) -> list[TensorSpec]:
        """One float32 row of features: a vector or array column, or numeric columns, where null is NaN.

        A vector column gives three tensors, since its rows may be sparse.
        """
        names = [given] if isinstance(given, str) else given
        columns = tuple(replace(self._column(name, keyword), nullable=True) for name in names)
        if len(columns) == 1 and columns[0].kind == "list":
            return [TensorSpec(names[0], "input", columns, "float32", finite=finite)]
        if len(columns) == 1 and columns[0].kind == "vector":
            return [
                TensorSpec(names[0], role, columns, dtype, shape, sparse=True, finite=finite)
                for role, dtype, shape in _SPARSE_TENSORS
            ]
        for column in columns:
            if column.kind != "number":
                raise ColumnError(
                    f"{keyword}: {column.name!r} is {self._describe(column.name)}; expected one vector or array "
                    "column, or numeric columns (VectorAssembler joins vectors and numbers into one vector)"
                )
        return [TensorSpec("+".join(names), "input", columns, "float32", (len(columns),), finite=finite)]

    def label(self, name: str, kind: LabelKind, dtype: str | None = None, keyword: str = "label_cols") -> TensorSpec:
        """A label: shape (batch,) for a scalar column, (batch, …) for an array or vector."""
        column = self._column(name, keyword)
        if column.kind == "binary":
            raise ColumnError(f"{keyword}: column {name!r} is binary; a label is numeric, boolean, array or vector")
        integral = isinstance(self._element(name), T.IntegralType)
        scalar = column.kind == "number"
        if kind == "class":  # a scalar holds class ids whatever its type; floating arrays are class probabilities
            chosen = "int64" if scalar or integral else "float32"
        else:
            chosen = "int64" if kind == "as_is" and integral else "float32"
        chosen = dtype or chosen
        whole = np.dtype(chosen).kind in "iu"
        return TensorSpec(name, "label", (column,), chosen, () if scalar else None, integral=whole)

    def weight(self, name: str, keyword: str = "sample_weight_col") -> TensorSpec:
        column = self._column(name, keyword)
        if column.kind != "number":
            raise ColumnError(f"{keyword}: {name!r} is {self._describe(name)}; a weight is a number")
        return TensorSpec(name, "weight", (column,), "float32", ())

    def margin(self, name: str) -> TensorSpec:
        """A prediction to start from: a number, or an array or vector with one for each class or target."""
        column = self._column(name, "base_margin_col")
        if column.kind == "binary":
            raise ColumnError(f"base_margin_col: {name!r} is binary; a margin is a number, an array or a vector")
        return TensorSpec(name, "margin", (column,), "float32", () if column.kind == "number" else None)

    def group(self, name: str) -> TensorSpec:
        """The query that a row belongs to: a whole number."""
        if not isinstance(self.data_type(name, "qid_col"), T.IntegralType):
            raise ColumnError(
                f"qid_col: {name!r} is {self._describe(name)}; a query id is a whole number (StringIndexer makes one "
                "of a string)"
            )
        return TensorSpec(name, "group", (self._column(name, "qid_col"),), "int64", ())

    def validation(self, name: str) -> TensorSpec:
        if not isinstance(self.data_type(name, "validation"), T.BooleanType):
            raise ColumnError(f"validation: column {name!r} is {self._describe(name)}; a validation column is boolean")
        return TensorSpec(name, "validation", (self._column(name, "validation"),), "bool", ())

    def plan(self, tensors: Sequence[TensorSpec]) -> ColumnPlan:
        """The finished plan, with the row key as its last tensor."""
        key = TensorSpec(KEY, "key", (ColumnSpec(KEY, len(self._names), "number"),), "int64", ())
        return ColumnPlan(tuple(self._names), (*tensors, key))

    def _column(self, name: str, keyword: str, storage_dtype: str | None = None) -> ColumnSpec:
        kind = kind_of(self.data_type(name, keyword))
        if kind is None:
            raise ColumnError(
                f"{keyword}: column {name!r} is {self._describe(name)}; expected {SUPPORTED}. "
                "Encode strings and dates first (StringIndexer, OneHotEncoder, unix_timestamp)"
            )
        if name not in self._names:
            self._names.append(name)
        return ColumnSpec(name, self._names.index(name), kind, storage_dtype if kind == "binary" else None)

    def _describe(self, name: str) -> str:
        return self._types[name].simpleString()

    def _element(self, name: str) -> T.DataType:
        kind = self._types[name]
        while isinstance(kind, T.ArrayType):
            kind = kind.elementType
        return kind


def kind_of(kind: T.DataType) -> Kind | None:
    """How a column of that Spark type is read; None: not at all."""
    if isinstance(kind, (T.NumericType, T.BooleanType)):
        return "number"
    if isinstance(kind, VectorUDT):
        return "vector"
    if isinstance(kind, T.BinaryType):
        return "binary"
    if isinstance(kind, T.ArrayType):
        inner = kind_of(kind.elementType)
        return "list" if inner in ("number", "list") else None
    return None

"""The driver's knowledge of the features: their names, and which are categorical, from Spark's column metadata.

Spark ML's transformers describe their columns under ``ml_attr`` (`StringIndexer`, `VectorIndexer` and
`VectorAssembler` do): a column of numbers has a ``type``, a vector has ``attrs`` by type, each with its ``idx``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from sparktrain.errors import ParamError
from sparktrain.shards.tensors import TensorSpec
from sparktrain.xgboost.spec import Features

FORBIDDEN_IN_NAMES = "[]<"
"""Characters that XGBoost does not take in a feature's name."""


def describe(
    schema: StructType,
    spec: TensorSpec,
    *,
    types: Sequence[str] | Mapping[str, str] | None,
    from_metadata: bool,
    names: Sequence[str] | None,
    weights: Sequence[float] | None,
    missing: float,
) -> Features:
    """What is declared and what the schema tells of the features.

    Parameters
    ----------
    schema : StructType
    spec : TensorSpec
        The input of features.
    types : list, dict by column, or None
    from_metadata : bool
        Whether columns that Spark calls nominal are categorical.
    names, weights : sequence or None
        One for each feature.
    missing : float

    Raises
    ------
    ParamError
        Where a declaration does not fit the columns, or contradicts `from_metadata`.
    """
    columns = [column.name for column in spec.columns]
    for keyword, given in (("features_col", columns), ("feature_names", list(names or ()))):
        repeated = [name for name, count in Counter(given).items() if count > 1]
        if repeated:
            raise ParamError(f"{keyword} has {repeated[0]!r} more than once: give each feature once")
    refused = [name for name in names or () if set(name) & set(FORBIDDEN_IN_NAMES)]
    if refused:
        raise ParamError(f"feature_names: XGBoost takes no name with '[', ']' or '<', got {refused[0]!r}; rename it")
    scalar = spec.columns[0].kind == "number"
    width = len(columns) if scalar else None
    declared = _declared(types, columns, scalar)
    if declared is not None and "c" in declared and not from_metadata:
        raise ParamError("enable_categorical=False, but feature_types names categorical features ('c'); drop one")
    if names is None and scalar and not any(set(name) & set(FORBIDDEN_IN_NAMES) for name in columns):
        names = columns
    sized = (("feature_types", declared), ("feature_names", names), ("feature_weights", weights))
    for keyword, one_each in sized:
        if one_each is not None and width is not None and len(one_each) != width:
            raise ParamError(
                f"{keyword} has {len(one_each)} entries for the {width} features of features_col {columns}"
            )
    return Features(
        names=None if names is None else tuple(names),
        types=declared,
        categorical=nominal(schema, spec) if declared is None and from_metadata else (),
        weights=None if weights is None else tuple(weights),
        missing=missing,
    )


def _declared(
    types: Sequence[str] | Mapping[str, str] | None, columns: Sequence[str], scalar: bool
) -> tuple[str, ...] | None:
    if not isinstance(types, Mapping):
        return None if types is None else tuple(types)
    if not scalar:
        raise ParamError(
            f"feature_types by column are for numeric columns, and {columns[0]!r} names no features: give a list"
        )
    unknown = [name for name in types if name not in columns]
    if unknown:
        raise ParamError(f"feature_types names {unknown[0]!r}, which is not one of features_col {list(columns)}")
    return tuple(types.get(name, "q") for name in columns)


def nominal(schema: StructType, spec: TensorSpec) -> tuple[int, ...]:
    """Positions of the features whose metadata say nominal."""
    if spec.columns[0].kind == "number":
        return tuple(
            number
            for number, column in enumerate(spec.columns)
            if _attributes(schema, column.name).get("type") == "nominal"
        )
    attributes = _attributes(schema, spec.columns[0].name).get("attrs")
    found = attributes.get("nominal", []) if isinstance(attributes, Mapping) else []
    return tuple(sorted(int(one["idx"]) for one in found))


def _attributes(schema: StructType, column: str) -> Mapping[str, Any]:
    found = schema[column].metadata.get("ml_attr")
    return found if isinstance(found, Mapping) else {}

"""`NetworkModel`: what the PyTorch and the Keras model share: learned shapes, output columns of all types.

A model that was not fitted learns its shapes from the first row of the DataFrame, where the schema does not tell.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import pyarrow as pa
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sparktrain import params, persistence
from sparktrain.errors import DataError, ParamError
from sparktrain.model import GangModel, HasColumns
from sparktrain.params import GangParam, KeywordParams
from sparktrain.shards.arrow import Faults
from sparktrain.shards.assemble import assemble
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner, quoted
from sparktrain.shards.tensors import TensorSpec

Outputs = tuple[tuple[str, tuple[int, ...]], ...]
"""Of each output: the name of its dtype, and the shape of one row."""

_SPARK_TYPES: dict[str, type[T.DataType]] = {
    "float32": T.FloatType,
    "float16": T.FloatType,
    "bfloat16": T.FloatType,
    "float64": T.DoubleType,
    "int64": T.LongType,
    "int32": T.IntegerType,
    "int16": T.ShortType,
    "int8": T.ByteType,
    "uint8": T.ShortType,
    "bool": T.BooleanType,
}


class HasThreshold(KeywordParams):
    """Where class 1 begins."""

    threshold = GangParam(
        "threshold",
        "For one output a row: class 1 is predicted where its probability is above this.",
        params.number(at_least=0),
        0.5,
    )


class NetworkModel(GangModel, HasColumns, persistence.Saveable):
    """Base of the models that are networks: a subclass matches columns to inputs, and tells outputs of zeros."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self.history: list[dict[str, float]] = []
        self._input_shapes: tuple[tuple[int, ...], ...] = ()
        self._outputs: Outputs = ()
        self._labels: tuple[str, ...] = ()

    def _fitted(
        self,
        history: list[dict[str, float]],
        input_shapes: tuple[tuple[int, ...], ...],
        outputs: Outputs,
        labels: tuple[str, ...],
    ) -> Self:
        self.history, self._input_shapes, self._outputs, self._labels = history, input_shapes, outputs, labels
        return self

    def _fitted_values(self) -> dict[str, Any]:
        """What `_fitted` was given, as JSON can hold it."""
        return {
            "history": self.history,
            "inputShapes": self._input_shapes,
            "outputs": self._outputs,
            "labels": self._labels,
        }

    def _restore_fitted(self, saved: Mapping[str, Any]) -> None:
        self._fitted(
            saved["history"],
            tuple(tuple(shape) for shape in saved["inputShapes"]),
            tuple((dtype, tuple(shape)) for dtype, shape in saved["outputs"]),
            tuple(saved["labels"]),
        )

    @abstractmethod
    def _groups(self, schema: T.StructType) -> Any:
        """``feature_cols``, scalars joined where the model takes one input."""

    @abstractmethod
    def _matched(self, inputs: list[TensorSpec]) -> list[TensorSpec]:
        """The inputs, with shapes that the model tells; raises where it doesn't take them."""

    @abstractmethod
    def _probe(self, inputs: Sequence[TensorSpec]) -> None:
        """Learn the outputs of a model that was not fitted, by calling it on a row of zeros."""

    def _must_probe(self) -> bool:
        return not self._outputs

    def _input_plan(self, schema: T.StructType) -> ColumnPlan:
        planner = ColumnPlanner(schema)
        specs = planner.inputs(
            self._groups(schema),
            self._value(self.featureDtypes),
            self._value(self.featureShapes),
            self._value(self.pad),
        )
        inputs = self._matched([spec for spec in specs if spec.role == "input"])
        if not self._input_shapes:
            return planner.plan(inputs)
        if len(inputs) != len(self._input_shapes):
            raise ParamError(
                f"feature_cols give {len(inputs)} inputs, but the model was trained on {len(self._input_shapes)}"
            )
        shaped = [replace(spec, shape=shape) for spec, shape in zip(inputs, self._input_shapes, strict=True)]
        return planner.plan(shaped)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if not self._must_probe():
            return super()._transform(dataset)
        probed = self.copy()  # the shapes are this DataFrame's: nothing is kept
        probed._input_shapes = input_shapes(self._input_plan(dataset.schema), dataset)
        probed._probe(probed._input_plan(dataset.schema).specs("input"))
        return super(NetworkModel, probed)._transform(dataset)

    def _output_fields(self) -> list[T.StructField]:
        kind = self._value(self.predictionType)
        prediction = T.StructField(self._value(self.predictionCol), T.DoubleType())
        if self._outputs and kind != "raw":
            self._check_shape(kind)
        if kind == "raw":
            if not self._outputs:
                name = type(self).__name__
                raise ParamError(f"a {name} that was not fitted learns its output columns from a DataFrame: transform")
            names = self._output_names()
            fields = zip(names, self._outputs, strict=True)
            return [T.StructField(name, _spark_type(dtype, shape)) for name, (dtype, shape) in fields]
        if kind == "regression":
            return [prediction]
        return [
            T.StructField(self._value(self.rawPredictionCol), VectorUDT()),
            T.StructField(self._value(self.probabilityCol), VectorUDT()),
            prediction,
        ]

    def _check_shape(self, kind: str) -> None:
        (_, shape), *others = self._outputs
        if others:
            raise ParamError(f"prediction_type={kind!r} needs a model of one output; this one has {len(self._outputs)}")
        if kind == "regression" and shape not in ((), (1,)):
            raise ParamError(f"prediction_type='regression' needs one value a row; the output has shape {shape}")
        if kind == "classification" and len(shape) > 1:
            raise ParamError(
                f"prediction_type='classification' needs outputs (batch, classes); rows have shape {shape}"
            )

    def _output_names(self) -> list[str]:
        given = self._value(self.outputCols)
        if given is None:
            single = len(self._outputs) == 1
            labels = self._labels or range(len(self._outputs))
            given = ["prediction"] if single else [f"prediction_{label}" for label in labels]
        if len(given) != len(self._outputs):
            raise ParamError(f"output_cols names {len(given)} columns for {len(self._outputs)} outputs of the model")
        return list(given)


def _spark_type(dtype: str, shape: tuple[int, ...]) -> T.DataType:
    """A scalar for rows of shape () or (1,), else arrays as deep as the shape."""
    if dtype not in _SPARK_TYPES:
        raise ParamError(f"the model gives {dtype} outputs, which Spark has no column type for")
    kind: T.DataType = _SPARK_TYPES[dtype]()
    for _ in () if shape == (1,) else shape:
        kind = T.ArrayType(kind, containsNull=False)
    return kind


def input_shapes(plan: ColumnPlan, dataset: DataFrame) -> tuple[tuple[int, ...], ...]:
    """The shape of one row of each input: as declared, else as the first row has it (a Spark job).

    Raises
    ------
    ParamError
        For a stream, or a DataFrame without rows, where the schema does not tell.
    """
    specs = plan.specs("input")
    unknown = [spec.name for spec in specs if spec.shape is None]
    if not unknown:
        return tuple(spec.shape or () for spec in specs)
    rows = []
    if not dataset.isStreaming:
        first = dataset.select(*[quoted(name).alias(f"c{i}") for i, name in enumerate(plan.names)]).limit(1)
        rows = first.mapInArrow(partial(_shapes, specs), "shapes string").collect()
    if not rows:
        what = "a streaming" if dataset.isStreaming else "an empty"
        raise ParamError(
            f"feature_shapes: {what} DataFrame doesn't tell the shape of column {unknown[0]!r}, "
            "which a model that was not fitted needs; for example "
            f"feature_shapes={{{unknown[0]!r}: (20,)}}"
        )
    return tuple(tuple(shape) for shape in json.loads(rows[0]["shapes"]))


def _shapes(specs: Sequence[TensorSpec], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            faults = Faults()
            rows = [assemble(spec, batch.columns, faults) for spec in specs]
            if faults:
                raise DataError(f"transform: {faults} (in the first row)")
            shapes = [one.shape[1:] for one in rows if one is not None]
            yield pa.RecordBatch.from_arrays([pa.array([json.dumps(shapes)])], names=["shapes"])

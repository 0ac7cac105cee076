"""`GangModel.transform`: batch inference over any DataFrame, lazily, with all input columns and rows kept.

The predictor is an Arrow UDF over the needed columns only: Spark keeps the others, and their metadata,
to itself. Sessions older than Spark 4.1 have no Arrow UDF; there the whole rows pass `mapInArrow`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.ml.base import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from sparktrain import params
from sparktrain.errors import ColumnError, DataError
from sparktrain.params import GangParam, KeywordParams
from sparktrain.shards.arrow import Array, Faults, whole_columns
from sparktrain.shards.assemble import assemble, assemble_ragged, assemble_sparse
from sparktrain.shards.columns import ColumnPlan, quoted
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.sparse import SparseRows
from sparktrain.shards.tensors import TensorSpec

try:
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
except ImportError:  # before Spark 4.1
    arrow_udf = None  # type: ignore[assignment]

RESULT = "__sparktrain_result"
NAMING_KEYWORDS = ("output_cols", "prediction_col", "probability_col", "raw_prediction_col")
VECTOR_VALUES = ArrayType(DoubleType(), containsNull=False)


class HasColumns(KeywordParams):
    """Which columns go in and what the appended ones are called; the same on estimator and model."""

    featureCols = GangParam(
        "feature_cols",
        "Feature columns, in the order of the model's inputs, or a dict of them by the name of the argument. A nested "
        "list of names joins its columns into one input; several scalar columns for a model of one input are joined "
        "as well.",
        params.column_groups,
    )
    featureDtypes = GangParam(
        "feature_dtypes",
        "NumPy dtype names by column, where the default (float32; int64 for an integer column that is an "
        "input of its own) is not wanted. For a binary column: what its bytes are.",
        params.mapping(params.dtype_name),
        {},
    )
    featureShapes = GangParam(
        "feature_shapes",
        "Shape of one row by column, for binary columns and to reshape arrays and vectors.",
        params.mapping(params.shape),
        {},
    )
    pad = GangParam(
        "pad",
        "For array columns of varying length: 'longest' fills rows up with zeros to the longest of each batch, a "
        "number to that length (longer rows are an error); a dict says it by column. Each padded input is followed by "
        "its mask: bool, shape (batch, length), True where there is an element; by name it is <argument>_mask.",
        params.padding,
        None,
    )
    transformBatch = GangParam(
        "transform_batch",
        "callable(inputs, labels, training) -> (inputs, labels), on tensors of a batch: scaling, augmentation. Runs "
        "in training, in validation (training=False) and in transform (labels=None, training=False). A single input "
        "or label is a tensor, several are a list; inputs by name are a dict.",
        params.function,
        None,
        by_value=True,
    )
    predictionType = GangParam(
        "prediction_type",
        "'raw': each model output as it is, in output_cols. 'regression': a double. 'classification': "
        "rawPrediction and probability (vectors) and prediction (double), as Spark's evaluators read them.",
        params.one_of("raw", "regression", "classification"),
        "raw",
    )
    outputCols = GangParam(
        "output_cols",
        "Names of the appended columns for prediction_type 'raw', one per model output. By default "
        "'prediction', or 'prediction_<label>' where there are several labels.",
        params.column_names,
        None,
    )
    predictionCol = GangParam("prediction_col", "Column of the predicted value.", params.string, "prediction")
    probabilityCol = GangParam("probability_col", "Column of class probabilities.", params.string, "probability")
    rawPredictionCol = GangParam("raw_prediction_col", "Column of raw class scores.", params.string, "rawPrediction")
    inferenceBatchSize = GangParam(
        "inference_batch_size", "Rows per forward pass in transform.", params.integer(1), 1024
    )
    maxModelsPerGpu = GangParam(
        "max_models_per_gpu",
        "In transform, where Spark assigns GPUs to tasks: how many copies of models a GPU holds at most; further tasks "
        "predict on the CPU. 0: all do.",
        params.integer(0),
        4,
    )


class Predictor(Protocol):
    """Computes output columns from input tensors; frozen, small, picklable; loads the model where it runs."""

    def __call__(self, inputs: list[Any]) -> list[pa.Array]:
        """`inputs` are arrays; `Ragged` where padded, `SparseRows` where vectors may be sparse."""
        ...


@dataclass(frozen=True)
class Prediction:
    """A predictor with the tensors it reads: what runs in Spark's Python worker for each Arrow batch."""

    tensors: tuple[TensorSpec, ...]
    predictor: Predictor
    types: tuple[pa.DataType, ...]

    def columns(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """Output columns for a batch of input columns.

        Raises
        ------
        DataError
            Where a row can't become a tensor: names the column and how many rows of the batch.
        """
        if not len(arrays[0]):
            return [pa.array([], type=kind) for kind in self.types]
        faults = Faults()
        inputs = [_assembled(spec, arrays, faults) for spec in self.tensors]
        if faults:
            raise DataError(f"transform: {faults} (of {len(arrays[0]):,} rows in this Arrow batch)")
        return self.predictor([values for values in inputs if values is not None])


def _assembled(spec: TensorSpec, arrays: Sequence[pa.Array], faults: Faults) -> Array | Ragged | SparseRows | None:
    if spec.sparse:
        return assemble_sparse(spec, arrays, faults)
    return assemble(spec, arrays, faults) if spec.pad is None else assemble_ragged(spec, arrays, faults)


@dataclass(frozen=True)
class PredictStruct:
    """The Arrow UDF: input columns to one struct of output columns, named p0, p1, …

    Vectors leave as arrays: over a cached or Parquet table, whose columns Spark 4.3 hands to the UDF as they
    are, it takes no user-defined type back.
    """

    prediction: Prediction
    split: tuple[bool, ...]

    def __call__(self, *arrays: pa.Array) -> pa.Array:
        columns = [as_array(column) for column in self.prediction.columns(whole_columns(arrays, self.split))]
        return pa.StructArray.from_arrays(columns, names=[f"p{i}" for i in range(len(columns))])


@dataclass(frozen=True)
class PredictRows:
    """The `mapInArrow` form: whole rows, with the output columns appended."""

    prediction: Prediction
    inputs: tuple[str, ...]
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            outputs = self.prediction.columns([batch.column(name) for name in self.inputs])
            names = [*batch.schema.names, *self.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *outputs], names=names)


class GangModel(Model, KeywordParams):
    """Base of the models: a subclass plans its input columns, names its outputs and gives a predictor."""

    @abstractmethod
    def _input_plan(self, schema: StructType) -> ColumnPlan:
        """The input tensors against a schema, with the shapes the model was trained on."""

    @abstractmethod
    def _output_fields(self) -> list[StructField]:
        """The columns that transform appends."""

    @abstractmethod
    def _predictor(self, dataset: DataFrame, inputs: Sequence[TensorSpec]) -> Predictor:
        """The predictor of these inputs; ships the weights to the executors."""

    def transformSchema(self, schema: StructType) -> StructType:
        """The input schema with the appended columns.

        Raises
        ------
        ColumnError
            Where a feature column is missing or of a wrong type, or an output column exists already.
        """
        self._input_plan(schema)
        fields = self._output_fields()
        taken = {name.casefold(): name for name in schema.names}  # Spark finds columns whatever their case
        for field in fields:
            if (known := taken.get(field.name.casefold())) is not None:
                shown = "" if known == field.name else f" as {known!r}"
                names = [name for name in NAMING_KEYWORDS if name in self._keywords]
                raise ColumnError(
                    f"transform would append column {field.name!r}, which the DataFrame already has{shown}; "
                    f"drop it, or set {' / '.join(names)}"
                )
            taken[field.name.casefold()] = field.name
        return StructType([*schema.fields, *fields])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        appended = self.transformSchema(dataset.schema)
        plan = self._input_plan(dataset.schema)
        fields = self._output_fields()
        types = tuple(to_arrow(field) for field in fields)
        inputs = [spec for spec in plan.tensors if spec.role in ("input", "margin")]
        prediction = Prediction(tuple(inputs), self._predictor(dataset, inputs), types)
        if arrow_udf is None:
            names = tuple(field.name for field in fields)
            return dataset.mapInArrow(PredictRows(prediction, plan.names, names), appended)
        is_vector = [isinstance(field.dataType, VectorUDT) for field in fields]
        kinds = [VECTOR_VALUES if vector else field.dataType for vector, field in zip(is_vector, fields, strict=True)]
        struct = StructType([StructField(f"p{i}", kind) for i, kind in enumerate(kinds)])
        with warnings.catch_warnings():  # it would rather read the type hints than be told the kind of UDF
            warnings.simplefilter("ignore", UserWarning)
            udf = arrow_udf(PredictStruct(prediction, plan.split), struct, ArrowUDFType.SCALAR).asNondeterministic()
        prepared, arguments = _arguments(dataset, plan)
        result = prepared.withColumn(RESULT, udf(*arguments))
        parts = [functions.col(RESULT)[f"p{i}"] for i in range(len(fields))]
        parts = [array_to_vector(part) if vector else part for vector, part in zip(is_vector, parts, strict=True)]
        outputs = [part.alias(field.name) for part, field in zip(parts, fields, strict=True)]
        return result.select(*[quoted(name) for name in dataset.columns], *outputs)


def _arguments(dataset: DataFrame, plan: ColumnPlan) -> tuple[DataFrame, list[Column]]:
    """The needed columns as the UDF's arguments, computed before it where vectors are taken apart.

    Over Parquet, Spark 4.3 gives a UDF columnar batches; where an argument is an expression, it converts all columns
    from rows for that, which it can't do with vectors. A projection of its own has no batches. A value that Catalyst
    takes for nondeterministic keeps it from being merged into the call.
    """
    if not any(plan.split):
        return dataset, plan.columns()
    names = [f"__sparktrain_{number}" for number in range(len(plan.columns()))]
    kept = functions.when(functions.spark_partition_id() >= 0, plan.columns()[0]), *plan.columns()[1:]
    columns = [column.alias(name) for column, name in zip(kept, names, strict=True)]
    return dataset.select("*", *columns), [functions.col(name) for name in names]


def as_array(column: pa.Array) -> pa.Array:
    """The values of dense vectors, stored as struct(type, size, indices, values); another column as it is."""
    return column.field("values") if pa.types.is_struct(column.type) else column


def to_arrow(field: StructField) -> pa.DataType:
    """The Arrow type in which Spark takes a column (a UDT as what it is stored as)."""
    return to_arrow_type(field.dataType)

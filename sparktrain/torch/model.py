"""`TorchModel`: a trained PyTorch model as a Spark ML transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from torch import nn

from sparktrain import params, persistence, shipping
from sparktrain.errors import ParamError
from sparktrain.model import GangModel
from sparktrain.params import GangParam, KeywordParams
from sparktrain.session import session_of
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.shards.tensors import TensorSpec
from sparktrain.torch import bundle
from sparktrain.torch.arguments import argument_names
from sparktrain.torch.inputs import join_scalars
from sparktrain.torch.predict import TorchPredictor

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


class HasModuleOutputs(KeywordParams):
    """How a module's outputs are read for prediction_type 'classification'."""

    outputs = GangParam(
        "outputs",
        "What the model's output is for prediction_type 'classification': 'logits' or 'probabilities'. One "
        "output a row, shape (batch,) or (batch, 1), is the score of class 1.",
        params.one_of("logits", "probabilities"),
        "logits",
    )
    threshold = GangParam(
        "threshold",
        "For one output a row: class 1 is predicted where its probability is above this.",
        params.number(at_least=0),
        0.5,
    )


class TorchModel(GangModel, HasModuleOutputs, persistence.Saveable):
    """A PyTorch model that appends its predictions to a DataFrame.

    Attributes
    ----------
    history : list of dict
        One an epoch: ``epoch``, ``loss``, each metric, their ``val_`` forms, ``lr``, ``rows_per_s``, ``seconds``.
    """

    model = GangParam("model", "The trained torch.nn.Module.", params.anything, by_value=True)

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.history: list[dict[str, float]] = []
        self._input_shapes: tuple[tuple[int, ...], ...] = ()
        self._outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self._labels: tuple[str, ...] = ()

    def _fitted(
        self,
        history: list[dict[str, float]],
        input_shapes: tuple[tuple[int, ...], ...],
        outputs: tuple[tuple[str, tuple[int, ...]], ...],
        labels: tuple[str, ...],
    ) -> TorchModel:
        self.history, self._input_shapes, self._outputs, self._labels = history, input_shapes, outputs, labels
        return self

    def getModel(self) -> nn.Module:
        """The trained module, in eval mode, on the CPU."""
        net = self._value(self.model)
        assert isinstance(net, nn.Module)
        return net

    def _input_plan(self, schema: T.StructType) -> ColumnPlan:
        planner = ColumnPlanner(schema)
        groups = join_scalars(self.getModel(), self._value(self.featureCols), schema)
        specs = planner.inputs(
            groups, self._value(self.featureDtypes), self._value(self.featureShapes), self._value(self.pad)
        )
        inputs = [spec for spec in specs if spec.role == "input"]
        if len(inputs) != len(self._input_shapes):
            raise ParamError(
                f"feature_cols give {len(inputs)} inputs, but the model was trained on {len(self._input_shapes)}"
            )
        shaped = [replace(spec, shape=shape) for spec, shape in zip(inputs, self._input_shapes, strict=True)]
        return planner.plan(shaped)

    def _output_fields(self) -> list[T.StructField]:
        kind = self._value(self.predictionType)
        prediction = T.StructField(self._value(self.predictionCol), T.DoubleType())
        if kind == "raw":
            names = self._output_names()
            fields = zip(names, self._outputs, strict=True)
            return [T.StructField(name, _spark_type(dtype, shape)) for name, (dtype, shape) in fields]
        (_, shape), *others = self._outputs
        if others:
            raise ParamError(f"prediction_type={kind!r} needs a model of one output; this one has {len(self._outputs)}")
        if kind == "regression":
            if shape not in ((), (1,)):
                raise ParamError(f"prediction_type='regression' needs one value a row; the output has shape {shape}")
            return [prediction]
        if len(shape) > 1:
            raise ParamError(
                f"prediction_type='classification' needs outputs (batch, classes); rows have shape {shape}"
            )
        return [
            T.StructField(self._value(self.rawPredictionCol), VectorUDT()),
            T.StructField(self._value(self.probabilityCol), VectorUDT()),
            prediction,
        ]

    def _output_names(self) -> list[str]:
        given = self._value(self.outputCols)
        if given is None:
            single = len(self._outputs) == 1
            given = ["prediction"] if single else [f"prediction_{label}" for label in self._labels]
        if len(given) != len(self._outputs):
            raise ParamError(f"output_cols names {len(given)} columns for {len(self._outputs)} outputs of the model")
        return list(given)

    def _predictor(self, dataset: DataFrame, inputs: Sequence[TensorSpec]) -> TorchPredictor:
        packed = self._packed()
        path = shipping.ship_bytes(session_of(dataset), packed.tensor_bytes())
        return TorchPredictor(
            structure=packed.structure,
            weights_file=path.rpartition("/")[2],
            prediction_type=self._value(self.predictionType),
            outputs=self._value(self.outputs),
            threshold=self._value(self.threshold),
            batch_size=self._value(self.inferenceBatchSize),
            output_shapes=tuple(shape for _, shape in self._outputs),
            arguments=argument_names(inputs),
        )

    def _packed(self) -> bundle.Bundle:
        """What inference needs: the module and its transform_batch."""
        net = self.getModel()
        return bundle.dump((net, self._value(self.transformBatch)), net)

    def _saved_objects(self) -> persistence.SavedObjects:
        packed = self._packed()
        fitted = {
            "history": self.history,
            "inputShapes": self._input_shapes,
            "outputs": self._outputs,
            "labels": self._labels,
        }
        return persistence.SavedObjects(packed.structure, packed.tensor_bytes(), fitted)

    def _restore_objects(self, saved: persistence.SavedObjects, unpickler: persistence.Unpickler) -> None:
        net, transform_batch = bundle.load(saved.structure, bundle.tensors_from_bytes(saved.tensors), unpickler)
        self.setParams(model=net.eval(), transform_batch=transform_batch)
        self._fitted(
            saved.extra["history"],
            tuple(tuple(shape) for shape in saved.extra["inputShapes"]),
            tuple((dtype, tuple(shape)) for dtype, shape in saved.extra["outputs"]),
            tuple(saved.extra["labels"]),
        )


def _spark_type(dtype: str, shape: tuple[int, ...]) -> T.DataType:
    """A scalar for rows of shape () or (1,), else arrays as deep as the shape."""
    if dtype not in _SPARK_TYPES:
        raise ParamError(f"the model gives {dtype} outputs, which Spark has no column type for")
    kind: T.DataType = _SPARK_TYPES[dtype]()
    for _ in () if shape == (1,) else shape:
        kind = T.ArrayType(kind, containsNull=False)
    return kind

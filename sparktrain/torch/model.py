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
from sparktrain.model import GangModel, HasColumns
from sparktrain.params import GangParam, KeywordParams
from sparktrain.session import session_of
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.shards.tensors import TensorSpec
from sparktrain.torch import bundle, probe
from sparktrain.torch.arguments import argument_names
from sparktrain.torch.held import TorchValue
from sparktrain.torch.inputs import check_signature, join_scalars
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


def module(value: Any) -> nn.Module:
    """Converter of a Param that holds a module."""
    if any(kind.__name__ == "LightningModule" for kind in type(value).__mro__):
        raise ValueError("a plain torch.nn.Module: pass the LightningModule's inner module, and its loss as loss=")
    if not isinstance(value, nn.Module):
        raise ValueError("a torch.nn.Module instance")
    return value


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


class TorchModel(GangModel, HasColumns, HasModuleOutputs, persistence.Saveable):
    """A PyTorch model that appends its predictions to a DataFrame.

    It is what `TorchEstimator.fit` gives, and can be made of any module: ``TorchModel(model=net,
    feature_cols=["features"])``. Such a model learns the shapes of its inputs from the first row in each
    ``transform`` where the schema does not tell and ``feature_shapes`` does not say, for ``prediction_type="raw"``.

    Attributes
    ----------
    history : list of dict
        One an epoch: ``epoch``, ``loss``, each metric, their ``val_`` forms, ``lr``, ``rows_per_s``, ``seconds``.
    """

    _holder = TorchValue

    model = GangParam("model", "The trained torch.nn.Module.", module, by_value=True)

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
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
        check_signature(self.getModel(), inputs, transforms=self._value(self.transformBatch) is not None)
        if not self._input_shapes:
            return planner.plan(inputs)
        if len(inputs) != len(self._input_shapes):
            raise ParamError(
                f"feature_cols give {len(inputs)} inputs, but the model was trained on {len(self._input_shapes)}"
            )
        shaped = [replace(spec, shape=shape) for spec, shape in zip(inputs, self._input_shapes, strict=True)]
        return planner.plan(shaped)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if self._outputs or self._value(self.predictionType) != "raw":
            return super()._transform(dataset)
        probed = self.copy()  # the shapes are this DataFrame's: nothing is kept
        probed._input_shapes = probe.input_shapes(self._input_plan(dataset.schema), dataset)
        inputs = probed._input_plan(dataset.schema).specs("input")
        probed._outputs = probe.outputs(self.getModel(), inputs, self._value(self.transformBatch))
        return super(TorchModel, probed)._transform(dataset)

    def _output_fields(self) -> list[T.StructField]:
        kind = self._value(self.predictionType)
        prediction = T.StructField(self._value(self.predictionCol), T.DoubleType())
        if self._outputs and kind != "raw":
            self._check_shape(kind)
        if kind == "raw":
            if not self._outputs:
                raise ParamError(
                    "a TorchModel that was not fitted learns its output columns from a DataFrame: transform"
                )
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

    def _predictor(self, dataset: DataFrame, inputs: Sequence[TensorSpec]) -> TorchPredictor:
        packed = self._packed()
        path = shipping.ship(session_of(dataset), packed.write_tensors)
        return TorchPredictor(
            structure=packed.structure,
            weights_file=path.rpartition("/")[2],
            prediction_type=self._value(self.predictionType),
            outputs=self._value(self.outputs),
            threshold=self._value(self.threshold),
            batch_size=self._value(self.inferenceBatchSize),
            models_per_gpu=self._value(self.maxModelsPerGpu),
            output_shapes=tuple(shape for _, shape in self._outputs),
            arguments=argument_names(inputs),
        )

    def _packed(self) -> bundle.Bundle:
        """What inference needs: the module and its transform_batch."""
        net = self.getModel()
        return bundle.dump((net, self._value(self.transformBatch)), net, share=True)

    def _saved_objects(self) -> persistence.ToSave:
        packed = self._packed()
        fitted = {
            "history": self.history,
            "inputShapes": self._input_shapes,
            "outputs": self._outputs,
            "labels": self._labels,
        }
        return persistence.ToSave(packed.structure, packed.write_tensors, fitted)

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        net, transform_batch = bundle.load(saved.structure, bundle.tensors_from_file(saved.tensors_file), unpickler)
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

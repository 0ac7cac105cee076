"""`KerasModel`: a trained Keras model as a Spark ML transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import keras
import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sparktrain import params, persistence, shipping
from sparktrain.arguments import Arguments, argument_names, transformed
from sparktrain.errors import ParamError
from sparktrain.keras import archive, files
from sparktrain.keras.held import KerasValue
from sparktrain.keras.inputs import check_inputs, join_scalars, shaped
from sparktrain.keras.predict import KerasPredictor
from sparktrain.keras.signature import listed, output_names, outputs_kind, structured
from sparktrain.keras.spec import BACKENDS
from sparktrain.network import HasThreshold, NetworkModel, Outputs
from sparktrain.params import GangParam, KeywordParams
from sparktrain.session import session_of
from sparktrain.shards.arrow import Array
from sparktrain.shards.tensors import TensorSpec
from sparktrain.store.params import HasStore


def keras_model(value: Any) -> keras.Model:
    """Converter of a Param that holds a Keras model."""
    if not isinstance(value, keras.Model):
        raise ValueError("a keras.Model (Keras 3)")
    return value


class HasKerasOutputs(HasThreshold):
    """How a Keras model's outputs are read for prediction_type 'classification'."""

    outputs = GangParam(
        "outputs",
        "What the model's output is for prediction_type 'classification': 'logits' or 'probabilities'. By default "
        "what its last activation says (softmax or sigmoid: probabilities), else the loss's from_logits. One output a "
        "row, shape (batch,) or (batch, 1), is the score of class 1.",
        params.one_of("logits", "probabilities"),
        None,
    )


def _custom_objects(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a dict from name to class or function, as keras.saving takes it")
    return dict(value)


class HasKeras(KeywordParams):
    """With which of Keras's backends the executors compute, and how they find the user's classes."""

    kerasBackend = GangParam(
        "keras_backend",
        "The Keras backend of the executors: 'tensorflow', 'jax' or 'torch'; by default the driver's.",
        params.one_of(*BACKENDS),
        None,
    )
    customObjects = GangParam(
        "custom_objects",
        "Classes and functions that the model's config names, by name, as in keras.saving.load_model. Those that its "
        "layers, losses and metrics are or hold are found without.",
        _custom_objects,
        {},
        by_value=True,
    )


class KerasModel(NetworkModel, HasKerasOutputs, HasKeras, HasStore):
    """A Keras model that appends its predictions to a DataFrame.

    It is what `KerasEstimator.fit` gives, and can be made of any model: ``KerasModel(model=net,
    feature_cols=["features"])``. Such a model learns the shapes of its inputs from the first row in each
    ``transform`` where neither ``net.inputs`` nor the schema tells and ``feature_shapes`` does not say.

    ``transform_batch`` is called on NumPy arrays. ``max_models_per_gpu`` counts processes: each has one backend, and
    may hold a few models.

    ``getModel()``, or ``keras()``, gives the Keras model; ``model`` is the Spark ML Param, as of every Spark ML stage.

    Attributes
    ----------
    history : list of dict
        One an epoch: ``epoch``, ``loss``, each metric, their ``val_`` forms, ``lr``, ``rows_per_s``, ``seconds``.
    """

    weights_file = files.WEIGHTS
    _holder = KerasValue
    _admits = staticmethod(files.admits)

    model = GangParam("model", "The trained keras.Model.", keras_model, by_value=True)

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self._output_keys: tuple[str, ...] | None = None
        self._kind: str | None = None

    def _fitted(
        self,
        history: list[dict[str, float]],
        input_shapes: tuple[tuple[int, ...], ...],
        outputs: Outputs,
        labels: tuple[str, ...],
        output_keys: tuple[str, ...] | None = None,
        kind: str | None = None,
    ) -> Self:
        """Take up what a fit has learned.

        Parameters
        ----------
        history, input_shapes, outputs, labels
            As in `NetworkModel`.
        output_keys : tuple of str or None
            Of a model that gives a dict: its keys, in the order of `outputs`.
        kind : str or None
            What the output is, by the loss of the fit: ``logits`` or ``probabilities``.
        """
        self._output_keys, self._kind = output_keys, kind
        return super()._fitted(history, input_shapes, outputs, labels)

    def getModel(self) -> keras.Model:
        """The trained model, in the driver's backend."""
        return self._value(self.model)

    def keras(self) -> keras.Model:
        """The same, under the name that Horovod's users know."""
        return self.getModel()

    def _groups(self, schema: T.StructType) -> Any:
        return join_scalars(self.getModel(), self._value(self.featureCols), schema)

    def _matched(self, inputs: list[TensorSpec]) -> list[TensorSpec]:
        transforms = self._value(self.transformBatch) is not None
        check_inputs(self.getModel(), inputs, transforms=transforms)
        return inputs if transforms else shaped(self.getModel(), inputs)

    def _probe(self, inputs: Sequence[TensorSpec]) -> None:
        net = self.getModel()
        given = Arguments([rows for spec in inputs for rows in _zeros(spec)], argument_names(inputs))
        try:
            batch, _ = transformed(self._value(self.transformBatch), given, None, training=False)
            with keras.saving.custom_object_scope(self._value(self.customObjects)):
                result = net(structured(net, batch.values, batch.names), training=False)
        except Exception as error:
            shapes = ", ".join(spec.describe() for spec in inputs)
            raise ParamError(
                f"model: it failed on one row of zeros ({shapes}): {type(error).__name__}: {error}"
            ) from error
        self._output_keys = output_names(net, result)
        self._labels = self._output_keys or ()
        self._outputs = tuple(
            (keras.backend.standardize_dtype(one.dtype), tuple(one.shape[1:]))
            for one in listed(result, self._output_keys)
        )

    def _outputs_kind(self) -> Any:
        kind = self._value(self.outputs) or self._kind or outputs_kind(self.getModel())
        if kind is None:
            raise ParamError(
                "outputs: neither the model's last activation nor a loss says what its output is for "
                "prediction_type='classification'; set outputs='logits' or outputs='probabilities'"
            )
        return kind

    def _predictor(self, dataset: DataFrame, inputs: Sequence[TensorSpec]) -> KerasPredictor:
        kind = self._value(self.predictionType)
        custom_objects = self._value(self.customObjects)
        objects = self.getModel(), self._value(self.transformBatch), custom_objects
        data = archive.dumps(objects, custom_objects=custom_objects)
        return KerasPredictor(
            model_file=shipping.ship_bytes(session_of(dataset), data).rpartition("/")[2],
            backend=self._value(self.kerasBackend) or keras.backend.backend(),
            prediction_type=kind,
            outputs=self._outputs_kind() if kind == "classification" else None,
            threshold=self._value(self.threshold),
            batch_size=self._value(self.inferenceBatchSize),
            models_per_gpu=self._value(self.maxModelsPerGpu),
            columns=self._outputs,
            arguments=argument_names(inputs),
            output_names=self._output_keys,
        )

    def _saved_objects(self) -> persistence.ToSave:
        net = self.getModel()
        transform_batch, custom_objects = self._value(self.transformBatch), self._value(self.customObjects)
        structure = archive.dumps((net, transform_batch, custom_objects), weights=False, custom_objects=custom_objects)
        own = {"outputKeys": self._output_keys, "kind": self._kind or outputs_kind(net)}
        return persistence.ToSave(structure, partial(files.write_weights, net), {**self._fitted_values(), **own})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        net, transform_batch, custom_objects = files.restored(saved.structure, unpickler)
        files.read_weights(net, saved.tensors_file)
        self.setParams(model=net, transform_batch=transform_batch, custom_objects=custom_objects)
        self._restore_fitted(saved.extra)

    def _restore_fitted(self, saved: Mapping[str, Any]) -> None:
        super()._restore_fitted(saved)
        self._output_keys = None if saved["outputKeys"] is None else tuple(saved["outputKeys"])
        self._kind = saved["kind"]


def _zeros(spec: TensorSpec) -> list[Array]:
    if spec.pad is None:
        return [np.zeros((1, *(spec.shape or ())), spec.dtype)]
    length = 1 if spec.pad == "longest" else spec.pad
    return [np.zeros((1, length, *(spec.shape or ())), spec.dtype), np.ones((1, length), bool)]

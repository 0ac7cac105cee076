"""`TorchModel`: a trained PyTorch model as a Spark ML transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from torch import nn

from sparktrain import params, persistence, shipping
from sparktrain.arguments import argument_names
from sparktrain.network import HasThreshold, NetworkModel
from sparktrain.params import GangParam
from sparktrain.session import session_of
from sparktrain.shards.tensors import TensorSpec
from sparktrain.torch import bundle, probe
from sparktrain.torch.held import TorchValue
from sparktrain.torch.inputs import check_signature, join_scalars
from sparktrain.torch.predict import TorchPredictor


def module(value: Any) -> nn.Module:
    """Converter of a Param that holds a module."""
    if any(kind.__name__ == "LightningModule" for kind in type(value).__mro__):
        raise ValueError("a plain torch.nn.Module: pass the LightningModule's inner module, and its loss as loss=")
    if not isinstance(value, nn.Module):
        raise ValueError("a torch.nn.Module instance")
    return value


class HasModuleOutputs(HasThreshold):
    """How a module's outputs are read for prediction_type 'classification'."""

    outputs = GangParam(
        "outputs",
        "What the model's output is for prediction_type 'classification': 'logits' or 'probabilities'. One "
        "output a row, shape (batch,) or (batch, 1), is the score of class 1.",
        params.one_of("logits", "probabilities"),
        "logits",
    )


class TorchModel(NetworkModel, HasModuleOutputs):
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

    def getModel(self) -> nn.Module:
        """The trained module, in eval mode, on the CPU."""
        net = self._value(self.model)
        assert isinstance(net, nn.Module)
        return net

    def _groups(self, schema: T.StructType) -> Any:
        return join_scalars(self.getModel(), self._value(self.featureCols), schema)

    def _matched(self, inputs: list[TensorSpec]) -> list[TensorSpec]:
        check_signature(self.getModel(), inputs, transforms=self._value(self.transformBatch) is not None)
        return inputs

    def _must_probe(self) -> bool:
        return not self._outputs and bool(self._value(self.predictionType) == "raw")

    def _probe(self, inputs: Sequence[TensorSpec]) -> None:
        self._outputs = probe.outputs(self.getModel(), inputs, self._value(self.transformBatch))

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
        return persistence.ToSave(packed.structure, packed.write_tensors, self._fitted_values())

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        net, transform_batch = bundle.load(saved.structure, bundle.tensors_from_file(saved.tensors_file), unpickler)
        self.setParams(model=net.eval(), transform_batch=transform_batch)
        self._restore_fitted(saved.extra)

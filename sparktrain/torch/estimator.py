"""`TorchEstimator`: a PyTorch model trained by a gang over a DataFrame."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sparktrain import persistence, runs
from sparktrain.errors import ParamError
from sparktrain.estimator import GangEstimator, HasTraining, Payload
from sparktrain.gang.launch import GangOutcome
from sparktrain.model import HasColumns
from sparktrain.params import GangParam
from sparktrain.runs import Run
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.store.params import HasCheckpoints
from sparktrain.torch import bundle
from sparktrain.torch.checks import check_bound, check_monitored, started_from
from sparktrain.torch.held import TorchValue
from sparktrain.torch.identity import identity
from sparktrain.torch.inputs import check_signature, join_scalars
from sparktrain.torch.loss import label_kind
from sparktrain.torch.model import HasModuleOutputs, TorchModel, module
from sparktrain.torch.params import HasTorchTraining
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.trainer import TrainObjects

logger = logging.getLogger(__name__)


class TorchEstimator(
    GangEstimator[TorchModel],
    HasTraining,
    HasColumns,
    HasModuleOutputs,
    HasTorchTraining,
    HasCheckpoints,
    persistence.Saveable,
):
    """Trains a PyTorch model on a DataFrame, by a gang of processes on Spark's executors.

    One step of N ranks equals one step of one process on the N ranks' rows together, for losses that
    are a (weighted) mean or sum over rows. Not exact: dropout, and BatchNorm without ``sync_batchnorm``
    (each rank's own moments in a step, running statistics averaged by rows after each epoch).

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> estimator = TorchEstimator(
    ...     model=net, optimizer=torch.optim.Adam(net.parameters()), loss=nn.MSELoss(),
    ...     feature_cols=["features"], label_cols=["y"], num_proc=2, batch_size=256, epochs=3,
    ... )
    >>> model = estimator.fit(train)
    >>> model.transform(test)
    """

    trainer = "sparktrain.torch.trainer:train"
    _holder = TorchValue

    model = GangParam("model", "The torch.nn.Module to train; it is copied, not changed.", module, by_value=True)

    def _shards(self, dataset: DataFrame, plan: ColumnPlan, num_proc: int) -> DataFrame:
        if self._value(self.shuffle) != "global":
            return super()._shards(dataset, plan, num_proc)
        return plan.shards(dataset, num_proc, seed=self._value(self.seed))

    def _plan(self, schema: StructType) -> ColumnPlan:
        if self._value(self.shuffle) == "global" and self._value(self.partitioned):
            raise ParamError("shuffle='global' deals rows to ranks anew, and partitioned=True leaves them: choose one")
        planner = ColumnPlanner(schema)
        groups = join_scalars(self._value(self.model), self._value(self.featureCols), schema)
        tensors = planner.inputs(
            groups, self._value(self.featureDtypes), self._value(self.featureShapes), self._value(self.pad)
        )
        inputs = [spec for spec in tensors if spec.role == "input"]
        transforms = self._value(self.transformBatch) is not None
        check_signature(self._value(self.model), inputs, transforms=transforms)
        labels = self._value(self.labelCols)
        leaked = sorted({column.name for spec in inputs for column in spec.columns} & set(labels))
        if leaked:
            warnings.warn(f"label_cols {leaked} are also in feature_cols: the model is given its answer", stacklevel=4)
        for name, loss in zip(labels, self._loss_list(len(labels)), strict=True):
            tensors.append(planner.label(name, label_kind(loss), self._value(self.labelDtype)))
        weight, validation = self._value(self.sampleWeightCol), self._value(self.validation)
        if weight is not None:
            tensors.append(planner.weight(weight))
        if isinstance(validation, str):
            tensors.append(planner.validation(validation))
        self._check_outputs(len(labels))
        return planner.plan(tensors)

    def _loss_list(self, labels: int) -> list[Any]:
        loss = self._value(self.loss)
        losses = loss if isinstance(loss, list) else [loss] * labels
        if len(losses) != labels:
            raise ParamError(f"loss: {len(losses)} losses for {labels} label_cols; give one loss, or one for each")
        return losses

    def _check_outputs(self, labels: int) -> None:
        kind, names = self._value(self.predictionType), self._value(self.outputCols)
        if kind != "raw" and labels > 1:
            raise ParamError(f"prediction_type={kind!r} takes one label, but label_cols names {labels}; use 'raw'")
        if names is not None and len(names) != labels:
            raise ParamError(f"output_cols names {len(names)} columns for {labels} label_cols; give one for each")

    def _payload(self, plan: ColumnPlan, schema: StructType) -> Payload:
        labels = len(plan.specs("label"))
        weights = self._value(self.lossWeights) or [1.0] * labels
        if len(weights) != labels:
            raise ParamError(f"loss_weights: {len(weights)} weights for {labels} label_cols")
        validation = self._value(self.validation)
        spec = TrainSpec(
            batch_size=self._value(self.batchSize),
            gradient_accumulation_steps=self._value(self.gradientAccumulationSteps),
            max_grad_norm=self._value(self.maxGradNorm),
            epochs=self._value(self.epochs),
            seed=self._value(self.seed),
            shuffle=self._value(self.shuffle) is not False,
            validation=validation if isinstance(validation, float) else None,
            loss_weights=tuple(weights),
            lr_scheduler_interval=self._value(self.lrSchedulerInterval),
            sync_batchnorm=self._value(self.syncBatchnorm),
            mixed_precision=self._value(self.mixedPrecision),
            find_unused_parameters=self._value(self.findUnusedParameters),
            gradient_compression=self._value(self.gradientCompression),
        )
        objects = TrainObjects(
            model=self._value(self.model),
            optimizer=self._value(self.optimizer),
            losses=self._loss_list(labels),
            metrics=self._value(self.metrics),
            lr_scheduler=self._value(self.lrScheduler),
            transform_batch=self._value(self.transformBatch),
            callbacks=self._value(self.callbacks),
        )
        check_bound(objects, spec)
        check_monitored(objects.callbacks, objects.metrics, validates=validation is not None)
        packed = bundle.dump(objects, objects.model)
        initial = self._value(self.initialModel)
        if initial is not None:
            packed = started_from(packed, objects.model, initial)
        small = {"spec": spec, "objects": packed.structure}
        return Payload(small, "tensors", packed.tensor_bytes(), packed.model_bytes)

    def _begin_run(self, plan: ColumnPlan, payload: Payload) -> Run:
        objects = ("optimizer", "loss", "lr_scheduler", "metrics", "transform_batch")
        given = {name: self._value(getattr(self, name)) for name in objects}
        validation = self._value(self.validation)
        return runs.begin(
            self,
            self._value(self.maxRestarts),
            {
                **identity(self._value(self.model), plan, payload.small["spec"], given),
                "validation": validation,
                "initial_model": self._value(self.initialModel) is not None,
            },
        )

    def _create_model(self, outcome: GangOutcome, plan: ColumnPlan) -> TorchModel:
        for info in outcome.infos:
            for warning in info["warnings"]:
                logger.warning("%s", warning)
        kept = outcome.infos[0]["checkpoints"]
        if kept is not None:
            logger.info(
                "rank 0 wrote %d checkpoints in %.2f s, for which training waited %.2f s",
                kept["written"],
                kept["writing_s"],
                kept["stalled_s"],
            )
        packed = bundle.dump(self._value(self.model), self._value(self.model))
        result = bundle.tensors_from_file(outcome.result.path)
        net = bundle.load(packed.structure, {**packed.tensors, **result}).eval()
        bundle.add_buffers(net, {name: tensor for name, tensor in result.items() if name not in packed.tensors})
        shapes = next(info["outputs"] for info in outcome.infos if info["outputs"] is not None)
        agreed = outcome.infos[0]["inputs"]
        model = self._copyValues(TorchModel())
        model.setParams(model=net)  # after the copy, which took the untrained model along
        return model._fitted(
            history=outcome.infos[0]["history"],
            input_shapes=tuple(tuple(shape) for shape in agreed),
            outputs=tuple((dtype, tuple(shape)) for dtype, shape in shapes),
            labels=tuple(self._value(self.labelCols)),
        )

    def _saved_objects(self) -> persistence.ToSave:
        values = {
            param.name: self.getOrDefault(param)
            for param in self.params
            if isinstance(param, GangParam) and param.by_value and self.isSet(param)
        }
        packed = bundle.dump(values, values.get("model"), share=True)
        return persistence.ToSave(packed.structure, packed.write_tensors, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        values = bundle.load(saved.structure, bundle.tensors_from_file(saved.tensors_file), unpickler)
        for name, value in values.items():
            self._set(**{name: value})

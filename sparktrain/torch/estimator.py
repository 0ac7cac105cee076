"""`TorchEstimator`: a PyTorch model trained by a gang over a DataFrame."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.sql.types import StructType
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sparktrain import params, persistence
from sparktrain.errors import ParamError
from sparktrain.estimator import GangEstimator, Payload
from sparktrain.gang.launch import GangOutcome
from sparktrain.model import HasColumns
from sparktrain.params import GangParam, KeywordParams
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.torch import bundle
from sparktrain.torch.held import TorchValue
from sparktrain.torch.inputs import join_scalars
from sparktrain.torch.loss import label_kind
from sparktrain.torch.model import HasModuleOutputs, TorchModel
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.trainer import TrainObjects


def _module(value: Any) -> nn.Module:
    if any(kind.__name__ == "LightningModule" for kind in type(value).__mro__):
        raise ValueError("a plain torch.nn.Module: pass the LightningModule's inner module, and its loss as loss=")
    if not isinstance(value, nn.Module):
        raise ValueError("a torch.nn.Module instance")
    return value


def _optimizer(value: Any) -> Any:
    if not isinstance(value, Optimizer) and not callable(value):
        raise ValueError("a torch.optim.Optimizer over the model's parameters, or a callable of its parameters")
    return value


def _losses(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [params.function(one) for one in value]
    return params.function(value)


def _metric(value: Any) -> Any:
    if hasattr(value, "update") and hasattr(value, "compute"):
        raise ValueError("callables metric(output, target) -> mean over the batch; torchmetrics objects come later")
    return params.function(value)


def _scheduler(value: Any) -> Any:
    if not isinstance(value, LRScheduler) and not callable(value):
        raise ValueError("a callable of the optimizer that returns a scheduler, or a scheduler of the optimizer given")
    return value


class HasTorchTraining(KeywordParams):
    """What to train, towards what, and on which rows."""

    optimizer = GangParam(
        "optimizer",
        "A torch.optim.Optimizer over the model's own parameters (its groups and settings are kept), or a "
        "callable that takes model.parameters() and returns one. The learning rate is used as given.",
        _optimizer,
        by_value=True,
    )
    loss = GangParam(
        "loss",
        "A torch.nn loss, or a callable(output, target) that returns one value a row, shape (batch,), or the "
        "mean of the batch. A list: one for each label.",
        _losses,
        by_value=True,
    )
    lossWeights = GangParam("loss_weights", "Weight of each label's loss in their sum.", params.numbers, None)
    metrics = GangParam(
        "metrics",
        "Name -> callable(output, target) that returns the mean of a batch; averaged over all ranks by rows. "
        "With several labels it is given lists.",
        params.mapping(_metric),
        {},
        by_value=True,
    )
    lrScheduler = GangParam(
        "lr_scheduler",
        "A callable that takes the optimizer and returns a torch.optim.lr_scheduler, or a scheduler bound to "
        "the optimizer given. ReduceLROnPlateau watches val_loss, without validation the loss.",
        _scheduler,
        None,
        by_value=True,
    )
    lrSchedulerInterval = GangParam(
        "lr_scheduler_interval",
        "When the scheduler steps: 'epoch' or 'step'.",
        params.one_of("epoch", "step"),
        "epoch",
    )
    labelCols = GangParam(
        "label_cols",
        "Label columns, one per model output. A scalar column is a target of shape (batch,), viewed as "
        "(batch, 1) against an output of that shape.",
        params.column_names,
        aliases=("label_col",),
    )
    labelDtype = GangParam(
        "label_dtype",
        "NumPy dtype name of the labels. By default what the loss takes: int64 class ids, or float32.",
        params.dtype_name,
        None,
    )
    sampleWeightCol = GangParam(
        "sample_weight_col",
        "Column of row weights, finite and not negative.",
        params.string,
        None,
        aliases=("weight_col",),
    )
    validation = GangParam(
        "validation",
        "Rows to hold out: a fraction, drawn by hashed row key and seed, or the name of a boolean column.",
        params.fraction_or_column,
        None,
    )
    gradientAccumulationSteps = GangParam(
        "gradient_accumulation_steps",
        "Batches of each rank that add up to one optimizer step: the global batch is num_proc * batch_size * this, "
        "in the memory of one batch.",
        params.integer(1),
        1,
    )
    maxGradNorm = GangParam(
        "max_grad_norm",
        "Clip the norm of the whole global gradient, as torch.nn.utils.clip_grad_norm_ does. None: no clipping.",
        params.number(above=0),
        None,
    )
    syncBatchnorm = GangParam(
        "sync_batchnorm",
        "BatchNorm normalises by the moments of the global batch, on CPU and GPU, which makes it exact. A rank "
        "that has run out of rows then passes an empty batch, shape (0, …), through the model.",
        params.boolean,
        False,
    )
    findUnusedParameters = GangParam(
        "find_unused_parameters",
        "As in torch's DistributedDataParallel: True where a forward pass does not use every parameter.",
        params.boolean,
        False,
    )


class TorchEstimator(GangEstimator[TorchModel], HasColumns, HasModuleOutputs, HasTorchTraining, persistence.Saveable):
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

    model = GangParam("model", "The torch.nn.Module to train; it is copied, not changed.", _module, by_value=True)

    def _plan(self, schema: StructType) -> ColumnPlan:
        planner = ColumnPlanner(schema)
        groups = join_scalars(self._value(self.model), self._value(self.featureCols), schema)
        tensors = planner.inputs(groups, self._value(self.featureDtypes), self._value(self.featureShapes))
        labels = self._value(self.labelCols)
        leaked = sorted(
            {name for group in groups for name in ([group] if isinstance(group, str) else group)} & set(labels)
        )
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

    def _payload(self, plan: ColumnPlan) -> Payload:
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
            shuffle=self._value(self.shuffle),
            validation=validation if isinstance(validation, float) else None,
            loss_weights=tuple(weights),
            lr_scheduler_interval=self._value(self.lrSchedulerInterval),
            sync_batchnorm=self._value(self.syncBatchnorm),
            find_unused_parameters=self._value(self.findUnusedParameters),
        )
        objects = TrainObjects(
            model=self._value(self.model),
            optimizer=self._value(self.optimizer),
            losses=self._loss_list(labels),
            metrics=self._value(self.metrics),
            lr_scheduler=self._value(self.lrScheduler),
            transform_batch=self._value(self.transformBatch),
        )
        check_bound(objects, spec)
        packed = bundle.dump(objects, objects.model)
        return Payload({"spec": spec, "objects": packed.structure}, "tensors", packed.tensor_bytes())

    def _create_model(self, outcome: GangOutcome, plan: ColumnPlan) -> TorchModel:
        packed = bundle.dump(self._value(self.model), self._value(self.model))
        trained = {**packed.tensors, **bundle.tensors_from_bytes(outcome.result)}
        net = bundle.load(packed.structure, trained).eval()
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


def check_bound(objects: TrainObjects, spec: TrainSpec) -> None:
    """Optimizer and scheduler instances must belong to the model and to one another.

    Raises
    ------
    ParamError
        Where they don't: training would change other weights than the model's, or none.
    """
    optimizer, scheduler = objects.optimizer, objects.lr_scheduler
    if not any(p.requires_grad for p in objects.model.parameters()):
        raise ParamError("model: no parameter requires a gradient, so there is nothing to train")
    if isinstance(optimizer, Optimizer):
        modules = [objects.model, *(loss for loss in objects.losses if isinstance(loss, nn.Module))]
        owned = {id(p) for module in modules for p in module.parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = sum(id(p) not in owned for p in held)
        if foreign:
            raise ParamError(
                f"optimizer: {foreign} of its {len(held)} parameters are not the model's; make it from "
                "model.parameters() of the same model object, or pass a callable of the parameters"
            )
    if isinstance(scheduler, LRScheduler) and scheduler.optimizer is not optimizer:
        raise ParamError("lr_scheduler is bound to another optimizer than the one given; pass a callable instead")
    plateau = isinstance(scheduler, ReduceLROnPlateau) or scheduler is ReduceLROnPlateau
    if plateau and spec.lr_scheduler_interval == "step":
        raise ParamError("lr_scheduler: ReduceLROnPlateau watches an epoch's loss; use lr_scheduler_interval='epoch'")

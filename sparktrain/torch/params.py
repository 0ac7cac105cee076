"""The Params of `TorchEstimator`: what to train, towards what, and how."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparktrain import params
from sparktrain.params import GangParam, KeywordParams
from sparktrain.torch.callbacks import Callback
from sparktrain.torch.metrics import is_metric_object
from sparktrain.torch.model import TorchModel

HISTORY_KEYS = {"epoch", "loss", "lr", "rows_per_s", "seconds", "skipped_steps"}


def _optimizer(value: Any) -> Any:
    if not isinstance(value, Optimizer) and not callable(value):
        raise ValueError("a torch.optim.Optimizer over the model's parameters, or a callable of its parameters")
    return value


def _losses(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_loss(one) for one in value]
    return _loss(value)


def _loss(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise ValueError(f"an instance of the loss, {value.__name__}()")
    return params.function(value)


def _metric(value: Any) -> Any:
    if not callable(value) and not is_metric_object(value):
        raise ValueError("callables metric(output, target) -> mean over the batch, or torchmetrics objects")
    return value


def _metrics(value: Any) -> dict[str, Any]:
    metrics = params.mapping(_metric)(value)
    taken = sorted(name for name in metrics if name in HISTORY_KEYS or name.startswith("val_"))
    if taken:
        raise ValueError(f"names other than {', '.join(map(repr, taken))}, which history's own values have")
    return dict(metrics)


def _callbacks(value: Any) -> list[Callback]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(one, Callback) for one in given):
        raise ValueError("a list of sparktrain.torch.Callback instances")
    return given


def _initial_model(value: Any) -> Any:
    if isinstance(value, TorchModel):
        return value.getModel()
    if not isinstance(value, nn.Module):
        raise ValueError("a fitted TorchModel, or a torch.nn.Module")
    return value


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
        "Name -> callable(output, target) that returns the mean of a batch, averaged over all ranks by rows; or a "
        "torchmetrics object, whose states are merged over all ranks. With several labels they are given lists.",
        _metrics,
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
        aliases=("backward_passes_per_step",),
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
    mixedPrecision = GangParam(
        "mixed_precision",
        "'bf16' or 'fp16': the forward pass under torch.autocast, for fp16 with a gradient scaler; weights, losses and "
        "gradients stay float32. None: the model computes as it is.",
        params.one_of("bf16", "fp16"),
        None,
    )
    callbacks = GangParam(
        "callbacks",
        "Callback instances, such as EarlyStopping: called on every rank at fixed points of the fit.",
        _callbacks,
        [],
        by_value=True,
    )
    initialModel = GangParam(
        "initial_model",
        "A fitted TorchModel, or a module, whose weights and buffers training starts from, instead of the model's "
        "own. It must have the same ones by name and shape; model= is needed all the same.",
        _initial_model,
        None,
        by_value=True,
    )
    findUnusedParameters = GangParam(
        "find_unused_parameters",
        "As in torch's DistributedDataParallel: True where a forward pass does not use every parameter.",
        params.boolean,
        False,
    )

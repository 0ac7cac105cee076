"""The Params of `KerasEstimator`: what to train, towards what, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import tree

from sparktrain import params
from sparktrain.keras.model import HasKeras
from sparktrain.params import GangParam
from sparktrain.store.params import HasStore


def _optimizer(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return keras.optimizers.get(value)
        except ValueError:
            raise ValueError("the name of one of keras.optimizers, such as 'adam', or an instance") from None
    if not isinstance(value, keras.optimizers.Optimizer):
        raise ValueError("a keras.optimizers.Optimizer, or the name of one")
    return value


def _losses(value: Any) -> Any:
    for one in tree.flatten(value):
        if isinstance(one, type):
            raise ValueError(f"an instance of the loss, {one.__name__}()")
        if not callable(one) and not (isinstance(one, str) and _is_loss(one)):
            raise ValueError("a keras loss, its name, or a function of (y_true, y_pred); a list or dict by output")
    return value


def _is_loss(name: str) -> bool:
    try:
        keras.losses.get(name)
    except ValueError:
        return name.lower() in ("crossentropy", "ce")
    return True


def _metrics(value: Any) -> Any:
    for one in tree.flatten(value):
        if isinstance(one, type):
            raise ValueError(f"an instance of the metric, {one.__name__}()")
        if not callable(one) and not isinstance(one, str):
            raise ValueError("a list of keras metrics, their names, or functions of (y_true, y_pred); or by output")
    return value


def _callbacks(value: Any) -> list[Any]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(one, keras.callbacks.Callback) for one in given):
        raise ValueError("a list of keras.callbacks.Callback instances")
    return given


def _weights(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {params.string(name): params.number(at_least=0)(one) for name, one in value.items()}
    return params.numbers(value)


def _class_weight(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("a dict from class to weight, such as {0: 1.0, 1: 5.0}")
    return {int(kind): float(params.number(at_least=0)(one)) for kind, one in value.items()}


def _labels(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {params.string(output): params.string(column) for output, column in value.items()}
    return params.column_names(value)


def _jit(value: Any) -> bool | str:
    if value == "auto" or isinstance(value, bool):
        return value  # type: ignore[no-any-return]
    raise ValueError("True, False or 'auto'")


class HasKerasTraining(HasKeras, HasStore):
    """What to train, towards what, and on which rows."""

    optimizer = GangParam(
        "optimizer",
        "A Keras optimizer or its name. None: that of the compiled model, with its state. The learning rate is used "
        "as given.",
        _optimizer,
        None,
        by_value=True,
    )
    loss = GangParam(
        "loss",
        "A Keras loss, its name, or a function of (y_true, y_pred); a list, or a dict by output, where there are "
        "several. None: that of the compiled model.",
        _losses,
        None,
        by_value=True,
    )
    lossWeights = GangParam(
        "loss_weights", "Weight of each output's loss in their sum: a list, or a dict by output.", _weights, None
    )
    metrics = GangParam(
        "metrics",
        "As in Model.compile: Keras metrics, names, functions. Computed over the rows of all ranks, without weights. "
        "None: those of the compiled model.",
        _metrics,
        None,
        by_value=True,
    )
    weightedMetrics = GangParam(
        "weighted_metrics",
        "As metrics, weighted by sample_weight_col and class_weight.",
        _metrics,
        None,
        by_value=True,
    )
    labelCols = GangParam(
        "label_cols",
        "Label columns, one per model output, in the order of the outputs; or a dict from output to column.",
        _labels,
        aliases=("label_col",),
    )
    labelDtype = GangParam(
        "label_dtype",
        "NumPy dtype name of the labels. By default int64 class ids for sparse categorical losses, else float32.",
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
    classWeight = GangParam(
        "class_weight", "Weight of the rows of each class, by class id, as in Model.fit.", _class_weight, None
    )
    validation = GangParam(
        "validation",
        "Rows to hold out: a fraction, drawn by hashed row key and seed, or the name of a boolean column.",
        params.fraction_or_column,
        None,
    )
    validationBatchSize = GangParam(
        "validation_batch_size",
        "Rows of each rank in a step of validation; batch_size by default.",
        params.integer(1),
        None,
    )
    validationFreq = GangParam("validation_freq", "Epochs from one validation to the next.", params.integer(1), 1)
    stepsPerExecution = GangParam(
        "steps_per_execution",
        "As in Model.compile: steps in one call of a compiled function, on the TensorFlow and JAX backends.",
        params.integer(1),
        None,
    )
    jitCompile = GangParam(
        "jit_compile",
        "As in Model.compile. On the TensorFlow and PyTorch backends a gang of several ranks can't compile its steps "
        "whole, since gradients are exchanged in them: 'auto' leaves it, True is an error.",
        _jit,
        None,
    )
    runEagerly = GangParam("run_eagerly", "As in Model.compile: run steps in Python, to debug.", params.boolean, None)
    syncBatchnorm = GangParam(
        "sync_batchnorm",
        "BatchNormalization normalises by the moments of the global batch, so it is exact. On JAX it always does.",
        params.boolean,
        False,
    )
    distribution = GangParam(
        "distribution",
        "How the gang's devices share the model, on the JAX backend: a function that takes all ranks' devices, as "
        "keras.distribution.list_devices() names them, and returns a keras.distribution.ModelParallel or DataParallel. "
        "The global batch is the same for all. By default DataParallel, a copy of the model on each device.",
        params.function,
        None,
        by_value=True,
    )
    callbacks = GangParam(
        "callbacks",
        "Keras callbacks. All run on every rank with the same logs at an epoch's end (a batch's logs are the rank's "
        "own); those that only write (ModelCheckpoint, BackupAndRestore, TensorBoard, CSVLogger) on rank 0, whose "
        "host's paths theirs are; relative ones go from the run's directory in the store.",
        _callbacks,
        [],
        by_value=True,
    )

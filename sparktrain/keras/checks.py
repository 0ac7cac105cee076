"""Driver: the objects of a fit against one another, before any job."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from typing import Any

import keras
from keras import tree

from sparktrain.errors import ParamError


def check_compiled(
    model: keras.Model,
    compiled: Mapping[str, Any],
    backend: str,
    num_proc: int | None,
    custom_objects: Mapping[str, Any],
) -> None:
    """What `Model.compile` is given must be there and fit the backend.

    Raises
    ------
    ParamError
        For a missing loss, and what the backend can't do.
    """
    if importlib.util.find_spec(backend) is None:
        raise ParamError(f"keras_backend={backend!r}: not installed here; pip install 'sparktrain[{backend}]'")
    own_step = not _is_keras(type(model).train_step)
    if compiled.get("loss") is None and not own_step and not model.losses and _is_keras(type(model).compute_loss):
        raise ParamError("loss: give one, or a model that is compiled with one")
    for name in metrics_of(compiled):
        if isinstance(name, str) and not _is_metric(name, custom_objects):
            raise ParamError(f"metrics: expected the name of one of keras.metrics, got {name!r}")
    if num_proc == 1:
        return
    if backend != "jax" and compiled.get("jit_compile") is True:
        raise ParamError(
            f"jit_compile=True: on the {backend} backend a gang's steps exchange gradients, which can't be compiled "
            "with them; leave it, use keras_backend='jax', or num_proc=1"
        )
    if backend == "torch" and (compiled.get("steps_per_execution") or 1) > 1:
        raise ParamError("steps_per_execution: Keras takes 1 on its PyTorch backend")


def check_backend(framework: str, backend: str, compression: str | None) -> None:
    """The gang's backend must be one that Keras's can use.

    Raises
    ------
    ParamError
        For what JAX, whose ranks run one program over its own collectives, can't do.
    """
    if framework != "jax":
        return
    if backend != "native":
        raise ParamError(
            f"backend={backend!r}: not with Keras on JAX, whose ranks meet by JAX itself; use backend='native', or "
            "keras_backend='tensorflow' or 'torch'"
        )
    if compression is not None:
        raise ParamError(
            f"gradient_compression={compression!r}: not with Keras on JAX, which exchanges gradients inside its "
            "compiled program; use keras_backend='tensorflow' or 'torch'"
        )


def check_callbacks(callbacks: list[Any], compiled: Mapping[str, Any], *, validates: bool) -> None:
    """What callbacks watch must be there, as far as that can be known before training.

    Raises
    ------
    ParamError
        For a ``val_`` value without validation.
    """
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str) or not _watches(callback):
            continue
        name = type(callback).__name__
        if monitor.startswith("val_") and not validates:
            raise ParamError(
                f"callbacks: {name} monitor={monitor!r} needs validation=, a fraction or a boolean column; or "
                f"monitor={monitor.removeprefix('val_')!r}"
            )
        known = _known(compiled)
        if known and monitor.removeprefix("val_") not in known:
            nearest = difflib.get_close_matches(monitor.removeprefix("val_"), known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {known}"
            raise ParamError(f"callbacks: {name} monitor={monitor!r} is no value of history; {hint}")


def _watches(callback: Any) -> bool:
    """A ModelCheckpoint that keeps all looks at no value."""
    return getattr(callback, "save_best_only", True) is not False


def _known(compiled: Mapping[str, Any]) -> list[str]:
    """Names of logs, where all can be told: one output, metrics that say their names."""
    metrics = metrics_of(compiled)
    loss = compiled.get("loss")
    if isinstance(loss, (list, tuple, Mapping)) or compiled.get("weighted_metrics"):
        return []
    names = ["loss", "learning_rate"]
    for one in metrics:
        if isinstance(one, keras.metrics.Metric):
            names.append(one.name)
        elif isinstance(one, str):
            names.append({"acc": "accuracy", "ce": "crossentropy"}.get(one.lower(), one))
        else:
            names.append(getattr(one, "__name__", type(one).__name__))
    return names


def metrics_of(compiled: Mapping[str, Any]) -> list[Any]:
    """All metrics that `Model.compile` is given, whichever output they are of."""
    return [*tree.flatten(compiled.get("metrics") or []), *tree.flatten(compiled.get("weighted_metrics") or [])]


def _is_metric(name: str, custom_objects: Mapping[str, Any]) -> bool:
    if name.lower() in ("accuracy", "acc", "crossentropy", "ce"):  # Keras settles which by the shapes
        return True
    try:
        with keras.saving.custom_object_scope(custom_objects):
            keras.metrics.get(name)
    except ValueError:
        return False
    return True


def _is_keras(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")

"""Driver: the objects of a fit against one another, before any job."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sparktrain.errors import ParamError
from sparktrain.torch import bundle
from sparktrain.torch.callbacks import Callback, EarlyStopping
from sparktrain.torch.metrics import is_metric_object
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.trainer import TrainObjects


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


def check_monitored(callbacks: list[Callback], metrics: Mapping[str, Any], *, validates: bool) -> None:
    """What early stopping watches must be there, as far as that can be known before training.

    Raises
    ------
    ParamError
        For a ``val_`` value without validation, and an unknown one (the message names the nearest).
    """
    names = ["loss", *metrics]
    known = names + [f"val_{name}" for name in names if validates]
    open_ended = any(not isinstance(one, EarlyStopping) for one in callbacks) or any(
        hasattr(metric, "keys") or is_metric_object(metric) for metric in metrics.values()
    )
    for callback in callbacks:
        if not isinstance(callback, EarlyStopping):
            continue
        if callback.monitor.startswith("val_") and not validates:
            raise ParamError(
                f"callbacks: EarlyStopping monitor={callback.monitor!r} needs validation=, a fraction or a boolean "
                "column; or monitor='loss'"
            )
        if callback.monitor not in known and not open_ended:
            nearest = difflib.get_close_matches(callback.monitor, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {known}"
            raise ParamError(f"callbacks: EarlyStopping monitor={callback.monitor!r} is no value of history; {hint}")


def started_from(packed: bundle.Bundle, model: nn.Module, initial: nn.Module) -> bundle.Bundle:
    """The bundle with the tensors of another module in place of the model's own.

    Raises
    ------
    ParamError
        Where the two have other names or shapes, or other values for what is one tensor in `model`.
    """
    names: dict[int, str] = {}
    own, given = dict(bundle.named_tensors(model)), dict(bundle.named_tensors(initial))
    differing = sorted(own.keys() ^ given.keys()) or [name for name in own if own[name].shape != given[name].shape]
    if differing:
        name = differing[0]
        here, there = (f"of shape {tuple(one[name].shape)}" if name in one else "missing" for one in (own, given))
        raise ParamError(
            f"initial_model: {len(differing)} weights or buffers differ from the model's by name or shape; {name!r} is "
            f"{here} in model and {there} in initial_model"
        )
    for name, tensor in bundle.named_tensors(model):
        first = names.setdefault(id(tensor), name)
        if given[first] is not given[name] and not torch.equal(given[first], given[name]):
            raise ParamError(
                f"initial_model: {first!r} and {name!r} are one and the same in model, and have different values in "
                "initial_model"
            )
    replaced = {name: bundle.plain(given[name]).to(own[name].dtype) for name in packed.tensors if name in given}
    return replace(packed, tensors={**packed.tensors, **replaced})

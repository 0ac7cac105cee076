"""What a run trains, in words that are the same in every driver: so that only the same is ever continued."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparktrain.shards.columns import ColumnPlan
from sparktrain.torch import bundle
from sparktrain.torch.metrics import is_metric_object
from sparktrain.torch.spec import TrainSpec

FREE = ("epochs",)
"""Settings that may change from one driver to the next."""


def identity(net: nn.Module, plan: ColumnPlan, spec: TrainSpec, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values by what they are called.

    Parameters
    ----------
    net : Module
    plan : ColumnPlan
    spec : TrainSpec
    objects : mapping
        The user's, by keyword: optimizer, loss and their like.
    """
    settings = {name: value for name, value in vars(spec).items() if name not in FREE}
    return {
        "model": [f"{name}: {one.dtype} {tuple(one.shape)}" for name, one in bundle.named_tensors(net)],
        "columns": [f"{one.role} {one.describe()} ({', '.join(c.kind for c in one.columns)})" for one in plan.tensors],
        **settings,
        **{name: described(value) for name, value in objects.items()},
    }


def described(value: Any) -> Any:
    """A value as JSON has it; of an object its class and settings, of a function its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value]
    if isinstance(value, functools.partial):
        return [described(value.func), described(value.args), described(value.keywords)]
    if isinstance(value, Optimizer):
        groups = [{key: one for key, one in group.items() if key != "params"} for group in value.param_groups]
        return [_name(type(value)), described(groups)]
    if isinstance(value, LRScheduler):
        return [_name(type(value)), described({k: v for k, v in value.state_dict().items() if not callable(v)})]
    if isinstance(value, nn.Module) and not is_metric_object(value):
        return [_name(type(value)), repr(value), described(value.state_dict())]
    return _name(value if hasattr(value, "__qualname__") else type(value))


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"

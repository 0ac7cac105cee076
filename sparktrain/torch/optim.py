"""What moves the weights: the user's optimizer and scheduler, given or made."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def optimizer_of(given: Any, model: nn.Module) -> Optimizer:
    if not isinstance(given, Optimizer):
        given = given(model.parameters())
    given.load_state_dict(given.state_dict())  # state of a used optimizer moves to the parameters' device
    assert isinstance(given, Optimizer)
    return given


def scheduler_of(given: Any, optimizer: Optimizer) -> LRScheduler | None:
    if given is None:
        return None
    # An instance that was pickled has lost its hook on optimizer.step(), which only serves this warning.
    warnings.filterwarnings("ignore", "Seems like `optimizer.step", UserWarning)
    scheduler = given if isinstance(given, LRScheduler) else given(optimizer)
    assert isinstance(scheduler, LRScheduler)
    return scheduler

"""All that a fit changes, as what a checkpoint holds: tensors, numbers, strings, lists and dicts."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparktrain.errors import ParamError
from sparktrain.torch import bundle
from sparktrain.torch.callbacks import Callback, TrainState
from sparktrain.torch.precision import Precision

State = dict[str, Any]


class FitState:
    """What all ranks have in common between two steps.

    Parameters
    ----------
    train : TrainState
    precision : Precision
    scheduler : LRScheduler or None
    callbacks : sequence of Callback

    Raises
    ------
    ParamError
        Where the state of one of them can't be kept.
    """

    def __init__(self, train: TrainState, precision: Precision, scheduler: Any, callbacks: Sequence[Callback]) -> None:
        self._train, self._precision, self._scheduler, self._callbacks = train, precision, scheduler, callbacks

    def check(self) -> None:
        """Raises where the state of one of them can't be kept; called after the callbacks' `on_train_begin`."""
        parts = {f"callbacks: {name}": one.state_dict() for name, one in self._named_callbacks()}
        _check_plain({"optimizer": self._train.optimizer.state_dict(), "lr_scheduler": self._schedule(), **parts})

    def state(self) -> State:
        train = self._train
        return {
            "tensors": tensors_of(train.model),
            "optimizer": train.optimizer.state_dict(),
            "scheduler": self._schedule(),
            "precision": self._precision.state(),
            "callbacks": {name: one.state_dict() for name, one in self._named_callbacks()},
            "history": [numbers(entry) for entry in train.history],
            "stopped": train.should_stop,
        }

    def load(self, state: State, device: torch.device) -> None:
        """Be as it was there."""
        train = self._train
        load_tensors(train.model, state["tensors"], device)
        with _of_another("optimizer"):
            train.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            with _of_another("lr_scheduler"):
                self._scheduler.load_state_dict(state["scheduler"])
        self._precision.load(state["precision"])
        for name, callback in self._named_callbacks():
            if name in state["callbacks"]:  # else it is a new one
                callback.load_state_dict(state["callbacks"][name])
        train.history[:] = state["history"]
        train.should_stop = state["stopped"]

    def _named_callbacks(self) -> list[tuple[str, Callback]]:
        """By class, and number among those of that class."""
        names = [type(one).__name__ for one in self._callbacks]
        return [
            (f"{name} {names[:place].count(name)}", one)
            for place, (name, one) in enumerate(zip(names, self._callbacks, strict=True))
        ]

    def _schedule(self) -> Any:
        return None if self._scheduler is None else self._scheduler.state_dict()


@contextlib.contextmanager
def _of_another(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ParamError(f"{name}: the checkpoint is of another one: {error}") from error


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each once."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in bundle.named_tensors(model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def load_tensors(model: nn.Module, kept: Mapping[str, Tensor], device: torch.device) -> None:
    """Set parameters and buffers, also such as the model has made in its forward pass.

    Raises
    ------
    ParamError
        Where they are another model's.
    """
    known = dict(bundle.named_tensors(model))
    bundle.add_buffers(model, {name: one.to(device) for name, one in kept.items() if name not in known})
    with torch.no_grad():
        for name, tensor in kept.items():
            if name not in known:
                continue
            if known[name].shape != tensor.shape:
                shapes = f"{tuple(tensor.shape)} there, {tuple(known[name].shape)} now"
                raise ParamError(f"model: the checkpoint is of another one: {name} has shape {shapes}")
            known[name].copy_(tensor)


def generators(device: torch.device) -> State:
    """The states of this process's random generators."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *(float(one) for one in rest)],
        "python": random.getstate(),
    }


def set_generators(state: State, device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), int(position), int(has_gauss), gauss))
    random.setstate(state["python"])


def numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """An entry of history as JSON takes it; a callback may have added any value.

    Raises
    ------
    ParamError
        Where it is no number.
    """
    return {name: _number(name, value) for name, value in entry.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise ParamError(f"a callback added {name!r} to history, a {type(value).__name__}; history holds numbers")
    return value if isinstance(value, (int, float)) else float(value)


def _check_plain(parts: Mapping[str, Any]) -> None:
    """Each of these can be read again without running anybody's code."""
    for name, part in parts.items():
        buffer = io.BytesIO()
        try:
            torch.save(part, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise ParamError(
                f"{name}: its state can't be kept in a checkpoint, which holds tensors, numbers, strings, lists and "
                f"dicts, and nothing that runs code when it is read; it has {sorted(part) if part else part}"
            ) from error

"""PyTorch objects in two parts: a small pickle of structure and code, and named tensors.

A model, the optimizer bound to it and a scheduler bound to that are pickled together, so they still
belong together afterwards; every tensor in them is taken out of the pickle and stored by name, under
its ``state_dict`` name where it is the model's. The tensors travel and rest as safetensors.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import load_file, save, save_file
from torch import nn

from sparktrain.errors import ParamError

EXTRA = ".extra."  # no state_dict name begins with a dot
Unpickler = Callable[[io.BytesIO], pickle.Unpickler]


@dataclass(frozen=True)
class Bundle:
    """Structure, and the tensors that fill it.

    Parameters
    ----------
    structure : bytes
        A pickle with a persistent id in place of every tensor.
    tensors : mapping of str to Tensor
        On the CPU, contiguous, sharing no memory with one another.
    """

    structure: bytes
    tensors: Mapping[str, torch.Tensor]

    def tensor_bytes(self) -> bytes:
        """The tensors as a safetensors file."""
        return to_bytes(self.tensors)

    @property
    def model_bytes(self) -> int:
        """Size of the model's own tensors, without an optimizer's state."""
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if not name.startswith(EXTRA))

    def write_tensors(self, path: str) -> None:
        """Write the tensors to a local safetensors file, from where they are."""
        save_file(dict(self.tensors), path)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by ``state_dict`` name, those kept out of the state dict too."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def dump(objects: Any, model: nn.Module | None = None, *, share: bool = False) -> Bundle:
    """Take `objects` apart; tensors of `model` keep their names.

    With `share` the bundle's tensors are the objects' own memory where that is possible: for a bundle that
    is written at once, as a large model then isn't copied.

    Raises
    ------
    ParamError
        Where something in them can't be pickled, or a parameter has no value yet (lazy modules).
    """
    names: dict[int, str] = {}
    for name, tensor in named_tensors(model) if model is not None else ():
        names.setdefault(id(tensor), name)
    pickler = _Pickler(names)
    try:
        pickler.dump(objects)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise ParamError(
            f"the model, optimizer, loss, metrics or scheduler can't be pickled to travel to the executors: {error}"
        ) from error
    tensors: dict[str, torch.Tensor] = {}
    shared: set[int] = set()
    for name, tensor in pickler.found.items():
        tensors[name] = _alone(tensor, shared) if share else plain(tensor)
    return Bundle(pickler.buffer.getvalue(), tensors)


def _alone(tensor: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """The tensor detached, with its own memory; a `plain` copy where another one has `taken` that memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
        return plain(tensor)
    memory = tensor.untyped_storage().data_ptr()
    if memory in taken:
        return plain(tensor)
    taken.add(memory)
    return tensor.detach()


def add_buffers(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Buffers that were None when the model was made, and that its forward has set.

    Raises
    ------
    ParamError
        Where the forward has made parameters or modules.
    """
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        try:
            model.get_submodule(path).register_buffer(leaf, tensor)
        except (AttributeError, KeyError) as error:
            raise ParamError(f"model: its forward has made {name!r}; make it in __init__") from error


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A detached, contiguous copy on the CPU with memory of its own."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def load(structure: bytes, tensors: Mapping[str, torch.Tensor], unpickler: Unpickler | None = None) -> Any:
    """Put objects together again; the tensors are used as they are, not copied."""
    reader = (unpickler or _Unpickler)(io.BytesIO(structure))
    reader.persistent_load = _Fill(tensors)  # type: ignore[method-assign]
    return reader.load()


def to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as a safetensors file."""
    return bytes(save(dict(tensors)))


def tensors_from_bytes(data: bytes) -> dict[str, torch.Tensor]:
    return dict(load_safetensors(data))


def tensors_from_file(path: str) -> dict[str, torch.Tensor]:
    """Tensors mapped from a safetensors file: its pages are shared with other processes of the host."""
    return dict(load_file(path))


class _Unpickler(pickle.Unpickler):
    """For bundles that came from this run's own driver."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, names: Mapping[int, str]) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer)
        self._names = names
        self._keep: list[torch.Tensor] = []  # alive, so that no id is used twice
        self._extra: dict[int, str] = {}
        self.found: dict[str, torch.Tensor] = {}

    def persistent_id(self, obj: Any) -> tuple[str, str, bool] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if isinstance(obj, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)):
            raise ParamError(
                "the model has lazy parameters without a shape yet; run it once on a sample row before fit"
            )
        self._keep.append(obj)
        name = self._names.get(id(obj)) or self._extra.setdefault(id(obj), f"{EXTRA}{len(self._extra)}")
        self.found[name] = obj
        return ("parameter" if isinstance(obj, nn.Parameter) else "tensor", name, obj.requires_grad)


class _Fill:
    """Resolves persistent ids; the same name gives the same object, so tied weights stay tied."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[str, torch.Tensor] = {}

    def __call__(self, pid: tuple[str, str, bool]) -> torch.Tensor:
        kind, name, requires_grad = pid
        if name not in self._made:
            tensor = self._tensors[name]
            made = nn.Parameter(tensor, requires_grad) if kind == "parameter" else tensor
            if kind != "parameter" and requires_grad:
                made = made.requires_grad_()
            self._made[name] = made
        return self._made[name]

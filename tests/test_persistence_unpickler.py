"""What loading a saved architecture may find, and what it refuses; nothing refused has run."""

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from sparktrain.errors import PersistenceError
from sparktrain.persistence import RestrictedUnpickler
from sparktrain.torch import bundle

PACKAGE = __name__.partition(".")[0]


class Net(nn.Module):
    """A user's architecture, in a module of the user's."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows


class Runs:
    """Its pickle calls a function with arguments when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def load(data: bytes, *allow: str) -> Any:
    return RestrictedUnpickler(io.BytesIO(data), allow).load()


def by_name(module: str, name: str, *arguments: str) -> bytes:
    """A pickle that calls what `name` (dots and all) is in `module`."""

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode()

    body = b"".join(text(one) for one in arguments)
    return b"\x80\x04" + text(module) + text(name) + b"\x93(" + body + b"tR."


def trip(objects: Any, *allow: str, model: nn.Module | None = None) -> Any:
    packed = bundle.dump(objects, model)
    return bundle.load(packed.structure, packed.tensors, lambda file: RestrictedUnpickler(file, allow))


def is_optimizer(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer


def from_main(name: str) -> type[nn.Module]:
    """A module class as one made in a notebook: it can't be imported."""
    return type(name, (nn.Module,), {"__module__": "__main__", "forward": lambda self, rows: rows})


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.ReLU(), c=nn.BatchNorm1d(4))),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout()),
        nn.LSTM(2, 3, num_layers=2),
        nn.EmbeddingBag(5, 2),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        nn.TransformerEncoderLayer(4, 2, 8, activation=F.gelu),
        nn.ModuleDict({"head": nn.ModuleList([nn.Linear(1, 1)])}),
    ],
    ids=lambda net: type(net).__name__,
)
def test_torch_s_own_modules_are_admitted(net: nn.Module) -> None:
    again = trip(net, model=net)
    assert repr(again) == repr(net)
    assert list(again.state_dict()) == list(net.state_dict())


@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
def test_optimizers_are_admitted(make: Any) -> None:
    net = nn.Linear(2, 1)
    again, optimizer = trip((net, make(net.parameters(), lr=0.25)), model=net)
    assert optimizer.param_groups[0]["params"][0] is again.weight
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("kind", [kind for kind in vars(torch.optim).values() if is_optimizer(kind)])
def test_every_optimizer_of_torch_is_admitted(kind: Any) -> None:
    assert type(trip(kind([nn.Parameter(torch.ones(2, 2))]))) is kind


@pytest.mark.parametrize(
    "value", [torch.float32, torch.channels_last, np.arange(3)], ids=["dtype", "memory format", "ndarray"]
)
def test_values_that_modules_often_hold_are_admitted(value: Any) -> None:
    net = nn.Linear(2, 2)
    net.value = value
    assert np.array_equal(trip(net, model=net).value, value)


@pytest.mark.parametrize(
    "make", [lambda o: lr_scheduler.StepLR(o, 2), lr_scheduler.ReduceLROnPlateau, lr_scheduler.CosineAnnealingLR]
)
def test_schedulers_are_admitted(make: Any) -> None:
    optimizer = SGD(nn.Linear(2, 1).parameters(), lr=0.25)
    scheduler = make(optimizer, 5) if make is lr_scheduler.CosineAnnealingLR else make(optimizer)
    again, bound = trip((optimizer, scheduler))
    assert bound.optimizer is again


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss(weight=torch.ones(3)), F.mse_loss, F.cross_entropy])
def test_losses_are_admitted(loss: Any) -> None:
    again = trip({"loss": loss})["loss"]
    assert type(again) is type(loss)


def test_plain_containers_are_admitted() -> None:
    given = {"list": [1, 2.5, None, "text", b"bytes"], "set": {1}, "ordered": OrderedDict(a=(True, complex(1, 2)))}
    assert load(pickle.dumps(given)) == given


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.mkdir, eval, exec, __import__, getattr, print, open, torch.load, torch.save])
def test_functions_are_refused_before_they_run(
    function: Callable[..., Any], protocol: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = str(tmp_path / "ran")
    argument = f"__import__('os').mkdir({marker!r})" if function in (eval, exec) else marker
    with pytest.raises(PersistenceError, match=rf"the saved architecture uses \w+(\.\w+)*\.{function.__name__}, "):
        load(pickle.dumps(Runs(function, argument), protocol))
    assert not os.path.exists(marker)
    assert capsys.readouterr().out == ""


def test_os_system_is_refused() -> None:
    with pytest.raises(PersistenceError, match=r"uses \w+\.system, which is no part of a model"):
        load(pickle.dumps(Runs(os.system, "exit 1")))


@pytest.mark.parametrize("module", ["builtins", "os"])
def test_no_hint_asks_to_allow_what_can_run_anything(module: str) -> None:
    with pytest.raises(PersistenceError, match=r"which is no part of a model; load\(path, trust=True\)") as caught:
        RestrictedUnpickler(io.BytesIO(), ()).find_class(module, "getattr")
    assert "allow" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("importlib", "import_module"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch", "hub.load"),
        ("torch.nn.functional", "torch.load"),
        ("torch.nn", "modules.module.torch.load"),
        ("torch.nn.modules.module", "torch"),
        ("torch.nn.functional", "importlib"),
        ("torch.serialization", "load"),
        ("torch.nn.modules.linear", "Tensor"),
        ("torch.utils.data", "DataLoader"),
        ("numpy", "load"),
        ("functools", "reduce"),
        ("sparktrain.torch.trainer", "os.system"),
        ("sparktrain.torch.trainer", "train"),
    ],
)
def test_names_that_no_file_may_reach(module: str, name: str) -> None:
    with pytest.raises(PersistenceError):
        RestrictedUnpickler(io.BytesIO(), ()).find_class(module, name)


@pytest.mark.parametrize("by_value", [from_main("Notebook")(), lambda rows: rows], ids=["class", "function"])
def test_code_by_value_needs_trust(by_value: Any) -> None:
    with pytest.raises(
        PersistenceError, match=r"holds code by value.*load\(path, trust=True\).*spark.sparktrain.trust"
    ):
        trip(by_value)
    with pytest.raises(PersistenceError, match="holds code by value"):
        trip(by_value, PACKAGE)


def test_a_user_s_module_is_refused_by_name_and_admitted_when_allowed() -> None:
    with pytest.raises(PersistenceError) as caught:
        trip(Net())
    assert f"uses {__name__}.Net" in str(caught.value)
    assert f"load(path, allow=('{PACKAGE}',))" in str(caught.value)
    assert f"spark.sparktrain.allow={PACKAGE}" in str(caught.value)
    for allowed in (PACKAGE, __name__):
        assert type(trip(nn.Sequential(Net()), "other", allowed)[0]) is Net


@pytest.mark.parametrize("allowed", [PACKAGE[:-1], f"{__name__}.Net", f"{__name__}x", ""])
def test_a_name_admits_whole_packages_only(allowed: str) -> None:
    with pytest.raises(PersistenceError, match="does not admit"):
        trip(Net(), allowed)


@pytest.mark.parametrize("name", ["subprocess.os.getpid", "os.getpid", "signal.getsignal"])
def test_an_allowed_package_is_no_way_to_what_it_imports(name: str) -> None:
    with pytest.raises(PersistenceError, match="not defined in the allowed"):
        RestrictedUnpickler(io.BytesIO(), ("sparktrain",)).find_class("sparktrain.gang.process", name)


def test_an_allowed_package_is_no_way_to_run_a_program(tmp_path: Path) -> None:
    marker = str(tmp_path / "ran")
    with pytest.raises(PersistenceError, match="not defined in the allowed"):
        load(by_name("sparktrain.gang.process", "os.mkdir", marker), "sparktrain")
    assert not os.path.exists(marker)


@pytest.mark.parametrize("name", ["boolean_dispatch", "handle_torch_function", "has_torch_function", "Callable"])
def test_what_functional_only_imports_is_refused(name: str) -> None:
    with pytest.raises(PersistenceError, match=name):
        RestrictedUnpickler(io.BytesIO(), ()).find_class("torch.nn.functional", name)


@pytest.mark.parametrize("name", ["relu", "gelu", "max_pool2d", "conv2d", "cross_entropy", "softplus"])
def test_functional_operations_are_admitted(name: str) -> None:
    assert callable(RestrictedUnpickler(io.BytesIO(), ()).find_class("torch.nn.functional", name))

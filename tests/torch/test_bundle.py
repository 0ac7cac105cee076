"""What belongs together before the trip belongs together after it; no tensor lies in the pickle."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR

from sparktrain.errors import ParamError
from sparktrain.torch import bundle


def trip(objects: Any, model: nn.Module | None = None) -> Any:
    """Taken apart, through bytes, and put together again."""
    packed = bundle.dump(objects, model)
    return bundle.load(packed.structure, bundle.tensors_from_bytes(packed.tensor_bytes()))


class Tied(nn.Module):
    """Encoder and decoder share their weights; a mask is a buffer outside of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]), persistent=False)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.decode(self.encode(rows) * self.mask)
        return out


def test_outputs_are_the_same() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    rows = torch.randn(4, 2, 5)
    net(rows)  # gives the lazy layer its shape and BatchNorm its statistics
    net.eval()
    assert torch.equal(trip(net, net)(rows), net(rows))


def test_tensors_keep_their_state_dict_names_and_leave_the_pickle() -> None:
    net = nn.Sequential(nn.Linear(200, 100), nn.BatchNorm1d(100))
    packed = bundle.dump(net, net)
    assert set(packed.tensors) == set(net.state_dict())
    assert len(packed.structure) < 20_000 < len(packed.tensor_bytes())


def test_the_bundle_shares_no_memory_with_the_model() -> None:
    net = nn.Linear(2, 1)
    packed = bundle.dump(net, net)
    before = packed.tensors["weight"].clone()
    with torch.no_grad():
        net.weight.add_(1.0)
    assert torch.equal(packed.tensors["weight"], before)


def test_tied_weights_stay_tied_and_travel_once() -> None:
    net = Tied()
    assert "decode.weight" not in bundle.dump(net, net).tensors
    again = trip(net, net)
    assert again.decode.weight is again.encode.weight
    assert torch.equal(again.encode.weight, net.encode.weight)
    assert len(list(again.parameters())) == 1


def test_buffers_outside_of_the_state_dict_travel_too() -> None:
    net = Tied()
    again = trip(net, net)
    assert torch.equal(again.mask, net.mask)
    assert "mask" not in again.state_dict()
    assert int(again.steps) == 3
    assert torch.equal(again(torch.ones(1, 3)), net(torch.ones(1, 3)))


def test_frozen_parameters_stay_frozen() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].weight.requires_grad_(False)
    again = trip(net, net)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in net.parameters()]
    assert all(isinstance(p, nn.Parameter) for p in again.parameters())


def test_the_optimizer_holds_the_model_s_own_parameters_in_its_groups() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = [{"params": list(net[0].parameters()), "lr": 0.5}, {"params": list(net[1].parameters()), "momentum": 0.9}]
    again, optimizer = trip((net, SGD(groups, lr=0.1)), net)
    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    assert held == [[id(p) for p in again[0].parameters()], [id(p) for p in again[1].parameters()]]
    assert [(group["lr"], group["momentum"]) for group in optimizer.param_groups] == [(0.5, 0), (0.1, 0.9)]


def test_a_used_optimizer_keeps_its_state() -> None:
    """Two more steps after the trip give what two more steps without it give."""

    def step(net: nn.Module, optimizer: Adam) -> None:
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    net = nn.Linear(2, 1)
    optimizer = Adam(net.parameters(), lr=0.1)
    step(net, optimizer)
    again, carried = trip((net, optimizer), net)
    for _ in range(2):
        step(net, optimizer)
        step(again, carried)
    assert torch.equal(again.weight, net.weight)


@pytest.mark.parametrize("make", [lambda o: StepLR(o, 1, gamma=0.5), lambda o: ReduceLROnPlateau(o, patience=0)])
def test_a_scheduler_stays_bound_to_its_optimizer(make: Callable[[SGD], LRScheduler]) -> None:
    net = nn.Linear(2, 1)
    optimizer = SGD(net.parameters(), lr=0.1)
    again, carried, scheduler = trip((net, optimizer, make(optimizer)), net)
    assert scheduler.optimizer is carried
    assert carried.param_groups[0]["params"][0] is again.weight


def test_tensors_outside_of_the_model_travel_too() -> None:
    net = nn.Linear(2, 3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    _, again, centre = trip((net, loss, torch.tensor([0.5], requires_grad=True)), net)
    assert again.weight.tolist() == [1.0, 2.0, 3.0]
    assert centre.requires_grad


def test_a_module_called_extra_does_not_clash_with_other_tensors() -> None:
    net = nn.ModuleDict({"extra": nn.ParameterList([nn.Parameter(torch.zeros(2))])})
    again, other = trip((net, torch.ones(2)), net)
    assert other.tolist() == [1, 1]
    assert again["extra"][0].tolist() == [0, 0]


def test_one_tensor_seen_twice_is_one_tensor() -> None:
    tensor = torch.zeros(2)
    one, other = trip([tensor, {"same": tensor}])
    assert one is other["same"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_dtypes_and_strides(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).T.to(dtype)
    again = trip(tensor)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_from_a_file(tmp_path: Path) -> None:
    net = Tied()
    packed = bundle.dump(net, net)
    (tmp_path / "tensors").write_bytes(packed.tensor_bytes())
    again = bundle.load(packed.structure, bundle.tensors_from_file(str(tmp_path / "tensors")))
    assert torch.equal(again.encode.weight, net.encode.weight)


def test_code_of_the_driver_s_own_travels() -> None:
    """A function that no executor can import, as in a notebook."""
    scale = 3
    assert trip(lambda value: value * scale)(2) == 6


def test_lazy_parameters_say_what_to_do() -> None:
    net = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ParamError, match="lazy parameters without a shape yet; run it once on a sample row"):
        bundle.dump(net, net)


def test_what_can_not_be_pickled() -> None:
    net = nn.Linear(2, 1)
    net.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ParamError, match=r"can't be pickled to travel to the executors: .*lock"):
        bundle.dump(net, net)


def test_parametrized_modules_can_not_be_pickled() -> None:
    net = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with pytest.raises(ParamError, match="can't be pickled"):
        bundle.dump(net, net)

"""A fit's objects against one another, on the driver."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

from sparktrain.errors import ColumnError, ParamError
from sparktrain.torch import Callback, EarlyStopping, TorchEstimator, TorchModel, bundle
from sparktrain.torch.checks import check_monitored, started_from
from sparktrain.torch.loss import Criterion


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        if tied:
            self.b.weight = self.a.weight


def test_an_initial_model_gives_its_weights_and_keeps_the_model_s_ties() -> None:
    model, initial = Tied(tied=True), Tied(tied=True)
    packed = started_from(bundle.dump(model, model), model, initial)
    again = bundle.load(packed.structure, packed.tensors)
    assert torch.equal(again.a.weight, initial.a.weight)
    assert again.b.weight is again.a.weight
    untied = started_from(bundle.dump(initial, initial), Tied(tied=False), Tied(tied=True))
    assert untied.tensors.keys() == {"a.weight", "a.bias", "b.bias"}


def test_an_initial_model_can_not_give_two_values_to_one_weight() -> None:
    model = Tied(tied=True)
    with pytest.raises(ParamError, match=r"'a\.weight' and 'b\.weight' are one and the same in model"):
        started_from(bundle.dump(model, model), model, Tied(tied=False))


def test_other_names_or_shapes_are_told() -> None:
    with pytest.raises(ParamError, match=r"initial_model: 2 weights .* 'bias' is of shape \(2,\) in model and missing"):
        started_from(bundle.dump(None), nn.Linear(2, 2), nn.Sequential())
    with pytest.raises(ParamError, match=r"'weight' is of shape \(2, 2\) in model and of shape \(2, 3\)"):
        started_from(bundle.dump(None), nn.Linear(2, 2), nn.Linear(3, 2))


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output == target).float().mean()


@pytest.mark.parametrize(
    ("monitor", "metrics", "others", "validates"),
    [
        ("val_loss", {}, [], True),
        ("loss", {}, [], False),
        ("val_accuracy", {"accuracy": accuracy}, [], True),
        ("val_m_MeanMetric", {"m": torchmetrics.MetricCollection([torchmetrics.MeanMetric()])}, [], True),
        ("added", {}, [Callback()], False),
    ],
)
def test_what_early_stopping_may_watch(monitor: str, metrics: Any, others: list[Callback], validates: bool) -> None:
    check_monitored([EarlyStopping(monitor), *others], metrics, validates=validates)


def test_what_early_stopping_can_not_watch() -> None:
    with pytest.raises(ParamError, match="needs validation="):
        check_monitored([EarlyStopping("val_loss")], {}, validates=False)
    with pytest.raises(ParamError, match="'val_los' is no value of history; did you mean 'val_loss'"):
        check_monitored([EarlyStopping("val_los")], {}, validates=True)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"metrics": {"loss": accuracy}}, "metrics: expected names other than 'loss'"),
        ({"metrics": {"val_x": accuracy}}, "metrics: expected names other than 'val_x'"),
        ({"loss": nn.CrossEntropyLoss}, r"loss: expected an instance of the loss, CrossEntropyLoss\(\)"),
        ({"callbacks": [object()]}, "callbacks: expected a list of sparktrain.torch.Callback"),
        ({"initial_model": "path"}, "initial_model: expected a fitted TorchModel"),
        ({"mixed_precision": "fp8"}, "mixed_precision: expected one of 'bf16', 'fp16'"),
        ({"pad": 0}, "pad: expected 'longest', a length of at least 1"),
        ({"feature_cols": {}}, "feature_cols: expected a dict of columns"),
    ],
)
def test_values_that_can_not_be(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        TorchEstimator(**keywords)


@pytest.mark.parametrize("kind", [TorchEstimator, TorchModel])
def test_positional_arguments(kind: type) -> None:
    with pytest.raises(TypeError, match=f"^{kind.__name__} takes keyword arguments only"):
        kind(nn.Linear(1, 1))


def test_a_hinge_loss_does_not_broadcast() -> None:
    with pytest.raises(ColumnError, match=r"output has shape \(batch, 3\) and the label \(batch,\)"):
        Criterion(nn.HingeEmbeddingLoss()).align(torch.zeros(3, 3), torch.ones(3))


class Late(nn.Module):
    """Sets a buffer when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)


def test_a_buffer_that_the_forward_has_set_comes_back() -> None:
    model = nn.Sequential(Late())
    bundle.add_buffers(model, {"0.mean": torch.tensor(2.0)})
    assert model[0].mean == 2.0
    with pytest.raises(ParamError, match=r"its forward has made '1\.weight'; make it in __init__"):
        bundle.add_buffers(model, {"1.weight": torch.zeros(1)})

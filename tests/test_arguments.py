"""What a model is called with: by position or by name, after the user's transform_batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparktrain.arguments import Arguments, argument_names, transformed
from sparktrain.errors import ParamError
from sparktrain.shards.tensors import TensorSpec

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2])


def test_without_a_transform_everything_stays() -> None:
    given = Arguments([X])
    inputs, labels = transformed(None, given, [Y], training=True)
    assert inputs is given
    assert labels is not None
    assert labels[0] is Y


def test_a_single_input_and_label_are_tensors() -> None:
    def scale(inputs: Any, labels: Any, training: bool) -> Any:
        assert isinstance(inputs, torch.Tensor)
        assert isinstance(labels, torch.Tensor)
        assert training
        return inputs / 2, labels + 1

    inputs, labels = transformed(scale, Arguments([X]), [Y], training=True)
    assert torch.equal(inputs.values[0], X / 2)
    assert labels is not None
    assert torch.equal(labels[0], Y + 1)


def test_several_are_lists_and_inference_has_no_labels() -> None:
    def swap(inputs: Any, labels: Any, training: bool) -> Any:
        assert labels is None
        assert not training
        return [inputs[1], inputs[0]], labels

    inputs, labels = transformed(swap, Arguments([X, Y]), None, training=False)
    assert inputs.values[0] is Y
    assert inputs.values[1] is X
    assert labels is None


def test_inputs_by_name_are_a_dict_whose_keys_may_change() -> None:
    def rename(inputs: Any, labels: Any, training: bool) -> Any:
        return {"ids": inputs["ids"], "attention_mask": inputs.pop("ids_mask")}, labels

    class Named(nn.Module):
        def forward(self, attention_mask: torch.Tensor, ids: torch.Tensor) -> Any:
            return attention_mask, ids

    inputs, _ = transformed(rename, Arguments([X, Y], ("ids", "ids_mask")), None, training=False)
    mask, ids = inputs.call(Named())
    assert ids is X
    assert mask is Y


@pytest.mark.parametrize(
    "broken", [lambda i, y, t: i, lambda i, y, t: (i, None), lambda i, y, t: (None, y), lambda i, y, t: (i, [y, y])]
)
def test_what_is_no_pair_of_inputs_and_labels_is_refused(broken: Any) -> None:
    with pytest.raises(ParamError, match="transform_batch: expected"):
        transformed(broken, Arguments([X]), [Y], training=True)


def test_inputs_by_name_stay_by_name() -> None:
    with pytest.raises(ParamError, match="expected inputs to be a dict by argument, got Tensor"):
        transformed(lambda i, y, t: (i["x"], y), Arguments([X], ("x",)), None, training=False)


def test_the_mask_of_a_padded_input_follows_it_by_name() -> None:
    specs = [
        TensorSpec("tokens", "input", (), "int64", (), pad="longest", argument="ids"),
        TensorSpec("age", "input", (), "float32", (1,), argument="age"),
    ]
    assert argument_names(specs) == ("ids", "ids_mask", "age")
    assert argument_names([TensorSpec("age", "input", (), "float32", (1,))]) is None


@pytest.mark.parametrize(
    "transform",
    [lambda x, y, training: (x[:1], y), lambda x, y, training: (x, y if y is None else y[:2])],
)
def test_a_row_stays_a_row(transform: Any) -> None:
    with pytest.raises(ParamError, match=r"transform_batch: it was given 3 rows, and its (inputs|labels) have shape"):
        transformed(transform, Arguments([X]), [Y], training=True)

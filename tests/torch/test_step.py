"""`transformed`: the user's transform_batch around one or several inputs and labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparktrain.errors import ParamError
from sparktrain.torch.step import transformed

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2])


def test_without_one_everything_stays() -> None:
    inputs, labels = transformed(None, [X], [Y], training=True)
    assert inputs[0] is X
    assert labels is not None
    assert labels[0] is Y


def test_a_single_input_and_label_are_tensors() -> None:
    def scale(inputs: Any, labels: Any, training: bool) -> Any:
        assert isinstance(inputs, torch.Tensor)
        assert isinstance(labels, torch.Tensor)
        assert training
        return inputs / 2, labels + 1

    inputs, labels = transformed(scale, [X], [Y], training=True)
    assert torch.equal(inputs[0], X / 2)
    assert labels is not None
    assert torch.equal(labels[0], Y + 1)


def test_several_are_lists_and_inference_has_no_labels() -> None:
    def swap(inputs: Any, labels: Any, training: bool) -> Any:
        assert labels is None
        assert not training
        return [inputs[1], inputs[0]], labels

    inputs, labels = transformed(swap, [X, Y], None, training=False)
    assert inputs[0] is Y
    assert inputs[1] is X
    assert labels is None


@pytest.mark.parametrize(
    "broken", [lambda i, y, t: i, lambda i, y, t: (i, None), lambda i, y, t: (None, y), lambda i, y, t: (i, [y, y])]
)
def test_what_is_no_pair_of_inputs_and_labels_is_refused(broken: Any) -> None:
    with pytest.raises(ParamError, match="transform_batch: expected"):
        transformed(broken, [X], [Y], training=True)

"""Numerators over denominators of parts of a batch are torch's own loss of the whole batch.

Legend: B rows, C classes, L positions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparktrain.errors import ColumnError, ParamError
from sparktrain.torch.loss import Criterion, as_outputs, label_kind, total

B, C, L = 6, 3, 4
CUTS = ([6], [3, 3], [1, 4, 1])
Shape = tuple[int, ...]


def reals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unit(*shape: int) -> Tensor:
    return torch.sigmoid(reals(*shape, seed=1))


def ids(*shape: int) -> Tensor:
    return torch.randint(C, shape, generator=torch.Generator().manual_seed(2))


def some_ignored(target: Tensor, index: int = -100) -> Tensor:
    ignored = target.clone()
    ignored.flatten()[1::3] = index
    return ignored


def class_probabilities(*shape: int) -> Tensor:
    return torch.softmax(reals(*shape, seed=3), dim=1)


CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 4.0])
MODULES: list[tuple[nn.Module, Tensor, Tensor]] = [
    (nn.MSELoss(), reals(B, 1), reals(B, 1, seed=1)),
    (nn.MSELoss(), reals(B, C), reals(B, C, seed=1)),
    (nn.MSELoss(), reals(B, C, L), reals(B, C, L, seed=1)),
    (nn.MSELoss(), reals(B), reals(B, seed=1)),
    (nn.L1Loss(), reals(B, C), reals(B, C, seed=1)),
    (nn.SmoothL1Loss(beta=0.5), reals(B, C), reals(B, C, seed=1)),
    (nn.HuberLoss(delta=0.3), reals(B, C), reals(B, C, seed=1)),
    (nn.BCELoss(), unit(B, C), (reals(B, C) > 0).float()),
    (nn.BCEWithLogitsLoss(), reals(B, 1), (reals(B, 1, seed=1) > 0).float()),
    (nn.BCEWithLogitsLoss(pos_weight=CLASS_WEIGHTS), reals(B, C), (reals(B, C, seed=1) > 0).float()),
    (nn.PoissonNLLLoss(), reals(B, C), unit(B, C)),
    (nn.KLDivLoss(reduction="batchmean"), reals(B, C), class_probabilities(B, C)),
    (nn.MultiMarginLoss(weight=CLASS_WEIGHTS), reals(B, C), ids(B)),
    (nn.MultiLabelSoftMarginLoss(), reals(B, C), (reals(B, C, seed=1) > 0).float()),
    (nn.NLLLoss(weight=CLASS_WEIGHTS), torch.log_softmax(reals(B, C), 1), ids(B)),
    (nn.CrossEntropyLoss(), reals(B, C), ids(B)),
    (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), reals(B, C), ids(B)),
    (nn.CrossEntropyLoss(), reals(B, C), some_ignored(ids(B))),
    (nn.CrossEntropyLoss(ignore_index=1), reals(B, C), ids(B)),
    (nn.CrossEntropyLoss(label_smoothing=0.1), reals(B, C), ids(B)),
    (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS, label_smoothing=0.1), reals(B, C), some_ignored(ids(B))),
    (nn.CrossEntropyLoss(), reals(B, C), class_probabilities(B, C)),
    (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), reals(B, C), class_probabilities(B, C)),
    (nn.CrossEntropyLoss(label_smoothing=0.1), reals(B, C), class_probabilities(B, C)),
    (nn.CrossEntropyLoss(), reals(B, C, L), ids(B, L)),
    (nn.CrossEntropyLoss(), reals(B, C, L), some_ignored(ids(B, L))),
    (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), reals(B, C, L), some_ignored(ids(B, L))),
    (nn.CrossEntropyLoss(), reals(B, C, L), class_probabilities(B, C, L)),
    (nn.CrossEntropyLoss(), reals(B, C, L, 2), ids(B, L, 2)),
]
SUMS: list[tuple[nn.Module, Tensor, Tensor]] = [
    (nn.MSELoss(reduction="sum"), reals(B, C), reals(B, C, seed=1)),
    (nn.BCEWithLogitsLoss(reduction="sum"), reals(B), (reals(B, seed=1) > 0).float()),
    (nn.CrossEntropyLoss(reduction="sum", weight=CLASS_WEIGHTS), reals(B, C), some_ignored(ids(B))),
    (nn.CrossEntropyLoss(reduction="sum"), reals(B, C, L), ids(B, L)),
]


def described(case: Any) -> str | None:
    return f"{case}".replace("()", "") if isinstance(case, nn.Module) else None


def sums(
    loss: Any, output: Tensor, target: Tensor, cuts: Sequence[int], weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator added up over parts of the batch, as ranks would."""
    criterion = Criterion(loss)
    counted = criterion.ignores(target)
    numerator, denominator = torch.zeros(()), torch.zeros(())
    weights = torch.ones(len(output)) if weight is None else weight
    for one, labels, w in zip(output.split(cuts), target.split(cuts), weights.split(cuts), strict=True):
        aligned = criterion.align(one, labels)
        rows = criterion.numerators(one, aligned, summed_elements=counted)
        numerator += total(rows, None if weight is None else w, len(one))
        denominator += (criterion.denominators(labels) * w).sum() if counted else w.sum()
    return numerator, denominator


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(("loss", "output", "target"), MODULES, ids=described)
def test_a_mean_over_parts_is_torch_s_own(loss: nn.Module, output: Tensor, target: Tensor, cuts: list[int]) -> None:
    numerator, denominator = sums(loss, output, target, cuts)
    torch.testing.assert_close(numerator / denominator, loss(output, target))


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(("loss", "output", "target"), SUMS, ids=described)
def test_a_sum_over_parts_is_torch_s_own(loss: nn.Module, output: Tensor, target: Tensor, cuts: list[int]) -> None:
    assert Criterion(loss).summed
    numerator, _ = sums(loss, output, target, cuts)
    torch.testing.assert_close(numerator, loss(output, target))


@pytest.mark.parametrize(("loss", "output", "target"), MODULES, ids=described)
def test_a_sample_weight_counts_like_repeated_rows(loss: nn.Module, output: Tensor, target: Tensor) -> None:
    repeats = torch.tensor([1, 0, 3, 2, 1, 0])
    numerator, denominator = sums(loss, output, target, [2, 4], weight=repeats.float())
    expected = loss(output.repeat_interleave(repeats, 0), target.repeat_interleave(repeats, 0))
    torch.testing.assert_close(numerator / denominator, expected)


def test_a_part_with_nothing_but_ignored_labels_adds_nothing() -> None:
    target = torch.tensor([-100, -100, 1, 2, 0, 1])
    numerator, denominator = sums(nn.CrossEntropyLoss(), reals(B, C), target, [2, 4])
    torch.testing.assert_close(numerator / denominator, nn.CrossEntropyLoss()(reals(B, C), target))
    assert float(denominator) == 4


def test_the_user_s_loss_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss(weight=CLASS_WEIGHTS)
    criterion = Criterion(loss)
    assert loss.reduction == "mean"
    assert criterion.function is not loss
    assert criterion.function.weight is loss.weight  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loss", "target", "counted"),
    [
        (nn.CrossEntropyLoss(), ids(B), False),
        (nn.CrossEntropyLoss(), some_ignored(ids(B)), True),
        (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), ids(B), True),
        (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), class_probabilities(B, C), False),
        (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS, reduction="sum"), ids(B), False),
        (nn.BCEWithLogitsLoss(weight=CLASS_WEIGHTS), class_probabilities(B, C), False),
        (nn.MSELoss(), reals(B), False),
    ],
    ids=described,
)
def test_when_labels_count_for_other_than_one(loss: nn.Module, target: Tensor, counted: bool) -> None:
    assert Criterion(loss).ignores(target) is counted


# Callables


def by_row(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean(1)


def by_row_and_element(output: Tensor, target: Tensor) -> Tensor:
    return (output - target) ** 2


def scalar(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


class ScalarModule(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return scalar(output, target)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("loss", [by_row, by_row_and_element, scalar, ScalarModule(), F.mse_loss])
def test_a_callable_by_row_or_scalar(loss: Callable[[Tensor, Tensor], Tensor], cuts: list[int]) -> None:
    output, target = reals(B, C), reals(B, C, seed=1)
    numerator, denominator = sums(loss, output, target, cuts)
    torch.testing.assert_close(numerator / denominator, F.mse_loss(output, target))


def test_a_scalar_can_not_be_weighted() -> None:
    with pytest.raises(ParamError, match=r"returns a scalar, so sample_weight_col can't weight its rows"):
        sums(scalar, reals(B, C), reals(B, C), [B], weight=torch.ones(B))


def test_a_callable_by_row_can_be_weighted() -> None:
    output, target, weight = reals(B, C), reals(B, C, seed=1), torch.arange(float(B))
    numerator, denominator = sums(by_row, output, target, [2, 4], weight=weight)
    torch.testing.assert_close(numerator / denominator, (by_row(output, target) * weight).sum() / weight.sum())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, target: output.sum(0), rf"one value a row, shape \({B},\), got shape \({C},\)"),
        (lambda output, target: 0.5, "a tensor of shape .* got float"),
    ],
)
def test_a_callable_that_returns_something_else(loss: Any, message: str) -> None:
    with pytest.raises(ParamError, match=f"loss: expected {message}"):
        Criterion(loss).numerators(reals(B, C), reals(B, C), summed_elements=False)


# Shapes


@pytest.mark.parametrize(
    ("loss", "output", "target", "aligned"),
    [
        (nn.MSELoss(), (B, 1), (B,), (B, 1)),
        (nn.MSELoss(), (B,), (B, 1), (B,)),
        (nn.MSELoss(), (B,), (B,), (B,)),
        (nn.MSELoss(), (B, C), (B, C), (B, C)),
        (nn.BCEWithLogitsLoss(), (B, 1), (B,), (B, 1)),
        (by_row, (B, 1), (B,), (B, 1)),
        (scalar, (B,), (B, 1), (B,)),
    ],
)
def test_align(loss: Any, output: Shape, target: Shape, aligned: Shape) -> None:
    given = reals(*target)
    found = Criterion(loss).align(reals(*output), given)
    assert found.shape == aligned
    assert torch.equal(found.flatten(), given.flatten())


@pytest.mark.parametrize(
    ("output", "target", "aligned"),
    [((B, C), (B,), (B,)), ((B, C), (B, 1), (B,)), ((B, 1), (B,), (B,)), ((B, C, L), (B, L), (B, L))],
)
def test_align_class_ids(output: Shape, target: Shape, aligned: Shape) -> None:
    given = torch.zeros(target, dtype=torch.int64)
    criterion = Criterion(nn.CrossEntropyLoss())
    found = criterion.align(reals(*output), given)
    assert found.shape == aligned
    assert criterion.numerators(reals(*output), found, summed_elements=False).shape == (B,)


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.L1Loss(),
        nn.BCEWithLogitsLoss(),
        nn.HuberLoss(),
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
    ],
)
@pytest.mark.parametrize(
    ("output", "target", "shapes"),
    [
        ((C, C), (C,), r"\(batch, 3\) and the label \(batch,\)"),
        ((B, C), (B, 1), r"\(batch, 3\) and the label \(batch, 1\)"),
        ((B, 1), (B, C), r"\(batch, 1\) and the label \(batch, 3\)"),
        ((B,), (B, C), r"\(batch,\) and the label \(batch, 3\)"),
    ],
)
def test_shapes_that_would_broadcast(loss: Any, output: Shape, target: Shape, shapes: str) -> None:
    name = type(loss).__name__ if isinstance(loss, nn.Module) else loss.__name__
    with pytest.raises(ColumnError, match=f"{name} compares equal shapes, .* has shape {shapes}"):
        Criterion(loss).align(reals(*output), reals(*target))


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (nn.CrossEntropyLoss(), "class"),
        (nn.NLLLoss(), "class"),
        (F.cross_entropy, "class"),
        (nn.MSELoss(), "float"),
        (nn.BCEWithLogitsLoss(), "float"),
        (F.binary_cross_entropy_with_logits, "float"),
        (by_row, "as_is"),
        (ScalarModule(), "as_is"),
    ],
)
def test_the_labels_a_loss_takes(loss: Any, kind: str) -> None:
    assert label_kind(loss) == kind


# Outputs


def test_a_model_s_result_as_one_tensor_a_label() -> None:
    one, two = reals(B), reals(B, C)
    assert as_outputs(one, 1) == [one]
    assert as_outputs((one, two), 2) == [one, two]
    assert as_outputs([one, two], 2) == [one, two]
    assert as_outputs({"mean": one, "classes": two}, 2) == [one, two]


@pytest.mark.parametrize(
    ("result", "labels", "message"),
    [
        ((reals(B), reals(B)), 1, "model gives 2 outputs, but label_cols names 1 labels"),
        (reals(B), 2, "model gives 1 outputs, but label_cols names 2 labels"),
        (0.5, 1, "expected a tensor, or a tuple or dict of tensors, got float"),
    ],
)
def test_another_number_of_outputs_than_labels(result: Any, labels: int, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        as_outputs(result, labels)

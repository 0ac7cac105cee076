"""Callbacks, early stopping, metric objects and mixed precision over ranks: 31, 0 and 10 rows, no Spark."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from sparktrain.errors import ParamError
from sparktrain.torch.callbacks import Callback, EarlyStopping, TrainState
from tests.backends import BACKENDS
from tests.torch.features import SPEC, SPLIT, data
from tests.torch.rank import run_ranks

WORLD = len(SPLIT)


@pytest.fixture(scope="module", params=BACKENDS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by topic."""
    out = tmp_path_factory.mktemp("ranks")
    return run_ranks("tests.torch.features:run_all", WORLD, out, backend=request.param)


def test_torchmetrics_are_those_of_all_rows_whatever_ranks_have_none(ranks: list) -> None:
    ranks = [rank["metric_objects"] for rank in ranks]
    features, labels = data("binary")
    scores = features @ [0.3, -1.0, 0.5, 0.2]
    held_out = torch.arange(len(labels)).numpy() % 4 == 0
    for entry in ranks[0]["binary"]:
        bias_free = roc_auc_score(labels[~held_out], scores[~held_out])
        assert entry["auc"] == pytest.approx(bias_free, abs=1e-6)
        assert entry["val_auc"] == pytest.approx(roc_auc_score(labels[held_out], scores[held_out]), abs=1e-6)
        assert entry["counts_auc"] == pytest.approx(bias_free, abs=0.05)
        assert 0 <= entry["counts_accuracy"] <= 1
    assert [*ranks[0]["binary"][0]][:6] == ["epoch", "loss", "auc", "counts_accuracy", "counts_auc", "mean"]
    for one in ranks[1:]:
        for entry, first in zip(one["binary"], ranks[0]["binary"], strict=True):
            for name in ("auc", "counts_accuracy", "val_auc", "mean"):
                assert entry[name] == first[name], f"ranks differ in {name}"

    features, labels = data("class")
    predicted = (torch.from_numpy(features) @ torch.arange(12.0).reshape(3, 4).sin().T).argmax(1).numpy()
    expected = f1_score(labels, predicted, average="macro")
    assert accuracy_score(labels, predicted) < 1
    assert ranks[0]["class"][-1]["f1"] == pytest.approx(expected, abs=1e-6)


def test_callbacks_see_the_same_steps_on_all_ranks_and_one_of_them_can_stop(ranks: list) -> None:
    steps = -(-max(SPLIT) // SPEC.batch_size)
    ranks = [rank["callbacks"] for rank in ranks]
    for rank, found in enumerate(ranks):
        epochs = [[f"epoch {e}/5", *(f"step {s}/{steps}" for s in range(1, steps + 1))] for e in (1, 2)]
        assert found["calls"] == [f"train {rank}/{WORLD}", *epochs[0], *epochs[1], "end"]
        assert [entry["added"] for entry in found["history"]] == [1.0, 2.0]
        assert all(isinstance(value, (int, float)) for entry in found["history"] for value in entry.values())


def test_early_stopping_restores_the_best_model_on_every_rank(ranks: list) -> None:
    for found in (rank["early_stopping"] for rank in ranks):
        for name, epochs in (("stopped", 4), ("ran out", 3), ("kept", 4)):
            run = found[name]
            assert len(run["history"]) == epochs, name
            same = [torch.equal(one, best) for one, best in zip(run["weights"], run["best"], strict=True)]
            assert all(same) == (name != "kept"), name


def test_mixed_precision_trains_like_float32_and_an_overflow_skips_the_step_on_all_ranks(ranks: list) -> None:
    ranks = [rank["precisions"] for rank in ranks]
    plain = ranks[0]["None"]
    assert plain["outputs"] == {"torch.float32"}
    for mixed, dtype, tolerance in (("bf16", "bfloat16", 0.02), ("fp16", "float16", 0.5)):  # fp16 skips its first steps
        run = ranks[0][mixed]
        assert run["outputs"] == {f"torch.{dtype}"}
        assert run["dtypes"] == {"torch.float32"}
        for weight, reference in zip(run["weights"], plain["weights"], strict=True):
            torch.testing.assert_close(weight, reference, rtol=0, atol=tolerance)
        for other in ranks[1:]:
            for weight, same in zip(other[mixed]["weights"], run["weights"], strict=True):
                assert torch.equal(weight, same)
        skipped = [entry.get("skipped_steps") for entry in run["history"]]
        assert skipped == [None] * 3 if mixed == "bf16" else skipped[0] > 0
    assert all(math.isfinite(entry["loss"]) for entry in ranks[0]["batchnorm"])


def test_a_rank_without_rows_trains_no_parameter_that_nobody_uses(ranks: list) -> None:
    for found in (rank["unused_parameters"] for rank in ranks):
        moved = {name for name, p in found["after"].items() if not torch.equal(p, found["before"][name])}
        assert moved == {"used.weight", "used.bias", "once.weight", "once.bias"}


def test_synchronised_batchnorm_beside_gradients_of_several_buckets(ranks: list) -> None:
    first = ranks[0]["large_batchnorm"]
    assert all(torch.isfinite(weight).all() for weight in first)
    for other in ranks[1:]:
        assert all(torch.equal(one, same) for one, same in zip(other["large_batchnorm"], first, strict=True))


def test_a_wrapper_s_states_are_merged_once(ranks: list) -> None:
    for entry in ranks[0]["classwise"]:
        by_class = [value for name, value in entry.items() if name.startswith("c_")]
        assert len(by_class) == 3
        assert sum(by_class) / 3 == pytest.approx(entry["a"], abs=1e-6)


def test_a_misspelt_hook_is_noticed() -> None:
    with pytest.raises(ParamError, match=r"Typo\.on_epoch_ends would never be called; did you mean on_epoch_end\?"):
        type("Typo", (Callback,), {"on_epoch_ends": lambda self, state: None})


# Early stopping by itself


def epochs(stopping: EarlyStopping, values: list[float]) -> int:
    """The epoch after which it stops."""
    model = torch.nn.Linear(1, 1)
    state = TrainState(0, 1, model, torch.optim.SGD(model.parameters(), lr=1.0), len(values))
    stopping.on_train_begin(state)
    for state.epoch, value in enumerate(values, start=1):
        state.history.append({"score": value})
        stopping.on_epoch_end(state)
        if state.should_stop:
            break
    return state.epoch


@pytest.mark.parametrize(
    ("keywords", "values", "stopped"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.0, 2.1, 1.0], 4),
        ({"patience": 2, "min_delta": 0.5}, [3.0, 2.6, 2.4, 2.3, 2.2, 2.1], 5),
        ({"patience": 1, "mode": "max"}, [0.1, 0.3, 0.2, 0.9], 3),
        ({"patience": 2}, [math.nan, math.nan, 1.0], 2),
        ({"patience": 3}, [1.0, 2.0, 0.5], 3),
    ],
)
def test_patience_delta_mode_and_nan(keywords: dict, values: list[float], stopped: int) -> None:
    assert epochs(EarlyStopping("score", **keywords), values) == stopped


def test_a_value_that_is_not_there_is_named() -> None:
    with pytest.raises(ParamError, match=r"monitor='val_acc' is not in history, which has \['score'\]"):
        epochs(EarlyStopping("val_acc"), [1.0])


@pytest.mark.parametrize("wrong", [{"mode": "auto"}, {"patience": 0}, {"min_delta": -1}])
def test_wrong_settings(wrong: dict) -> None:
    with pytest.raises(ParamError, match=f"EarlyStopping {next(iter(wrong))}: expected"):
        EarlyStopping(**wrong)

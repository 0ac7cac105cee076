"""What ranks do together: metrics of all rows, stopping, empty shards, and errors, without Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb
from sklearn.metrics import log_loss

from tests.xgboost import fits
from tests.xgboost.rank import run_ranks


def ranks(function: str, world: int, out: Path) -> list:
    return run_ranks(f"tests.xgboost.fits:{function}", world, out)


def test_continuous_features_score_as_in_one_process_and_exactly_as_bare_xgboost(tmp_path: Path) -> None:
    found = ranks("gang_and_bare", 2, tmp_path)
    assert found[0] == found[1]
    for seed, ((loss, auc), apart) in enumerate(found[0]):
        features, labels = fits.continuous(seed)
        params = {**fits.SETTINGS, "objective": "binary:logistic", "nthread": 1}
        alone = xgb.train(params, xgb.QuantileDMatrix(features, labels, nthread=1), fits.ROUNDS)
        expected_loss, expected_auc = fits.scores(alone, seed)
        assert abs(loss - expected_loss) < 0.002
        assert abs(auc - expected_auc) < 0.002
        assert apart <= 1e-6


def test_what_xgboost_computes_by_rank_is_as_bare_xgboost_computes_it(tmp_path: Path) -> None:
    """Leaves that are quantiles are averaged over ranks, and risk sets are those of a rank: not as in one process."""
    alone = fits.by_rank_and_bare(0, 1)
    for together in ranks("by_rank_and_bare", 2, tmp_path):
        for objective, (predictions, apart) in together.items():
            assert apart == 0.0, objective
            assert np.abs(predictions - alone[objective][0]).max() > 0.01, objective


def test_a_metric_of_the_users_sees_all_rows_and_an_objective_only_ranks_with_rows(tmp_path: Path) -> None:
    alone = fits.own_metric_and_objective(0, 1)
    together = ranks("own_metric_and_objective", 3, tmp_path)
    assert list(alone[0]) == ["round", "rmse", "largest_error"]
    assert together[0] == together[1] == together[2]
    for entry, expected in zip(together[0], alone, strict=True):
        assert entry == pytest.approx(expected, rel=1e-6)


def test_callables_of_several_outputs_see_their_shape_where_a_rank_has_no_rows(tmp_path: Path) -> None:
    alone = fits.several_outputs(0, 1)
    for together in ranks("several_outputs", 2, tmp_path):
        assert list(together) == list(alone)
        for case, expected in alone.items():
            for entry, one in zip(together[case], expected, strict=True):
                assert entry == pytest.approx(one, rel=1e-5), case


def test_a_weighted_metric_over_dealt_rows(tmp_path: Path) -> None:
    alone = fits.dealt_metric(0, 1)
    for rank in ranks("dealt_metric", 2, tmp_path):
        assert [entry["weighted_error"] for entry in rank] == pytest.approx(
            [entry["weighted_error"] for entry in alone], rel=1e-5
        )


def test_a_rank_with_validation_rows_only(tmp_path: Path) -> None:
    (first, booster), *others = ranks("only_validation_rows", 3, tmp_path)
    assert [entry["round"] for entry in first] == [1, 2, 3, 4, 5]
    assert first[-1]["val_rmse"] < first[0]["val_rmse"]
    for history, other in others:
        assert history == first
        assert other == booster


def test_all_ranks_stop_where_a_callback_stops_on_one(tmp_path: Path) -> None:
    assert ranks("stopped_by_one", 2, tmp_path) == [3, 3]


def test_early_stopping_keeps_the_rounds_up_to_the_best(tmp_path: Path) -> None:
    (rounds, best, history, apart), other = ranks("stopped_early", 2, tmp_path)
    assert (rounds, best, history, apart) == other
    losses = [entry["val_logloss"] for entry in history]
    assert best == int(np.argmin(losses))
    assert rounds == best + 1
    assert len(history) == best + 1 + 4  # it went on for early_stopping_rounds
    assert apart == 0.0
    assert list(history[0]) == ["round", "error", "logloss", "val_error", "val_logloss"]


def test_a_rankers_metric_is_the_mean_over_queries(tmp_path: Path) -> None:
    alone = fits.ranked(0, 1)
    together = ranks("ranked", 2, tmp_path)
    assert together[0] == together[1]
    for entry, expected in zip(together[0], alone, strict=True):
        assert entry == pytest.approx(expected, rel=1e-6)
    drawn = [entry["val_query_metric"] * 10 for entry in alone]
    assert all(0 <= value <= 10 for value in drawn)


def test_rows_that_cannot_be_trained_on_are_told_on_every_rank(tmp_path: Path) -> None:
    found = ranks("raises", 2, tmp_path)
    for said in found:
        assert said["one class"].startswith("DataError: label_col has the value [3.0] only")
        assert said["no training rows"] == "DataError: validation takes all 8 rows: none is left to train on"
        assert said["no validation rows"].startswith("DataError: the validation column marks none of 8 rows")
        assert said["no drawn rows"].startswith("DataError: validation=1e-09 holds out none of 8 rows")
        assert "3 classes, but objective='binary:logistic' is for two" in said["binary of three"]
        assert "label_col has values [2.0], which xgb_model's classes [0.0, 1.0] lack" in said["new class"]
        assert said["names"] == "DataError: feature_names has 1 entries for 2 features"
        assert said["types"] == "DataError: feature_types has 1 entries for 2 features"
        assert "1 queries have rows in several partitions (query 2, for one)" in said["query on two ranks"]
        assert "the rows of 1 have several (query 1, for one)" in said["weights in a query"]
        assert said["no weight"].startswith("DataError: weight_col: all training rows have the weight 0")
        assert said["no weight to validate"].startswith("DataError: weight_col: all validation rows have the weight 0")
        for case, width, outputs in (("narrow", 1, 3), ("wide", 2, 1), ("narrow margin of quantiles", 2, 3)):
            told = said[case if " " in case else f"{case} margin"]
            assert told.startswith(f"DataError: base_margin_col has {width} values a row, but the model has {outputs}")
        for case, value in (("negative", "-1"), ("fractional", "1.5"), ("huge", "1e+08")):
            assert f"feature 0 (counted from 0) is categorical, but has the value {value};" in said[f"{case} category"]
        assert "'ndcg' takes relevances that are whole numbers from 0 to 31, but 2 rows" in said["negative relevance"]
        assert "but 1 rows have others (0.5, for one)" in said["fractional relevance"]
        assert said["large relevance"].endswith("(40, for one); ndcg_exp_gain=False takes larger ones")
        assert said["large relevance, linear gain"] == ""
        for case in ("graded for map", "graded for a metric"):
            assert "'map' takes relevances that are 0 or 1, but 1 rows have others (2, for one)" in said[case]
        assert said["model of other features"] == "DataError: xgb_model has 3 features, but these rows have 2"
        assert "interaction_constraints names feature 2, but the features are 0 to 1" in said["constraint"]
        assert said["no features"].startswith("DataError: features_col: the rows of 'input' have no elements")


def test_the_scores_of_the_continuous_rows_are_worth_comparing() -> None:
    features, labels = fits.continuous(0)
    assert 0.1 < labels.mean() < 0.9
    assert len(np.unique(features[:, 0])) > 10 * 256
    assert log_loss(labels, np.full(len(labels), labels.mean())) > 0.6

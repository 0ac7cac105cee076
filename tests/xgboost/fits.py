"""Fits that ranks run for tests/xgboost/test_trainer.py; each function is given rank and world size."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost as xgb
from sklearn.metrics import log_loss, roc_auc_score
from xgboost import collective

from sparktrain.xgboost.trainer import Trainer
from tests.xgboost.shards import Array, shard_of, spec_of

SETTINGS = {"max_depth": 4, "learning_rate": 0.2}
ROWS, FEATURES, ROUNDS = 20_000, 8, 30
SEEDS = 5


def continuous(seed: int, rows: int = ROWS) -> tuple[Array, Array]:
    """Features, float32, of as many distinct values as rows, and a label 0 or 1 that depends on them with noise."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    score = np.tanh(2 * features[:, 0]) + features[:, 1] * (0.6 + 0.4 * (features[:, 2] > 0)) + rng.normal(size=rows)
    return features, (score > 0).astype(np.float64)


def trainer_of(rows: Array, seed: int, **fields: Any) -> Trainer:
    features, labels = continuous(seed)
    shard = shard_of(features[rows], labels[rows], rows)
    return Trainer(spec_of("classification", SETTINGS, ROUNDS, training_metrics=False, **fields), {}, shard, threads=1)


def scores(booster: xgb.Booster, seed: int) -> tuple[float, float]:
    """Log loss and AUC on fresh rows."""
    features, labels = continuous(seed + 100)
    predicted = booster.inplace_predict(features)
    return float(log_loss(labels, predicted)), float(roc_auc_score(labels, predicted))


def gang_and_bare(rank: int, world: int) -> list[tuple[tuple[float, float], float]]:
    """By seed: scores of the gang's booster, and how far its predictions are from bare XGBoost's on the same shards."""
    found = []
    for seed in range(SEEDS):
        features, labels = continuous(seed)
        rows = np.arange(rank, ROWS, world)
        booster = trainer_of(rows, seed).fit()
        matrix = xgb.QuantileDMatrix(features[rows], labels[rows], nthread=1)
        params = {**SETTINGS, "objective": "binary:logistic", "nthread": 1}
        bare = xgb.train(params, matrix, ROUNDS)
        apart = np.abs(booster.inplace_predict(features) - bare.inplace_predict(features)).max()
        found.append((scores(booster, seed), float(apart)))
    return found


def small(rank: int, world: int, **columns: Array) -> tuple[Array, Any]:
    """This rank's part of 100 rows, dealt by turns, as a shard; `columns` are of all rows."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 9, (100, 3)).astype(np.float32)
    labels = features[:, 0] * 3 + features[:, 1]
    rows = np.arange(rank, 100, world)
    return rows, shard_of(
        features[rows], labels[rows], rows, **{role: values[rows] for role, values in columns.items()}
    )


def by_rank_and_bare(rank: int, world: int) -> dict[str, tuple[Array, float]]:
    """By objective: the gang's predictions, and how far bare XGBoost's are from them on the same shards."""
    features = np.random.default_rng(0).integers(0, 9, (100, 3)).astype(np.float32)
    rows, shard = small(rank, world)
    labels = shard.labels[0] + 1
    found = {}
    for objective, more in (
        ("reg:absoluteerror", {}),
        ("reg:quantileerror", {"quantile_alpha": 0.9}),
        ("survival:cox", {}),
    ):
        params = {"objective": objective, "max_depth": 3, "nthread": 1, **more}
        own = shard_of(features[rows], labels, rows)
        booster = Trainer(spec_of("regression", params, 5, training_metrics=False), {}, own, threads=1).fit()
        bare = xgb.train(params, xgb.QuantileDMatrix(features[rows], labels, nthread=1), 5)
        predicted = booster.inplace_predict(features)
        found[objective] = (predicted, float(np.abs(predicted - bare.inplace_predict(features)).max()))
    return found


def largest_error(labels: Array, predictions: Array) -> float:
    """Not a mean: that of all rows is not the mean of the ranks'."""
    return float(np.abs(labels - predictions).max())


def weighted_error(labels: Array, predictions: Array, sample_weight: Array | None = None) -> float:
    return float(np.average(np.abs(labels - predictions), weights=sample_weight))


def half_squared(labels: Array, predictions: Array) -> tuple[Array, Array]:
    assert len(labels), "called without rows"
    return predictions - labels, np.ones_like(predictions)


def own_metric_and_objective(rank: int, world: int) -> list[dict[str, float]]:
    """All rows on rank 0: the others have none."""
    rows, shard = small(rank, 1) if rank == 0 else (None, small(0, 1)[1])
    if rows is None:
        empty = np.zeros(0, np.int64)
        shard = shard_of(np.zeros((0, 3), np.float32), np.zeros(0, np.float32), empty)
    objects = {"eval_metric": largest_error, "objective": half_squared}
    trainer = Trainer(spec_of("regression", {"eval_metric": ["rmse"]}, 5), objects, shard, threads=1)
    trainer.fit()
    return trainer.history


def dealt_metric(rank: int, world: int) -> list[dict[str, float]]:
    weights = np.arange(100, dtype=np.float32) % 7
    _, shard = small(rank, world, weight=weights)
    trainer = Trainer(spec_of("regression", {}, 5), {"eval_metric": weighted_error}, shard, threads=1)
    trainer.fit()
    return trainer.history


def wrong_share(labels: Array, predictions: Array) -> float:
    assert predictions.shape == (len(labels), 3), predictions.shape
    return float((predictions.argmax(axis=1) != labels).mean())


def apart(labels: Array, predictions: Array) -> float:
    assert labels.shape == predictions.shape == (len(labels), 2), (labels.shape, predictions.shape)
    return float(np.abs(labels - predictions).max())


def softmax(labels: Array, predictions: Array) -> tuple[Array, Array]:
    wrong_share(labels, predictions)
    share = np.exp(predictions) / np.exp(predictions).sum(axis=1, keepdims=True)
    return share - np.eye(3, dtype=np.float32)[labels.astype(int)], share * (1 - share) + 1e-3


def half_squared_twice(labels: Array, predictions: Array) -> tuple[Array, Array]:
    apart(labels, predictions)
    return predictions - labels, np.ones_like(predictions)


def several_outputs(rank: int, world: int) -> dict[str, list[dict[str, float]]]:
    """Histories where the callables see three classes or two targets, and a rank has no rows of a matrix."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 9, (60, 3)).astype(np.float32)
    classes, targets = features[:, 0] % 3 + 4.0, np.stack([features[:, 0], features[:, 1] * 2], axis=1)
    dealt, first = np.arange(rank, 60, world), np.arange(60 if rank == 0 else 0)

    def history(labels: Array, rows: Array, held_out: int, **objects: Any) -> list[dict[str, float]]:
        task: Any = "classification" if labels is classes else "regression"
        metric = wrong_share if labels is classes else apart
        shard = shard_of(features[rows], labels[rows], rows, validation=rows < held_out)
        trainer = Trainer(spec_of(task, {}, 4), {"eval_metric": metric, **objects}, shard, threads=1)
        trainer.fit()
        return trainer.history

    return {
        "classes": history(classes, dealt, 20),
        "classes, one row to validate": history(classes, dealt, 1),
        "classes, a rank without rows": history(classes, first, 20),
        "classes, objective": history(classes, first, 20, objective=softmax),
        "targets": history(targets, dealt, 20),
        "targets, one row to validate": history(targets, dealt, 1),
        "targets, objective": history(targets, first, 20, objective=half_squared_twice),
    }


def only_validation_rows(rank: int, world: int) -> tuple[list[dict[str, float]], bytes]:
    """The last rank has validation rows only."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 9, (100, 3)).astype(np.float32)
    labels = features[:, 0] * 3 + features[:, 1]
    rows = np.array_split(np.arange(100), world)[rank]
    shard = shard_of(features[rows], labels[rows], rows, validation=np.full(len(rows), rank == world - 1))
    trainer = Trainer(spec_of("regression", {}, 5), {}, shard, threads=1)
    booster = trainer.fit()
    return trainer.history, bytes(booster.save_raw("json"))


class StopOnOneRank(xgb.callback.TrainingCallback):
    """Asks to stop after the third round, on rank 1 only."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return epoch == 2 and collective.get_rank() == 1


def stopped_by_one(rank: int, world: int) -> int:
    _, shard = small(rank, world)
    trainer = Trainer(spec_of("regression", {}, 20), {"callbacks": [StopOnOneRank()]}, shard, threads=1)
    return int(trainer.fit().num_boosted_rounds())


def stopped_early(rank: int, world: int) -> tuple[int, int, list[dict[str, float]], float]:
    """Rounds of the booster and of its history, the history, and what its predictions differ from the best round's."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(400, 3)).astype(np.float32)
    labels = (rng.random(400) > 0.5).astype(np.float64)  # nothing to learn: it soon gets worse
    rows = np.arange(rank, 400, world)
    spec = spec_of(
        "classification",
        {"eval_metric": ["error", "logloss"], "learning_rate": 0.5},
        50,
        validation=0.3,
        early_stopping_rounds=4,
    )
    trainer = Trainer(spec, {}, shard_of(features[rows], labels[rows], rows), threads=1)
    booster = trainer.fit()
    matrix = xgb.DMatrix(features)
    best = booster.predict(matrix, iteration_range=(0, booster.best_iteration + 1))
    apart = float(np.abs(booster.predict(matrix) - best).max())
    return booster.num_boosted_rounds(), booster.best_iteration, trainer.history, apart


def query_metric(labels: Array, predictions: Array) -> float:
    """Whether the best is on top."""
    return float(labels[predictions.argmax()] == labels.max())


def ranked(rank: int, world: int) -> list[dict[str, float]]:
    """Queries of 5 rows with a metric of their own; all in the shard of rank 0."""
    rng = np.random.default_rng(0)
    queries = np.repeat(np.arange(10), 5)
    features = rng.normal(size=(50, 3)).astype(np.float32)
    labels = (features[:, 0] > 0.5).astype(np.float32)
    rows = rng.permutation(50) if rank == 0 else np.zeros(0, np.int64)
    shard = shard_of(features[rows], labels[rows], rows, group=queries[rows])
    spec = spec_of("ranking", {"eval_metric": ["ndcg@3"]}, 5, validation=0.4)
    trainer = Trainer(spec, {"eval_metric": query_metric}, shard, threads=1)
    trainer.fit()
    return trainer.history


def raises(rank: int, world: int) -> dict[str, str]:
    """What trainers say of rows that can't be trained on, by case."""
    start = xgb.train({}, xgb.DMatrix(np.ones((4, 3)), np.ones(4)), 1)
    narrow, several = (np.zeros((4, width), np.float32) for width in (1, 2))
    ones = np.ones((4, 2), np.float32)
    rows = np.arange(4) + 4 * rank

    def said(
        task: Any, labels: Any, spec: dict[str, Any] | None = None, features: Array = ones, **columns: Array
    ) -> str:
        fields = {"params": {}, **(spec or {})}
        params, objects = fields.pop("params"), fields.pop("objects", {})
        try:
            shard = shard_of(features, np.asarray(labels), rows, **columns)
            Trainer(spec_of(task, params, 2, **fields), objects, shard, threads=1)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def of_category(value: float) -> str:
        features = np.array([[0, 1]] * 3 + [[value, 1]], np.float32)
        return said("regression", one, {"types": ("c", "q")}, features)

    def relevances(objective: str, labels: list[float], **params: Any) -> str:
        queries = np.arange(4) + 4 * rank
        return said("ranking", labels, {"params": {"objective": objective, **params}}, group=queries)

    one = np.full(4, 3.0)
    return {
        "no weight": said("regression", one, weight=np.zeros(4, np.float32)),
        "no weight to validate": said(
            "regression", one, weight=np.array([1, 0, 1, 1], np.float32), validation=np.arange(4) == 1
        ),
        "narrow margin": said("classification", [0.0, 1, 2, 2], margin=narrow),
        "wide margin": said("regression", one, margin=several),
        "narrow margin of quantiles": said(
            "regression",
            one,
            {"params": {"objective": "reg:quantileerror", "quantile_alpha": "[0.1, 0.5, 0.9]"}},
            margin=several,
        ),
        "negative category": of_category(-1),
        "fractional category": of_category(1.5),
        "huge category": of_category(1e8),
        "negative relevance": relevances("rank:ndcg", [0, 1, -1, -2]),
        "fractional relevance": relevances("rank:pairwise", [0, 0.5, 1, 2]),
        "large relevance": relevances("rank:ndcg", [0, 40, 1, 2]),
        "large relevance, linear gain": relevances("rank:ndcg", [0, 40, 1, 2], ndcg_exp_gain=False),
        "graded for map": relevances("rank:map", [0, 1, 2, 0]),
        "graded for a metric": relevances("rank:ndcg", [0, 1, 2, 0], eval_metric=["map@3-"]),
        "model of other features": said("regression", one, {"objects": {"xgb_model": start.save_raw("ubj")}}),
        "constraint": said("regression", one, {"params": {"interaction_constraints": [[0, 2]]}}),
        "no features": said("regression", one, None, np.ones((4, 0), np.float32)),
        "one class": said("classification", one),
        "no training rows": said("regression", one, validation=np.ones(4, bool)),
        "no validation rows": said("regression", one, validation=np.zeros(4, bool)),
        "no drawn rows": said("regression", one, {"validation": 1e-9}),
        "binary of three": said("classification", [0.0, 1, 2, 2], {"params": {"objective": "binary:logistic"}}),
        "new class": said("classification", [0.0, 1, 2, 2], {"classes": (0.0, 1.0)}),
        "types": said("regression", one, {"types": ("c",)}),
        "names": said("regression", one, {"names": ("a",)}),
        "query on two ranks": said("ranking", one, {"dealt": False}, group=np.array([1, 1, 2, 2]) + rank),
        "weights in a query": said(
            "ranking", one, group=np.array([1, 1, 2, 2]), weight=np.array([1, 2, 3, 3], np.float32)
        ),
    }

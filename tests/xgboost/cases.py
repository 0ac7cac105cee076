"""The matrix of fits: one objective, kind of features and split of rows a case, run by N ranks and by plain XGBoost.

Features have few distinct values, so that bins are the same however the rows are dealt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import xgboost as xgb

from sparktrain.xgboost.spec import Task
from sparktrain.xgboost.trainer import Trainer
from tests.xgboost.shards import Array, shard_of, sparse_of, spec_of

ROWS, FEATURES, ROUNDS = 240, 6, 8
SPLITS: dict[int, list[tuple[int, ...]]] = {
    1: [(240,)],
    2: [(120, 120), (239, 1), (0, 240)],
    3: [(80, 80, 80), (200, 0, 40)],
}
GENERAL = {"max_depth": 4, "learning_rate": 0.4}


@dataclass(frozen=True)
class Problem:
    """An objective, the labels that go with it, and what else its rows have."""

    name: str
    task: Task
    params: dict[str, Any]
    labels: str
    features: str = "dense"
    missing: float = float("nan")
    weighted: bool = False
    margin: bool = False
    external: bool = False


PROBLEMS = [
    Problem("squared error", "regression", {}, "float"),
    Problem("squared error, weights", "regression", {}, "float", weighted=True),
    Problem("squared error, margin", "regression", {}, "float", margin=True),
    Problem("poisson", "regression", {"objective": "count:poisson"}, "count"),
    Problem("two targets", "regression", {}, "two floats"),
    Problem("two classes", "classification", {}, "two classes", weighted=True),
    Problem("three classes", "classification", {}, "three classes"),
    Problem("three classes, weights", "classification", {}, "three classes", weighted=True),
    Problem("NaN features", "classification", {}, "two classes", features="nan"),
    Problem("a value that means missing", "regression", {}, "float", features="minus one", missing=-1.0),
    Problem("sparse, zeros are zeros", "regression", {}, "float", features="sparse"),
    Problem("sparse, zeros are missing", "regression", {}, "float", features="sparse", missing=0.0, weighted=True),
    Problem("categorical", "regression", {"max_cat_to_onehot": 2}, "float", features="categorical"),
    Problem("external memory", "regression", {}, "float", weighted=True, external=True),
    Problem("approx", "regression", {"tree_method": "approx"}, "float"),
    Problem("linear", "regression", {"booster": "gblinear", "learning_rate": 0.1}, "float"),
    Problem("dart", "regression", {"booster": "dart", "rate_drop": 0.0}, "float"),
    Problem("ndcg", "ranking", {"objective": "rank:ndcg"}, "relevance"),
    Problem("pairwise, weights", "ranking", {"objective": "rank:pairwise"}, "relevance", weighted=True),
]
ALONE = ("linear", "pairwise, weights")
"""XGBoost gives other models of these where it has several processes: a linear model for each, which is refused; and
weights of queries divided by the mean of those of each process."""


@dataclass(frozen=True)
class Case:
    """A problem and how its rows are dealt to ranks."""

    problem: Problem
    split: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.problem.name}, {self.split}"


def cases(world: int) -> Iterator[Case]:
    for problem in PROBLEMS:
        if problem.name in ALONE and world > 1:
            continue
        for split in SPLITS[world]:
            yield Case(problem, split)


@dataclass(frozen=True)
class Table:
    """All rows of a problem."""

    features: Array
    labels: Array
    weights: Array
    margins: Array
    groups: Array


def table_of(problem: Problem) -> Table:
    rng = np.random.default_rng(3)
    features = rng.integers(0, 12, (ROWS, FEATURES)).astype(np.float32)
    score = features[:, 0] - 0.5 * features[:, 1] + (features[:, 2] > 5) * 4 + rng.normal(size=ROWS)
    if problem.features == "nan":
        features[rng.random(features.shape) < 0.2] = np.nan
    if problem.features == "minus one":
        features[rng.random(features.shape) < 0.2] = -1
    if problem.features == "sparse":
        features[rng.random(features.shape) < 0.7] = 0
    labels = {
        "float": score.astype(np.float32),
        "two floats": np.stack([score, -2 * score], axis=1).astype(np.float32),
        "count": np.maximum(np.round(score), 0).astype(np.float32),
        "two classes": np.where(score > np.median(score), 7.0, 2.0),
        "three classes": np.digitize(score, np.quantile(score, [0.4, 0.8])) + 3.0,
        "relevance": np.digitize(score, np.quantile(score, [0.5, 0.8])).astype(np.float32),
    }[problem.labels]
    groups = np.repeat(rng.permutation(30) * 7, 8)
    weights = rng.integers(1, 5, ROWS).astype(np.float32)
    if problem.task == "ranking":
        weights = (groups % 3 + 1).astype(np.float32)
    return Table(features, labels, weights, score.astype(np.float32) / 3, groups)


def rank_of_rows(case: Case) -> Array:
    """Which rank each row is dealt to; a query's rows go together."""
    ranks = np.repeat(np.arange(len(case.split)), case.split)
    if case.problem.task != "ranking":
        return np.random.default_rng(5).permutation(ranks)
    return ranks[np.arange(ROWS) // 8 * 8]


def params_of(problem: Problem) -> dict[str, Any]:
    return {**({} if "booster" in problem.params else GENERAL), **problem.params}


def predictions(booster: xgb.Booster, table: Table, problem: Problem) -> Array:
    return np.asarray(booster.predict(matrix_of(table, problem, labelled=False), output_margin=True))


def matrix_of(table: Table, problem: Problem, *, labelled: bool) -> xgb.DMatrix:
    """The rows as a user of plain XGBoost passes them: queries in order, weights by query."""
    order = np.argsort(table.groups, kind="stable") if problem.task == "ranking" else np.arange(ROWS)
    data: Any = table.features[order]
    if problem.features == "sparse" and problem.missing == 0:
        data = scipy.sparse.csr_matrix(data)
    types = ["c", *["q"] * (FEATURES - 1)] if problem.features == "categorical" else None
    matrix = xgb.DMatrix(
        data, missing=problem.missing, feature_types=types, enable_categorical=types is not None, nthread=1
    )
    if problem.margin:
        matrix.set_base_margin(table.margins[order])
    if labelled:
        labels = table.labels[order]
        matrix.set_label(np.unique(labels, return_inverse=True)[1] if problem.task == "classification" else labels)
        if problem.task == "ranking":
            matrix.set_info(qid=table.groups[order])
        if problem.weighted:
            weights = table.weights[order]
            matrix.set_weight(weights[::8] if problem.task == "ranking" else weights)
    return matrix


def plain_xgboost(problem: Problem) -> Array:
    """Predictions of one process, written as a user of XGBoost writes it."""
    table = table_of(problem)
    params = {**params_of(problem), "nthread": 1}
    if problem.task == "classification":
        classes = len(np.unique(table.labels))
        params |= {"objective": "binary:logistic"} if classes == 2 else {"objective": "multi:softprob"}
        params |= {} if classes == 2 else {"num_class": classes}
    return predictions(xgb.train(params, matrix_of(table, problem, labelled=True), ROUNDS), table, problem)


def train_on_gang(case: Case, rank: int) -> tuple[Array, list[dict[str, float]]]:
    """Predictions for all rows of what this rank's trainer has made, and its history."""
    problem, table = case.problem, table_of(case.problem)
    mine = np.flatnonzero(rank_of_rows(case) == rank)
    arrival = np.random.default_rng([rank, len(mine)]).permutation(mine)  # Spark delivers rows in any order
    columns: dict[str, Array] = {}
    if problem.weighted:
        columns["weight"] = table.weights[arrival]
    if problem.margin:
        columns["margin"] = table.margins[arrival]
    if problem.task == "ranking":
        columns["group"] = table.groups[arrival]
    features: Any = table.features[arrival]
    if problem.features == "sparse":
        features = sparse_of(features, arrival % 5 == 0)
    shard = shard_of(features, table.labels[arrival], arrival, **columns)
    spec = spec_of(
        problem.task,
        params_of(problem),
        ROUNDS,
        missing=problem.missing,
        categorical=(0,) if problem.features == "categorical" else (),
        external_memory=problem.external,
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(spec, {}, shard, threads=1, scratch=scratch)
        booster = trainer.fit()
        return predictions(booster, table, problem), trainer.history


def run_all(rank: int, world: int) -> dict[str, tuple[Array, list[dict[str, float]]]]:
    return {case.name: train_on_gang(case, rank) for case in cases(world)}

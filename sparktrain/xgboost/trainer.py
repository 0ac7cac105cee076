"""The XGBoost trainer: boosting rounds over the gang's shards. Runs in the worker process."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import xgboost as xgb

from sparktrain.errors import DataError, GangError
from sparktrain.gang.worker import Event, WorkerContext
from sparktrain.shards import disk, plan
from sparktrain.shards.arrow import Array
from sparktrain.shards.reader import Shard, open_shard
from sparktrain.shards.sparse import SparseReader
from sparktrain.xgboost import boosters, checks, groups, row_checks
from sparktrain.xgboost.callables import (
    TRAINING,
    VALIDATION,
    GlobalMetric,
    LocalObjective,
    Progress,
    QueryMetric,
    Together,
    history,
)
from sparktrain.xgboost.communicator import gathered, join
from sparktrain.xgboost.labels import class_values, encoded
from sparktrain.xgboost.matrices import Features, MatrixMaker, Rows, to_columns, to_gpu
from sparktrain.xgboost.spec import DEFAULT_OBJECTIVES, BoosterSpec, device_of


def train(context: WorkerContext) -> dict[str, Any]:
    """The worker's entry: train, and leave the booster in rank 0's result file, as UBJSON."""
    job, gang = context.job, context.gang
    payload = dict(context.payload)
    if job.payload_path is not None:
        with open(job.payload_path, "rb") as file:
            payload["objects"] = file.read()
    spec: BoosterSpec = payload["spec"]
    shard = open_shard(job.tensors, job.tensor_fds, job.rows)
    warnings.filterwarnings("ignore", ".*Empty dataset at worker", UserWarning)  # it joins the collective all the same
    try:
        device = device_of(spec.device, gang.device)
    except ValueError as error:
        raise GangError(str(error)) from None
    with join(gang, job.listen_fd, retries=spec.retries):
        trainer = Trainer(
            spec,
            pickle.loads(payload["objects"]),
            shard,
            threads=int(os.environ.get("OMP_NUM_THREADS", "1")),
            device=device,
            scratch=context.scratch,
            emit=context.emit if gang.rank == 0 else None,
        )
        booster = trainer.fit()
    if gang.rank == 0:
        with os.fdopen(os.dup(job.result_fd), "wb") as file:
            file.write(booster.save_raw("ubj"))
    return {"history": trainer.history if gang.rank == 0 else None}


class Trainer:
    """Trains one rank's share of a fit; every rank makes the same calls in the same order.

    Parameters
    ----------
    spec : BoosterSpec
    objects : mapping
        The user's callables and callbacks by keyword: ``objective``, ``eval_metric``, ``callbacks``, ``xgb_model``.
    shard : Shard
    threads : int
    device : str
        As XGBoost names it.
    scratch : str
        A directory for pages on disk.
    emit : callable or None
        Takes progress events; None on ranks other than 0.
    """

    def __init__(
        self,
        spec: BoosterSpec,
        objects: Mapping[str, Any],
        shard: Shard,
        *,
        threads: int,
        device: str = "cpu",
        scratch: str = "",
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        self._spec, self._objects, self._shard, self._threads = spec, objects, shard, threads
        self._device, self._scratch, self._emit = device, scratch, emit
        self._queries = shard.by_role("group")[0] if spec.task == "ranking" else None
        self._validates = shard.validation is not None or spec.validation is not None
        self._train_rows, self._val_rows = self._split()
        self._check_rows()
        self._features, self.width = features_of(shard)
        if not self.width:
            raise DataError(f"features_col: the rows of {shard.specs('input')[0].name!r} have no elements: no features")
        features = spec.features
        per_feature = {"types": features.types, "names": features.names, "weights": features.weights}
        for name, given in per_feature.items():
            if given is not None and len(given) != self.width:
                raise DataError(f"feature_{name} has {len(given)} entries for {self.width} features")
        self.classes = self._class_values() if spec.task == "classification" else None
        self._params = self._booster_params()
        self._outputs = checks.outputs_of(self._params, prod(shard.labels[0].shape[1:]))
        self._start = self._model_to_go_on_from()
        self._check_values()
        self.history: list[dict[str, float]] = []

    def _split(self) -> tuple[plan.Indices, plan.Indices]:
        shard, spec = self._shard, self._spec
        validation = spec.validation if shard.validation is None else shard.validation
        if self._queries is None:
            return plan.split(shard.keys, validation, spec.seed)
        return groups.split(self._queries, shard.keys, validation, spec.seed)

    def _check_rows(self) -> None:
        """What can only be told from all ranks' rows."""
        parts = (self._train_rows, self._val_rows)
        counts = gathered(tuple(len(rows) for rows in parts))
        train_rows, val_rows = (sum(count[part] for count in counts) for part in range(2))
        if not train_rows:
            raise DataError(f"validation takes all {val_rows:,} rows: none is left to train on")
        if self._validates and not val_rows:
            held_out = self._spec.validation
            what = "the validation column marks" if held_out is None else f"validation={held_out} holds out"
            raise DataError(f"{what} none of {train_rows:,} rows; there must be one at least")
        weighs = gathered(tuple(row_checks.weighs(self._shard.weights, rows) for rows in parts))
        for part, what in enumerate(("training", "validation")[: 1 + self._validates]):
            if not any(rank[part] for rank in weighs):
                raise DataError(f"weight_col: all {what} rows have the weight 0; some must weigh more")
        if self._queries is None:
            return
        if not self._spec.dealt:
            groups.check_whole(gathered(np.unique(self._queries)))
        if self._shard.weights is not None:
            for rows in parts:
                groups.check_weights(self._queries, self._shard.weights, rows)

    def _class_values(self) -> Array:
        values = class_values(gathered, self._shard.labels[0], self._spec.classes)
        objective = str(self._spec.params.get("objective", ""))
        if objective.startswith("binary:") and len(values) > 2:
            raise DataError(f"label_col has {len(values)} classes, but objective={objective!r} is for two")
        return values

    def fit(self) -> xgb.Booster:
        """Boost; afterwards `history` is there, and the booster has the rounds up to the best one."""
        spec, params, start = self._spec, self._params, self._start
        maker = self._maker(params)
        training = maker.make(self._rows(self._train_rows), TRAINING)
        if spec.features.weights is not None:
            training.set_info(feature_weights=np.asarray(spec.features.weights, np.float32))
        evals = [(training, TRAINING)] if spec.training_metrics else []
        if self._validates:
            evals.append((maker.make(self._rows(self._val_rows), VALIDATION, ref=training), VALIDATION))
        evaluated: dict[str, dict[str, list[float]]] = {}
        before = 0 if start is None else start.num_boosted_rounds()
        booster = xgb.train(
            params,
            training,
            num_boost_round=spec.rounds,
            evals=evals,
            obj=self._objective(),
            custom_metric=self._metric(),
            early_stopping_rounds=spec.early_stopping_rounds,
            evals_result=evaluated,
            verbose_eval=False,
            xgb_model=start,
            callbacks=self._callbacks(),
        )
        self.history = history(evaluated, booster.num_boosted_rounds() - before)
        booster = boosters.up_to_best(booster)
        if self.classes is not None:
            boosters.name_classes(booster, self.classes.tolist())
        return booster

    def _model_to_go_on_from(self) -> xgb.Booster | None:
        given = self._objects.get("xgb_model")
        if given is None:
            return None
        start = boosters.to_go_on_from(given)
        for what, has, needs in (
            ("features", start.num_features(), self.width),
            ("outputs (classes, targets or quantiles)", boosters.margins_of(start), self._outputs),
        ):
            if has != needs:
                raise DataError(f"xgb_model has {has} {what}, but these rows have {needs}")
        return start

    def _check_values(self) -> None:
        """What XGBoost would refuse in this rank's rows."""
        features, shard = self._spec.features, self._shard
        types = features.types_of(self.width)
        row_checks.check_categories(self._features, types, features.names, features.missing)
        for margins in shard.by_role("margin"):
            row_checks.check_margins(margins, self._outputs)
        if self._queries is not None:
            evaluated = self._spec.training_metrics or self._validates
            row_checks.check_relevances(shard.labels[0], self._params, evaluated=evaluated)

    def _booster_params(self) -> dict[str, Any]:
        params = {**self._spec.params, "nthread": self._threads, "device": self._device}
        params |= checks.constraints(params, self._spec.features.names, self.width)
        if self.classes is None:
            params.setdefault("objective", DEFAULT_OBJECTIVES[self._spec.task])
            return params
        multi = len(self.classes) > 2
        params.setdefault("objective", "multi:softprob" if multi else "binary:logistic")
        if str(params["objective"]).startswith("multi:"):
            params["num_class"] = len(self.classes)
        return params

    def _maker(self, params: Mapping[str, Any]) -> MatrixMaker:
        features = self._spec.features
        return MatrixMaker(
            params=params,
            missing=features.missing,
            types=features.types_of(self.width),
            names=None if features.names is None else list(features.names),
            threads=self._threads,
            scratch=self._scratch if self._spec.external_memory else None,
            to_device=to_columns if self._device == "cpu" else to_gpu,
        )

    def _rows(self, order: plan.Indices) -> Rows:
        shard = self._shard
        margins = shard.by_role("margin")
        labels = disk.taken(shard.labels[0], order)
        return Rows.of(
            self._features,
            order,
            labels if self.classes is None else encoded(labels, self.classes),
            weights=shard.weights,
            margins=margins[0] if margins else None,
            groups=self._queries,
        )

    def _objective(self) -> Any:
        function = self._objects.get("objective")
        if function is None or hasattr(function, "split_grad"):  # XGBoost's own classes of objectives
            return function
        return LocalObjective(function, self._outputs)

    def _metric(self) -> Any:
        function = self._objects.get("eval_metric")
        if function is None:
            return None
        return QueryMetric(function) if self._queries is not None else GlobalMetric(function)

    def _callbacks(self) -> list[Any]:
        callbacks: list[Any] = [Together(one) for one in self._objects.get("callbacks") or []]
        if self._emit is not None:
            callbacks.append(Progress(self._emit, self._spec.rounds))
        return callbacks


def features_of(shard: Shard) -> tuple[Features, int]:
    """A shard's features and their number: a matrix unless some rows are sparse vectors."""
    sparse = shard.sparse_rows
    if sparse is None:
        matrix = shard.by_role("input")[0]
        return matrix, int(matrix.shape[1])
    matrix_or_none = sparse.matrix
    return (SparseReader(sparse) if matrix_or_none is None else matrix_or_none), sparse.width

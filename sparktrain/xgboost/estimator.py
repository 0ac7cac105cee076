"""`XGBoostClassifier`, `XGBoostRegressor`, `XGBoostRanker`: boosters trained by a gang over a DataFrame."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegralType, StructType

from sparktrain import params, persistence
from sparktrain.errors import ColumnError, GangError, ParamError
from sparktrain.estimator import GangEstimator, Payload
from sparktrain.gang.launch import GangOutcome
from sparktrain.gang.spec import GangSpec
from sparktrain.params import GangParam, camel_case
from sparktrain.session import setting
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.shards.tensors import TensorSpec
from sparktrain.xgboost import boosters, checks, features, held
from sparktrain.xgboost.callables import takes_weights
from sparktrain.xgboost.installed import booster_names, check_values
from sparktrain.xgboost.model import (
    BoosterModel,
    XGBoostClassifierModel,
    XGBoostRankerModel,
    XGBoostRegressorModel,
)
from sparktrain.xgboost.params import (
    REFUSED,
    HasBoosterColumns,
    HasBoosterLabels,
    HasBoosting,
    HasDevice,
    HasProbabilities,
)
from sparktrain.xgboost.spec import DEFAULT_OBJECTIVES, NO_GPU, BoosterSpec, Features, Task, is_quantised

M = TypeVar("M", bound=BoosterModel)
E = TypeVar("E", bound="BoosterEstimator[Any]")

NODE_BYTES = 64
"""About what a node of a tree takes as UBJSON."""
MOST_OUTPUTS = 10
"""Classes or targets that are reckoned with for the size of a result, each with trees of its own."""


class BoosterEstimator(
    GangEstimator[M], HasBoosting, HasBoosterColumns, HasBoosterLabels, HasDevice, persistence.Saveable
):
    """Base of the XGBoost estimators."""

    trainer = "sparktrain.xgboost.entry:train"
    task: Task
    model_class: type[M]
    weights_file = ""
    _refused = REFUSED
    _holder = held.BoosterValue

    def _plan(self, schema: StructType) -> ColumnPlan:
        self._check_params()
        planner = ColumnPlanner(schema)
        finite = not math.isinf(self._value(self.missing))
        tensors = planner.features(self._value(self.featuresCol), "features_col", finite=finite)
        tensors += self._label_tensors(planner)
        inputs, label = [column.name for column in tensors[0].columns], self._value(self.labelCol)
        if label in inputs:
            warnings.warn(f"label_col {label!r} is also in features_col: the model is given its answer", stacklevel=4)
        weight, margin = self._value(self.weightCol), self._value(self.baseMarginCol)
        validation = self._value(self.validation)
        if weight:
            tensors.append(planner.weight(weight, "weight_col"))
        if margin:
            tensors.append(planner.margin(margin))
        if isinstance(validation, str):
            tensors.append(planner.validation(validation))
        return planner.plan(tensors)

    def _label_tensors(self, planner: ColumnPlanner) -> list[TensorSpec]:
        return [planner.label(self._value(self.labelCol), "float", "float32", keyword="label_col")]

    def _check_params(self) -> None:
        """What contradicts something else, before any column is looked at."""
        if self._value(self.backend) != "native":
            raise ParamError(
                f"backend={self._value(self.backend)!r}: XGBoost has a collective of its own and takes no other; leave "
                "backend='native'"
            )
        if self._value(self.earlyStoppingRounds) is not None and self._value(self.validation) is None:
            raise ParamError(
                "early_stopping_rounds needs validation rows: set validation_indicator_col, or validation=0.1"
            )
        if self._value(self.enableSparseDataOptim) and self._value(self.missing) != 0:
            raise ParamError(
                "enable_sparse_data_optim=True takes what sparse vectors don't store as missing, which is their zeros: "
                f"set missing=0.0 (it is {self._value(self.missing)})"
            )
        if self._value(self.forceRepartition) and self._value(self.partitioned):
            raise ParamError("force_repartition=True and partitioned=True contradict one another: choose one")
        if self._value(self.useGpu) and self.isSet(self.device) and self._value(self.device) != "cuda":
            raise ParamError("use_gpu=True and device='cpu' contradict one another: choose one")
        given = self._booster_params()
        if given.get("objective") == "survival:aft":
            raise ParamError(
                "objective='survival:aft' takes two bounds a row, for which there are no columns; 'survival:cox' takes "
                "one label (below 0: censored)"
            )
        if str(given.get("tree_method", "")).startswith("gpu_"):
            raise ParamError(f"tree_method={given['tree_method']!r}: use tree_method='hist' and device='cuda'")
        if self._value(self.externalMemory) and not is_quantised(given):
            raise ParamError("external_memory=True is for trees with tree_method='hist'")
        if self._value(self.weightCol):
            for keyword, function in self._callables().items():
                if not takes_weights(function):
                    raise ParamError(
                        f"{keyword}: with weight_col the callable must take sample_weight: f(labels, predictions, "
                        "sample_weight=None)"
                    )
        check_values(given)

    def _callables(self) -> dict[str, Any]:
        """The user's callables that are given weights, by keyword."""
        objective = self._value(self.objective)
        _, metric = self._metrics()
        given = {"objective": objective if is_function(objective) else None, "eval_metric": metric}
        return {keyword: function for keyword, function in given.items() if function is not None}

    def _metrics(self) -> tuple[list[str], Any]:
        """XGBoost's metrics by name, and the user's callable."""
        given = self._value(self.evalMetric) or []
        functions = [one for one in given if callable(one)]
        return [one for one in given if isinstance(one, str)], functions[0] if functions else None

    def _booster_params(self) -> dict[str, Any]:
        """What XGBoost takes as params: all that was set."""
        own = {name: self._value(getattr(self, camel_case(name))) for name in booster_names()}
        given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        if isinstance(given.get("monotone_constraints"), list):  # XGBoost takes a tuple, which JSON has not
            given["monotone_constraints"] = tuple(given["monotone_constraints"])
        given["seed"] = self._value(self.seed)
        objective = self._value(self.objective)
        if isinstance(objective, str):
            given["objective"] = objective
        elif objective is None and self.task in DEFAULT_OBJECTIVES:
            given["objective"] = DEFAULT_OBJECTIVES[self.task]
        names, _ = self._metrics()
        if names:
            given["eval_metric"] = names
        further = self._value(self.arbitraryParamsDict)
        return {**given, **{name: value for name, value in further.items() if value is not None}}

    def set_device(self: E, value: str) -> E:
        """`setDevice`, by the name that xgboost.spark has for it."""
        return self._set(device=value)

    def set_coll_cfg(self: E, value: Any) -> E:
        """`setCollCfg`, by the name that xgboost.spark has for it."""
        return self._set(collCfg=value)

    def _payload(self, plan: ColumnPlan, schema: StructType) -> Payload:
        validation, objective = self._value(self.validation), self._value(self.objective)
        _, metric = self._metrics()
        start = self._value(self.xgbModel)
        objects = {
            "objective": None if isinstance(objective, str) else objective,
            "eval_metric": metric,
            "callbacks": self._value(self.callbacks),
            "xgb_model": None if start is None else bytes(start.save_raw("ubj")),
        }
        given = self._booster_params()
        described = self._described(plan, schema)
        shape = plan.specs("input")[0].shape
        width = None if shape is None else shape[0]
        checks.constraints(given, described.names, width)
        if start is not None:
            named = given.get("objective") if objects["objective"] is None else None
            checks.check_start(start, described.names, width, named, classifier=self.task == "classification")
        spec = BoosterSpec(
            task=self.task,
            params=given,
            rounds=self._value(self.nEstimators),
            early_stopping_rounds=self._value(self.earlyStoppingRounds),
            training_metrics=self._training_metrics(),
            features=described,
            validation=validation if isinstance(validation, float) else None,
            seed=self._value(self.seed),
            device=self._device(),
            external_memory=self._value(self.externalMemory),
            dealt=not self._value(self.partitioned),
            classes=self._known_classes(),
            retries=(self._value(self.collCfg) or {}).get("retry"),
        )
        return Payload({"spec": spec}, "objects", cloudpickle.dumps(objects), 0, most_bytes(given, spec.rounds))

    def _training_metrics(self) -> bool:
        given = self._value(self.trainingMetrics)
        if given is not None:
            return bool(given)
        return self._value(self.evalMetric) is not None or self._value(self.validation) is not None

    def _known_classes(self) -> tuple[float, ...] | None:
        """The classes of the model to go on from."""
        return None

    def _described(self, plan: ColumnPlan, schema: StructType) -> Features:
        return features.describe(
            schema,
            plan.specs("input")[0],
            types=self._value(self.featureTypes),
            from_metadata=self._value(self.enableCategorical),
            names=self._value(self.featureNames),
            weights=self._value(self.featureWeights),
            missing=self._value(self.missing),
        )

    def _shards(self, dataset: DataFrame, plan: ColumnPlan, num_proc: int) -> DataFrame:
        if self._value(self.partitioned) or not self._value(self.repartitionRandomShuffle):
            return super()._shards(dataset, plan, num_proc)
        return plan.shards(dataset, num_proc, seed=self._value(self.seed))

    def _gang_spec(self, spark: SparkSession, num_proc: int, plan: ColumnPlan, payload: Payload) -> GangSpec:
        given = self._booster_params()
        for name, value in (("tree_method", "exact"), ("booster", "gblinear")):
            if given.get(name) == value and num_proc > 1:
                raise ParamError(
                    f"{name}={value!r}: XGBoost trains it in one process only (each rank would make a model of its own "
                    f"rows), and num_proc={num_proc}; set num_proc=1, or leave {name} as it is by default"
                )
        if num_proc > 1 and given.get("objective") == "survival:cox":
            self._check_cox(given, num_proc)
        if self._device() == "cuda" and not float(setting(spark, "spark.task.resource.gpu.amount") or 0):
            raise GangError(NO_GPU)
        spec = super()._gang_spec(spark, num_proc, plan, payload)
        timeout = (self._value(self.collCfg) or {}).get("timeout")
        return spec if timeout is None else replace(spec, collective_timeout_s=float(timeout))

    def _check_cox(self, given: Mapping[str, Any], num_proc: int) -> None:
        """XGBoost computes this objective by rank, and its metric not at all."""
        computed = self._training_metrics() or self._value(self.validation) is not None
        default = [] if given.get("disable_default_eval_metric") else ["cox-nloglik"]
        metrics = given.get("eval_metric", default)
        if computed and "cox-nloglik" in ([metrics] if isinstance(metrics, str) else metrics):
            raise ParamError(
                f"eval_metric='cox-nloglik', survival:cox's default: XGBoost computes it in one process only, and "
                f"num_proc={num_proc}; set num_proc=1, or another eval_metric (a callable, which is given the rows of "
                "all ranks, with disable_default_eval_metric=True)"
            )
        warnings.warn(
            f"objective='survival:cox' with num_proc={num_proc}: XGBoost compares a row with those of its own rank "
            "only, as a Cox model stratified by rank does; num_proc=1 compares it with all",
            stacklevel=5,
        )

    def _create_model(self, outcome: GangOutcome, plan: ColumnPlan) -> M:
        info = outcome.infos[0]
        model = self._copyValues(self.model_class())
        return model._fitted(outcome.result.read(), info["history"])

    def _saved_objects(self) -> persistence.ToSave:
        values = {
            param.name: held.packed(self.getOrDefault(param))
            for param in self.params
            if isinstance(param, GangParam) and param.by_value and self.isSet(param)
        }
        return persistence.ToSave(cloudpickle.dumps(values), persistence.nothing, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        for name, value in persistence.unpickled(saved.structure, unpickler).items():
            self._set(**{name: held.unpacked(value)})


def is_function(objective: Any) -> bool:
    """Whether an objective is a plain callable, not a name or an `xgboost.objective.Objective`."""
    return callable(objective) and not hasattr(objective, "split_grad") and not isinstance(objective, str)


def most_bytes(given: Mapping[str, Any], rounds: int) -> int:
    """How large the booster may become."""
    leaves, depth = int(given.get("max_leaves", 0)), int(given.get("max_depth", 6))  # XGBoost takes strings too
    nodes = 2 * leaves if leaves else 2 ** (depth + 1) if 0 < depth < 40 else 2**41
    return int(rounds * nodes * int(given.get("num_parallel_tree", 1)) * NODE_BYTES * MOST_OUTPUTS)


class XGBoostRegressor(BoosterEstimator[XGBoostRegressorModel]):
    """Trains an XGBoost regressor on a DataFrame, over XGBoost's own collective.

    Takes XGBoost's own parameters by their names, and the keywords of ``xgboost.spark.SparkXGBRegressor``. An array
    or vector label has several targets, and so has the prediction.

    Examples
    --------
    >>> model = XGBoostRegressor(features_col="features", label_col="y", num_workers=2, max_depth=4).fit(train)
    >>> model.transform(test)
    """

    task = "regression"
    model_class = XGBoostRegressorModel


class XGBoostClassifier(BoosterEstimator[XGBoostClassifierModel], HasProbabilities):
    """Trains an XGBoost classifier on a DataFrame, over XGBoost's own collective.

    Takes XGBoost's own parameters by their names, and the keywords of ``xgboost.spark.SparkXGBClassifier``. Labels
    are any set of numbers; predictions come back in them.

    Examples
    --------
    >>> model = XGBoostClassifier(features_col="features", label_col="label", n_estimators=50).fit(train)
    >>> model.transform(test).select("probability", "prediction")
    """

    task = "classification"
    model_class = XGBoostClassifierModel

    def _check_params(self) -> None:
        objective = str(self._booster_params().get("objective", ""))
        if objective.startswith(("reg:", "rank:", "count:", "survival:")) and not boosters.classifies(objective):
            raise ParamError(
                f"objective={objective!r} is not a classifier's; leave it to the default (binary:logistic or "
                "multi:softprob, by the number of classes), or use XGBoostRegressor"
            )
        super()._check_params()

    def _label_tensors(self, planner: ColumnPlanner) -> list[TensorSpec]:
        label = planner.label(self._value(self.labelCol), "float", "float64", keyword="label_col")
        if label.columns[0].kind != "number":
            raise ColumnError(
                f"label_col: {label.name!r} is an array or vector; a classifier's label is a number, the class"
            )
        return [replace(label, integral=isinstance(planner.data_type(label.name, "label_col"), IntegralType))]

    def _known_classes(self) -> tuple[float, ...] | None:
        start = self._value(self.xgbModel)
        return None if start is None else boosters.classes_of(start)


class XGBoostRanker(BoosterEstimator[XGBoostRankerModel]):
    """Trains an XGBoost ranker on a DataFrame, over XGBoost's own collective.

    The rows of a query, which ``qid_col`` names, are on one rank; labels are relevances. ``weight_col`` weighs
    queries: all rows of one have the same, and XGBoost divides them by their mean on each rank. A fraction as
    ``validation`` draws whole queries.

    Examples
    --------
    >>> model = XGBoostRanker(features_col="features", label_col="relevance", qid_col="query").fit(train)
    >>> model.transform(test)
    """

    task = "ranking"
    model_class = XGBoostRankerModel

    qidCol = GangParam("qid_col", "Column of the query that a row belongs to, a whole number.", params.string)

    def _label_tensors(self, planner: ColumnPlanner) -> list[TensorSpec]:
        return [*super()._label_tensors(planner), planner.group(self._value(self.qidCol))]

    def _check_params(self) -> None:
        objective = self._value(self.objective)
        if objective is not None and not isinstance(objective, str):
            raise ParamError("objective: a ranker takes the name of an objective, such as 'rank:ndcg', no callable")
        super()._check_params()

    def _callables(self) -> dict[str, Any]:
        return {}  # its metric is called with one query, and weighed afterwards

    def _shards(self, dataset: DataFrame, plan: ColumnPlan, num_proc: int) -> DataFrame:
        if self._value(self.partitioned):
            return super()._shards(dataset, plan, num_proc)
        return plan.shards(dataset, num_proc, by=self._value(self.qidCol))

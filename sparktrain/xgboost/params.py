"""The Params of the XGBoost estimators and models: XGBoost's own by their names, and the columns.

XGBoost's own are read from the installed version: those of its scikit-learn estimators, and those that its
boosters and objectives tell of in their configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xgboost as xgb

from sparktrain import params
from sparktrain.errors import ParamError
from sparktrain.params import GangParam, KeywordParams
from sparktrain.xgboost import boosters
from sparktrain.xgboost.installed import booster_names, description

ALIASES = {
    "learning_rate": ("eta",),
    "reg_lambda": ("lambda",),
    "reg_alpha": ("alpha",),
    "gamma": ("min_split_loss",),
}

REFUSED = {
    "n_jobs": "a rank's threads are the cores Spark gives its task (spark.task.cpus)",
    "nthread": "a rank's threads are the cores Spark gives its task (spark.task.cpus)",
    "num_class": "it is the number of distinct labels",
    "sample_weight": "name the column: weight_col",
    "base_margin": "name the column: base_margin_col",
    "eval_set": "mark the rows: validation_indicator_col, or validation=0.1",
    "evals": "mark the rows: validation_indicator_col, or validation=0.1",
    "evals_result": "read model.history",
    "group": "name the column: qid_col",
    "qid": "name the column: qid_col",
    "output_margin": "margins are in raw_prediction_col",
    "gpu_id": "device='cuda' takes the GPU that Spark assigns",
    "predictor": "device says where to predict",
    "use_label_encoder": "labels are any numbers",
    "verbose_eval": "read model.history; verbose=1 shows a progress bar",
    "thresholds": "predictions are those of the largest probability",
}


def _own(value: Any) -> Any:
    """A value of XGBoost's own: NumPy scalars and arrays as plain Python, so that JSON can hold them."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _own(item) for key, item in value.items()}
    return [_own(item) for item in value] if isinstance(value, (list, tuple)) else value


def _metric(value: Any) -> Any:
    if isinstance(value, str) and value:
        return [value]
    if callable(value):
        return [value]
    given = list(value) if isinstance(value, (list, tuple)) else []
    if not given or not all(callable(one) or (isinstance(one, str) and one) for one in given):
        raise ValueError("the name of a metric, a callable(labels, predictions), or a list with at most one callable")
    if sum(callable(one) for one in given) > 1:
        raise ValueError("at most one callable among the metrics")
    return given


def _objective(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and value):
        return value
    raise ValueError("the name of an objective, or a callable(labels, predictions) -> (gradient, hessian)")


def _callbacks(value: Any) -> list[Any]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(one, xgb.callback.TrainingCallback) for one in given):
        raise ValueError("a list of xgboost.callback.TrainingCallback instances")
    return given


def booster(value: Any) -> xgb.Booster:
    """Converter of a Param that holds a booster: a Booster, a fitted estimator of XGBoost's or model of ours."""
    if hasattr(value, "get_booster"):
        try:
            classes = getattr(value, "classes", None)
            value = boosters.up_to_best(value.get_booster())
            if classes and boosters.classes_of(value) != tuple(classes):  # named by class_labels
                value = boosters.of_bytes(value.save_raw("ubj"))
                boosters.name_classes(value, list(classes))
        except (ParamError, ValueError, TypeError, AttributeError):
            raise ValueError("a fitted model") from None
    if not isinstance(value, xgb.Booster):
        raise ValueError("an xgboost.Booster, or a fitted model that has one (get_booster)")
    return value


def _missing(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise ValueError("a number, NaN included")
    return float(value)


def _features(value: Any) -> str | list[str]:
    return value if isinstance(value, str) and value else params.column_names(value)


def _column(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a column name; '' leaves the column out")
    return value


def _device(value: Any) -> str:
    if value not in ("cpu", "cuda", "gpu"):
        raise ValueError("'cpu' or 'cuda' (which GPU is Spark's to say, for each task)")
    return "cpu" if value == "cpu" else "cuda"


def _feature_types(value: Any) -> Any:
    kinds = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(kinds, (list, tuple)) or not all(one in ("c", "q", "float", "int", "i") for one in kinds):
        raise ValueError(
            "a list with 'c' (categorical), 'q', 'float', 'int' or 'i' for each feature, or a dict by column"
        )
    return dict(value) if isinstance(value, Mapping) else list(kinds)


def _rounds(value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError("a pair of rounds, (begin, end); end 0 means the last one")
    begin, end = (int(params.integer(0)(one)) for one in value)
    return [begin, end]


def _collective(value: Any) -> dict[str, Any]:
    """`xgboost.collective.Config`, of which the gang decides all but the time-out."""
    given = (
        {key: item for key, item in vars(value).items() if item is not None} if hasattr(value, "__dict__") else value
    )
    if not isinstance(given, Mapping) or set(given) - {"retry", "timeout", "tracker_timeout"}:
        raise ValueError("an xgboost.collective.Config with retry or timeouts only: the tracker runs beside rank 0")
    return dict(given)


def _false(value: Any) -> bool:
    if value is not False:
        raise ValueError("False: the tracker runs beside rank 0, where no firewall or Connect server hides it")
    return False


HasBoosterParams: Any = type(
    "HasBoosterParams",
    (KeywordParams,),
    {
        "__doc__": "XGBoost's own parameters.",
        "__module__": __name__,
        **{
            params.camel_case(name): GangParam(name, description(name), _own, None, aliases=ALIASES.get(name, ()))
            for name in booster_names()
        },
    },
)


class HasBoosting(HasBoosterParams):  # type: ignore[misc]
    """What to boost, how long, towards what."""

    nEstimators = GangParam("n_estimators", "Boosting rounds.", params.integer(1), 100, aliases=("num_boost_round",))
    objective = GangParam(
        "objective",
        "The name of an objective, or a callable(labels, predictions) -> (gradient, hessian), given a rank's rows; "
        "with weight_col it takes sample_weight too. By default the task's.",
        _objective,
        None,
        by_value=True,
    )
    evalMetric = GangParam(
        "eval_metric",
        "Names of metrics for history and early stopping; one may be a callable(labels, predictions) -> number, given "
        "the rows of all ranks (a ranker's: those of one query after another). By default the objective's.",
        _metric,
        None,
        by_value=True,
    )
    trainingMetrics = GangParam(
        "training_metrics",
        "Whether the metrics are computed on the training rows too, after each round, for the history. By default "
        "where eval_metric or validation rows are given: it takes about a sixth of a round.",
        params.boolean,
        None,
    )
    earlyStoppingRounds = GangParam(
        "early_stopping_rounds",
        "Rounds without improvement of the last metric on the validation rows after which boosting ends; the model "
        "then has the rounds up to the best one.",
        params.integer(1),
        None,
    )
    callbacks = GangParam(
        "callbacks",
        "xgboost.callback.TrainingCallback instances, called on every rank; where one ends boosting on one "
        "rank, it ends on all.",
        _callbacks,
        [],
        by_value=True,
    )
    xgbModel = GangParam(
        "xgb_model",
        "A Booster, or a fitted model, to go on from; n_estimators are added to its rounds.",
        booster,
        None,
        by_value=True,
    )
    seed = GangParam("seed", "Seeds sampling and the validation draw.", params.integer(0), 0, aliases=("random_state",))
    featureTypes = GangParam(
        "feature_types",
        "'c' for a categorical feature, 'q' for another, in the order of the features, or a dict by column. By default "
        "those are categorical that Spark's column metadata call nominal (StringIndexer, VectorIndexer).",
        _feature_types,
        None,
    )
    enableCategorical = GangParam(
        "enable_categorical", "False: Spark's column metadata make no feature categorical.", params.boolean, True
    )
    featureWeights = GangParam(
        "feature_weights",
        "Weight of each feature where columns are sampled.",
        params.numbers,
        None,
    )
    featureNames = GangParam(
        "feature_names",
        "Names of the features in the booster. By default those of scalar columns.",
        params.column_names,
        None,
    )
    externalMemory = GangParam(
        "external_memory",
        "True: quantised pages stay on the executor's local disk, for shards larger than memory "
        "(xgboost.ExtMemQuantileDMatrix).",
        params.boolean,
        False,
    )
    arbitraryParamsDict = GangParam(
        "arbitrary_params_dict", "Further parameters for the booster.", params.mapping(_own), {}
    )
    forceRepartition = GangParam(
        "force_repartition",
        "For scripts of xgboost.spark: here the DataFrame is repartitioned unless partitioned=True.",
        params.boolean,
        None,
    )
    repartitionRandomShuffle = GangParam(
        "repartition_random_shuffle",
        "True: rows are dealt to ranks by a hash of row and seed, else by turns.",
        params.boolean,
        False,
    )
    launchTrackerOnDriver = GangParam(
        "launch_tracker_on_driver", "For scripts of xgboost.spark; only False.", _false, False
    )
    collCfg = GangParam(
        "coll_cfg",
        "An xgboost.collective.Config; its timeout replaces collective_timeout_s, its retry is how often a connection "
        "is tried.",
        _collective,
        None,
    )


class HasBoosterColumns(KeywordParams):
    """Which columns go in and what the appended ones are called; the same on estimator and model."""

    featuresCol = GangParam(
        "features_col",
        "One vector or array column, or a list of numeric columns. A null number is missing. XGBoost "
        "computes in float32.",
        _features,
        "features",
        aliases=("feature_cols", "features_cols"),
    )
    missing = GangParam(
        "missing",
        "The value that means missing, beside NaN. With 0 sparse vectors are trained as CSR; else what they don't "
        "store is 0, as in a dense vector.",
        _missing,
        float("nan"),
    )
    enableSparseDataOptim = GangParam(
        "enable_sparse_data_optim",
        "True asks for missing=0: sparse vectors are then trained as CSR, as they are for missing=0 without it.",
        params.boolean,
        False,
    )
    baseMarginCol = GangParam(
        "base_margin_col",
        "Column of the margin that each row starts from, in training and in transform.",
        _column,
        None,
    )
    predictionCol = GangParam("prediction_col", "Column of the predicted value.", params.string, "prediction")
    predContribCol = GangParam(
        "pred_contrib_col",
        "Column of the SHAP values of each feature and, last, the bias: a vector; of a classifier, or several "
        "targets, an array of such arrays, one a class (for two classes that of the second). By default none.",
        _column,
        None,
    )
    leafPredictionCol = GangParam(
        "leaf_prediction_col",
        "Column of the leaf that the row falls into in each tree, an array. By default none.",
        _column,
        None,
        aliases=("leaf_col",),
    )
    iterationRange = GangParam(
        "iteration_range", "Rounds to predict with, (begin, end); by default all of the model.", _rounds, None
    )
    importanceType = GangParam(
        "importance_type",
        "Of feature_importances: 'gain', 'weight', 'cover', 'total_gain', 'total_cover'. By default 'gain'; of a "
        "linear booster 'weight'.",
        params.one_of("gain", "weight", "cover", "total_gain", "total_cover"),
        None,
    )


class HasDevice(KeywordParams):
    """Where to compute."""

    device = GangParam(
        "device",
        "'cpu', or 'cuda' for the GPU that Spark assigns to each task; in transform, a task without one uses the CPU.",
        _device,
        "cpu",
    )

    useGpu = GangParam("use_gpu", "True: device='cuda'.", params.boolean, False)

    def _device(self) -> str:
        return "cuda" if self._value(self.useGpu) else str(self._value(self.device))


class HasBoosterLabels(KeywordParams):
    """The columns that training needs beside the features."""

    labelCol = GangParam("label_col", "Label column.", params.string, "label", aliases=("label_cols",))
    weightCol = GangParam("weight_col", "Column of row weights.", _column, None, aliases=("sample_weight_col",))
    validation = GangParam(
        "validation",
        "Rows to hold out: a fraction, drawn by hashed row key (a ranker's: query) and seed, or a boolean column.",
        params.fraction_or_column,
        None,
        aliases=("validation_indicator_col",),
    )


class HasProbabilities(KeywordParams):
    """A classifier's further outputs."""

    probabilityCol = GangParam("probability_col", "Column of class probabilities.", _column, "probability")
    rawPredictionCol = GangParam("raw_prediction_col", "Column of margins.", _column, "rawPrediction")

"""XGBoost's own parameters, read from the installed version, and the keywords around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T

from sparktrain.errors import ParamError
from sparktrain.shards.columns import ColumnPlanner
from sparktrain.xgboost import XGBoostClassifier, XGBoostRanker, XGBoostRegressor, boosters, features
from sparktrain.xgboost.foreign import keywords
from sparktrain.xgboost.installed import booster_names, check_values
from sparktrain.xgboost.model import XGBoostClassifierModel
from sparktrain.xgboost.spec import Features, device_of


def test_every_parameter_of_xgboosts_own_estimators_is_a_keyword() -> None:
    here = set(XGBoostClassifier._keywords) | set(XGBoostClassifier._refused)
    assert set(xgb.XGBClassifier().get_params()) <= here
    assert {"rate_drop", "lambdarank_num_pair_per_sample", "tweedie_variance_power", "quantile_alpha"} <= here
    assert {"num_class", "seed", "nthread"}.isdisjoint(booster_names())


def test_names_of_xgboost_spark_and_of_spark_ml_are_the_same_param(spark: Any) -> None:
    estimator = XGBoostRegressor(features_col="v", num_boost_round=7, eta=0.5, **{"lambda": 2.0})
    assert estimator.n_estimators is estimator.nEstimators
    assert estimator.getNEstimators() == 7
    assert estimator.getOrDefault(estimator.learning_rate) == 0.5
    assert estimator.getRegLambda() == 2.0
    with pytest.raises(AttributeError, match="'XGBoostRegressor' object has no attribute 'max_dept'"):
        _ = estimator.max_dept
    with pytest.raises(ParamError, match="eta and learning_rate are the same parameter"):
        XGBoostRegressor(learning_rate=0.1, eta=0.1)


def test_numpy_values_become_what_json_holds(spark: Any) -> None:
    estimator = XGBoostRegressor(max_depth=np.int64(3), monotone_constraints=np.array([1, 0]))
    assert type(estimator.getMaxDepth()) is int
    assert estimator.getMonotoneConstraints() == [1, 0]


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"max_depth": -1}, "value -1 for Parameter max_depth should be greater equal to 0"),
        ({"tree_method": "best"}, "'best', valid values are"),
        ({"grow_policy": 3}, "valid values are"),
    ],
)
def test_values_that_xgboost_refuses(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamError) as caught:
        check_values(params)
    assert text in str(caught.value)
    assert "Stack trace" not in str(caught.value)


def test_the_rankers_callables_and_the_weights(spark: Any) -> None:
    with pytest.raises(ParamError, match="a ranker takes the name of an objective"):
        XGBoostRanker(qid_col="q", objective=lambda labels, predictions: None)._check_params()
    with pytest.raises(ParamError, match="eval_metric: expected at most one callable"):
        XGBoostRegressor(eval_metric=[max, min])


def test_features_are_described_by_the_schema() -> None:
    nominal = {"ml_attr": {"type": "nominal", "vals": ["a", "b"], "name": "k"}}
    attributes = {"attrs": {"nominal": [{"idx": 2, "vals": ["a"]}], "numeric": [{"idx": 0}], "binary": [{"idx": 1}]}}
    schema = T.StructType(
        [
            T.StructField("k", T.DoubleType(), metadata=nominal),
            T.StructField("x", T.DoubleType()),
            T.StructField("b<", T.DoubleType()),
            T.StructField("v", VectorUDT(), metadata={"ml_attr": {**attributes, "num_attrs": 3}}),
        ]
    )

    def described(*names: str, **given: Any) -> Features:
        spec = ColumnPlanner(schema).features(names, "features_col")[0]
        defaults = {"types": None, "from_metadata": True, "names": None, "weights": None, "missing": 0.0}
        return features.describe(schema, spec, **{**defaults, **given})

    assert described("x", "k") == Features(("x", "k"), None, (1,), None, 0.0)
    assert described("x", "k").types_of(2) == ["q", "c"]
    assert described("x", "b<").names is None  # XGBoost takes no such name
    assert described("v").categorical == (2,)
    assert described("v").types_of(3) == ["q", "q", "c"]
    assert described("v", from_metadata=False).types_of(3) is None
    assert described("x", "k", types={"x": "c"}).types == ("c", "q")
    with pytest.raises(ParamError, match="enable_categorical=False, but feature_types names categorical"):
        described("x", types=["c"], from_metadata=False)
    with pytest.raises(ParamError, match="feature_types by column are for numeric columns"):
        described("v", types={"x": "c"})
    with pytest.raises(ParamError, match="feature_weights has 1 entries for the 2 features"):
        described("x", "k", weights=[1.0])


def test_the_device_is_the_one_spark_assigned() -> None:
    assert device_of("cpu", "cuda") == "cpu"
    assert device_of("cpu", "cpu") == "cpu"
    assert device_of("cuda", "cuda") == "cuda:0"  # of those that the worker sees
    with pytest.raises(ValueError, match="Spark assigns this gang's tasks no GPU"):
        device_of("cuda", "cpu")


def test_what_a_booster_tells() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(50, 2))
    binary = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(matrix, rng.integers(0, 2, 50)), 2)
    assert boosters.classes_of(binary) == (0.0, 1.0)
    boosters.name_classes(binary, [3.0, 7.0])
    again = boosters.of_bytes(binary.save_raw("ubj"))
    assert boosters.classes_of(again) == (3.0, 7.0)
    multi = xgb.train({"objective": "multi:softprob", "num_class": 4}, xgb.DMatrix(matrix, rng.integers(0, 4, 50)), 2)
    assert boosters.classes_of(multi) == (0.0, 1.0, 2.0, 3.0)
    assert boosters.outputs_of(multi) == 4
    linear = xgb.train({"booster": "gblinear"}, xgb.DMatrix(matrix, matrix[:, 0]), 2)
    assert boosters.is_linear(linear)
    assert boosters.outputs_of(linear) == 1


def test_params_of_an_xgboost_spark_model() -> None:
    metadata = {
        "defaultParamMap": {
            "launch_tracker_on_driver": True,
            "featuresCol": "features",
            "features_cols": [],
            "missing": float("nan"),
            "num_workers": 1,
        },
        "paramMap": {"features_cols": ["a", "b"], "predictionCol": "p", "pred_contrib_col": "", "max_depth": 3},
    }
    found = keywords(XGBoostClassifierModel, metadata)
    assert found == {"features_col": ["a", "b"], "prediction_col": "p", "max_depth": 3, "num_proc": 1}

"""XGBoost's own parameters, read from the installed version, and the keywords around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T

from sparktrain.errors import ColumnError, ParamError
from sparktrain.estimator import Payload
from sparktrain.shards.columns import ColumnPlanner
from sparktrain.xgboost import XGBoostClassifier, XGBoostRanker, XGBoostRegressor, boosters, features
from sparktrain.xgboost.foreign import keywords
from sparktrain.xgboost.installed import booster_names, check_values
from sparktrain.xgboost.model import XGBoostClassifierModel, XGBoostRegressorModel
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


SCHEMA = T.StructType(
    [*(T.StructField(name, T.DoubleType()) for name in ("a", "b", "y")), T.StructField("v", VectorUDT())]
)


def planned(kind: type[Any], **keywords: Any) -> Payload:
    """What the driver makes of an estimator before it asks Spark for anything."""
    estimator = kind(**{"features_col": ["a", "b"], "label_col": "y", **keywords})
    found: Payload = estimator._payload(estimator._plan(SCHEMA), SCHEMA)
    return found


def trained(objective: str, labels: Any = (0, 1, 1, 0), names: Any = ("a", "b"), **params: Any) -> xgb.Booster:
    matrix = xgb.DMatrix(np.arange(8).reshape(4, 2), labels, feature_names=None if names is None else list(names))
    return xgb.train({"objective": objective, **params}, matrix, 1)


def test_strings_are_taken_for_numbers_as_xgboost_takes_them(spark: Any) -> None:
    for name, value in (("max_depth", 8), ("max_leaves", 40)):
        as_text, as_number = (planned(XGBoostRegressor, **{name: one}) for one in (str(value), value))
        assert as_text.result_bytes_at_most == as_number.result_bytes_at_most
    with pytest.raises(ParamError, match="max_depth expect int but value='deep'"):
        planned(XGBoostRegressor, max_depth="deep")


def test_none_is_as_not_given(spark: Any) -> None:
    assert np.isnan(XGBoostRegressor(missing=None).getMissing())
    small = planned(XGBoostRegressor, arbitrary_params_dict={"max_depth": None}, max_depth=3).small["spec"]
    assert small.params["max_depth"] == 3


@pytest.mark.parametrize(
    ("kind", "keywords", "text"),
    [
        (XGBoostRegressor, {"objective": "survival:aft"}, "takes two bounds a row, for which there are no columns"),
        (XGBoostRegressor, {"features_col": ["a", "b", "a"]}, "features_col has 'a' more than once"),
        (XGBoostRegressor, {"feature_names": ["p", "p"]}, "feature_names has 'p' more than once"),
        (XGBoostRegressor, {"features_col": "v", "feature_names": ["p<"]}, "takes no name with '[', ']' or '<', got"),
        (XGBoostRegressor, {"interaction_constraints": [[0, 7]]}, "names feature 7, but the features are 0 to 1"),
        (XGBoostRegressor, {"interaction_constraints": "[[0, 7]]"}, "names feature 7, but the features are 0 to 1"),
        (XGBoostRegressor, {"interaction_constraints": [[-1]], "features_col": "v"}, "names feature -1, but features"),
        (XGBoostRegressor, {"interaction_constraints": [0, 1]}, "interaction_constraints: expected a list of lists"),
        (XGBoostRegressor, {"interaction_constraints": [["c"]]}, "constraints name 'c', but the features are ['a', "),
        (XGBoostRegressor, {"monotone_constraints": (1, 0, 1)}, "monotone_constraints has 3 entries for 2 features"),
        (XGBoostRegressor, {"monotone_constraints": "(1,0,1)"}, "monotone_constraints has 3 entries for 2 features"),
        (XGBoostRegressor, {"monotone_constraints": {"c": 1}}, "constraints name 'c', but the features are ['a', "),
        (
            XGBoostClassifier,
            {"arbitrary_params_dict": {"objective": "reg:squarederror"}},
            "objective='reg:squarederror' is not a classifier's",
        ),
    ],
)
def test_settings_that_do_not_go_with_the_features_or_the_task(
    kind: type[Any], keywords: dict[str, Any], text: str, spark: Any
) -> None:
    with pytest.raises(ParamError) as caught:
        planned(kind, **keywords)
    assert text in str(caught.value)


def test_a_model_to_go_on_from_must_fit(spark: Any) -> None:
    squared, binary = trained("reg:squarederror"), trained("binary:logistic")
    planned(XGBoostRegressor, xgb_model=squared)
    planned(XGBoostRegressor, xgb_model=squared, objective="reg:absoluteerror")
    planned(XGBoostRegressor, xgb_model=trained("reg:squarederror", names=None))
    planned(XGBoostRegressor, xgb_model=squared, features_col="v", feature_names=["a", "b"])
    planned(XGBoostRegressor, xgb_model=binary, objective=lambda labels, predictions: None)
    planned(XGBoostClassifier, xgb_model=binary)
    planned(XGBoostClassifier, xgb_model=trained("multi:softmax", num_class=2), objective="multi:softprob")
    for kind, given, text in (
        (
            XGBoostRegressor,
            {"features_col": ["b", "a"]},
            r"trained on \['a', 'b'\], in this order, but .* \['b', 'a'\]",
        ),
        (XGBoostRegressor, {"features_col": ["a", "y"], "label_col": "b"}, r"but .* are \['a', 'y'\]"),
        (XGBoostRegressor, {"features_col": ["a"]}, "trained on 2 features, but those of features_col are 1"),
        (XGBoostRegressor, {"features_col": "v"}, "the features of features_col have no names"),
        (XGBoostRegressor, {"xgb_model": binary}, "'binary:logistic', whose margins mean something else than those"),
        (XGBoostRegressor, {"objective": "count:poisson"}, "than those of objective='count:poisson'"),
        (XGBoostClassifier, {}, "objective='reg:squarederror', which is not a classifier's"),
        (XGBoostClassifier, {"xgb_model": binary, "objective": "multi:softprob"}, "margins mean something else"),
    ):
        with pytest.raises(ParamError, match=f"xgb_model was {text}" if text.startswith("trained") else text):
            planned(kind, **{"xgb_model": squared, **given})


def test_a_cox_model_is_one_by_rank_and_its_metric_of_one_rank(spark: Any) -> None:
    def gang(num_proc: int, **keywords: Any) -> None:
        estimator = XGBoostRegressor(features_col=["a"], label_col="y", objective="survival:cox", **keywords)
        plan = estimator._plan(SCHEMA)
        estimator._gang_spec(spark, num_proc, plan, estimator._payload(plan, SCHEMA))

    gang(1, training_metrics=True)
    with pytest.warns(UserWarning, match="survival:cox' with num_proc=2: XGBoost compares a row with those of its own"):
        gang(2)
    own = {"eval_metric": [lambda labels, predictions: 0.0]}
    for metrics in ({"validation": 0.1}, {"eval_metric": "cox-nloglik"}, own):
        with pytest.raises(ParamError, match="'cox-nloglik', survival:cox's default: XGBoost computes it in one proc"):
            gang(2, **metrics)
    for metrics in ({"eval_metric": "rmse"}, {**own, "disable_default_eval_metric": True}):
        with pytest.warns(UserWarning, match="stratified by rank"):
            gang(2, **metrics)


def test_a_margin_in_transform_has_a_value_for_each_output(spark: Any) -> None:
    fields = [T.StructField("m", T.ArrayType(T.DoubleType()))]
    schema = T.StructType([*SCHEMA.fields, *fields])
    several = trained("multi:softprob", labels=[0, 1, 2, 2], num_class=3)
    for booster, shape in ((trained("reg:squarederror"), (1,)), (several, (3,))):
        model = XGBoostRegressorModel(model=booster, features_col=["a", "b"], base_margin_col="m")
        assert model._input_plan(schema).specs("margin")[0].shape == shape
    with pytest.raises(ColumnError, match="base_margin_col: 'y' is a number, but the model has 3 outputs"):
        XGBoostRegressorModel(model=several, features_col=["a", "b"], base_margin_col="y")._input_plan(schema)


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

"""The XGBoost estimators on real Spark: two ranks, every kind of feature, every task, beside plain XGBoost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import OneHotEncoder, StringIndexer, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import SparseVector, Vectors
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparktrain.errors import ColumnError, DataError, GangError, ParamError, PersistenceError, RankFailed
from sparktrain.xgboost import (
    XGBoostClassifier,
    XGBoostClassifierModel,
    XGBoostRanker,
    XGBoostRankerModel,
    XGBoostRegressor,
    XGBoostRegressorModel,
)

pytestmark = pytest.mark.integration

NAMES = ["a", "b", "c"]
SETTINGS: dict[str, Any] = {"n_estimators": 8, "max_depth": 4, "learning_rate": 0.4}
COMMON: dict[str, Any] = {**SETTINGS, "num_workers": 2, "verbose": 0}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """400 rows of three features of few values, with nulls in ``b``, and labels for each task."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 10, (400, 3)).astype(float)
    score = features[:, 0] - 0.5 * features[:, 1] + 3 * (features[:, 2] > 6)
    made = pd.DataFrame(features, columns=NAMES)
    made["y"] = score
    made["kind"] = np.digitize(score, np.quantile(score, [0.4, 0.8])) + 3
    made["flag"] = np.where(score > 2, 7.0, 2.0)
    made["w"] = rng.integers(1, 4, 400).astype(float)
    made["colour"] = np.array(["red", "green", "blue", "grey"])[(features[:, 0] % 4).astype(int)]
    made["id"] = np.arange(400)
    return made


@pytest.fixture(scope="module")
def df(spark: SparkSession, frame: pd.DataFrame) -> DataFrame:
    """The rows, with the features as a dense vector too; ``b`` is null in every tenth row."""
    made = spark.createDataFrame(frame).withColumn("b0", F.col("b"))
    made = VectorAssembler(inputCols=["a", "b0", "c"], outputCol="features").transform(made)
    return made.withColumn("b", F.when(F.col("id") % 10 != 0, F.col("b"))).repartition(3).cache()


def column(df: DataFrame, name: str) -> np.ndarray[Any, Any]:
    """A column's values by id; vectors and arrays as rows."""
    return np.array([row[0] for row in df.orderBy("id").select(name).collect()])


def plain(frame: pd.DataFrame, label: str, **params: Any) -> xgb.Booster:
    """One process of plain XGBoost on the dense features."""
    given = {"max_depth": 4, "learning_rate": 0.4, "nthread": 1, **params}
    return xgb.train(given, xgb.QuantileDMatrix(frame[NAMES].to_numpy(np.float32), frame[label]), 8)


def test_a_regressor_over_a_vector_and_over_scalars_with_nulls(df: DataFrame, frame: pd.DataFrame) -> None:
    by_vector = XGBoostRegressor(features_col="features", label_col="y", **COMMON).fit(df)
    expected = plain(frame, "y").inplace_predict(frame[NAMES].to_numpy(np.float32))
    predicted = column(by_vector.transform(df), "prediction")
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    assert by_vector.history == [{"round": number} for number in range(1, 9)]  # nobody asked for a metric

    by_scalars = XGBoostRegressor(features_col=NAMES, label_col="y", weight_col="w", eval_metric="mae", **COMMON).fit(
        df
    )
    holed = frame.assign(b=frame["b"].where(frame["id"] % 10 != 0))
    reference = xgb.XGBRegressor(**SETTINGS, tree_method="hist").fit(holed[NAMES], frame["y"], sample_weight=frame["w"])
    np.testing.assert_allclose(
        column(by_scalars.transform(df), "prediction"), reference.predict(holed[NAMES]), atol=1e-5
    )
    assert by_scalars.get_booster().feature_names == NAMES
    np.testing.assert_allclose(by_scalars.feature_importances, reference.feature_importances_, atol=1e-5)
    assert by_scalars.featureImportances.size == 3
    assert set(by_scalars.get_feature_importances()) == set(NAMES)
    assert by_scalars.history[-1]["mae"] < by_scalars.history[0]["mae"]
    assert by_scalars.training_summary.train_objective_history["mae"][0] == by_scalars.history[0]["mae"]
    rmse = RegressionEvaluator(labelCol="y").evaluate(by_scalars.transform(df))
    assert rmse < 1.0


def test_classes_in_the_users_values_with_one_missing_from_a_shard(
    spark: SparkSession, df: DataFrame, frame: pd.DataFrame, tmp_path: Path
) -> None:
    without_5 = df.filter("kind < 5").repartition(1)
    shards = without_5.union(df.filter("kind = 5").repartition(1))
    shards = shards.repartitionById(2, (F.col("kind") >= 5).cast("int"))  # rank 1 has nothing but 5
    model = XGBoostClassifier(features_col="features", label_col="kind", partitioned=True, **COMMON).fit(shards)
    assert model.classes == (3.0, 4.0, 5.0)
    assert model.numClasses == 3
    predicted = model.transform(df)
    assert [field.name for field in predicted.schema.fields[-3:]] == ["rawPrediction", "probability", "prediction"]
    codes = plain(frame.assign(code=frame["kind"] - 3), "code", objective="multi:softprob", num_class=3)
    expected = codes.inplace_predict(frame[NAMES].to_numpy(np.float32))
    np.testing.assert_allclose(column(predicted, "probability"), expected, atol=1e-5)
    np.testing.assert_array_equal(column(predicted, "prediction"), expected.argmax(axis=1) + 3.0)
    accuracy = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy").evaluate(predicted)
    assert accuracy > 0.9

    model.write().overwrite().save(str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.ubj").stat().st_size > 1000
    loaded = XGBoostClassifierModel.load(str(tmp_path / "model"))
    assert loaded.classes == (3.0, 4.0, 5.0)
    df.write.parquet(str(tmp_path / "rows"))
    again = loaded.transform(spark.read.parquet(str(tmp_path / "rows")))
    np.testing.assert_array_equal(column(again, "probability"), column(predicted, "probability"))
    with pytest.raises(PersistenceError, match=r"load it with XGBoostClassifierModel\.load"):
        XGBoostRegressorModel.load(str(tmp_path / "model"))


def test_two_classes_and_their_evaluator(df: DataFrame, frame: pd.DataFrame) -> None:
    model = XGBoostClassifier(features_col=["features"], label_col="flag", raw_prediction_col="raw", **COMMON).fit(df)
    predicted = model.transform(df)
    positive = plain(frame.assign(code=(frame["flag"] > 2) * 1), "code", objective="binary:logistic")
    expected = positive.inplace_predict(frame[NAMES].to_numpy(np.float32))
    np.testing.assert_allclose(column(predicted, "probability")[:, 1], expected, atol=1e-5)
    assert set(column(predicted, "prediction")) == {2.0, 7.0}
    indexed = predicted.withColumn("code", (F.col("flag") > 2).cast("double"))
    evaluator = BinaryClassificationEvaluator(labelCol="code", rawPredictionCol="raw")
    assert evaluator.evaluate(indexed) > 0.95
    only = model.copy().setRawPredictionCol("").setProbabilityCol("").setPredictionCol("answer").transform(df)
    assert only.columns == [*df.columns, "answer"]


def test_one_hot_vectors_stay_sparse_and_mean_what_dense_ones_mean(df: DataFrame) -> None:
    indexer = StringIndexer(inputCol="colour", outputCol="code")
    encoder = OneHotEncoder(inputCol="code", outputCol="hot", dropLast=False)
    stages = [indexer, encoder, VectorAssembler(inputCols=["hot", "a", "c"], outputCol="wide")]
    rows = Pipeline(stages=stages).fit(df).transform(df)
    assert any(isinstance(row.hot, SparseVector) for row in rows.select("hot").take(5))
    to_dense = F.udf(lambda vector: Vectors.dense(vector.toArray()), rows.schema["wide"].dataType)
    dense = rows.withColumn("wide", to_dense("wide"))
    matrix = column(dense, "wide").astype(np.float32)
    labels = column(rows, "y")
    for missing in (float("nan"), 0.0):
        estimator = XGBoostRegressor(features_col="wide", label_col="y", missing=missing, **COMMON)
        if missing == 0:
            estimator.setEnableSparseDataOptim(True)
        data = xgb.QuantileDMatrix(matrix, labels, missing=missing)
        booster = xgb.train({"max_depth": 4, "learning_rate": 0.4}, data, 8)
        expected = booster.inplace_predict(matrix, missing=missing)
        model = estimator.fit(rows)
        for given in (rows, dense):
            np.testing.assert_allclose(column(model.transform(given), "prediction"), expected, atol=1e-5)
        np.testing.assert_allclose(column(estimator.fit(dense).transform(rows), "prediction"), expected, atol=1e-5)


def test_categories_are_read_from_the_metadata(df: DataFrame, frame: pd.DataFrame) -> None:
    rows = StringIndexer(inputCol="colour", outputCol="code").fit(df).transform(df)
    rows = VectorAssembler(inputCols=["code", "c"], outputCol="both").transform(rows)
    codes = np.stack([column(rows, "code"), frame["c"]], axis=1).astype(np.float32)
    data = xgb.QuantileDMatrix(codes, frame["y"], feature_types=["c", "q"], enable_categorical=True)
    params = {"max_depth": 4, "learning_rate": 0.4, "max_cat_to_onehot": 1}
    expected = xgb.train(params, data, 8).inplace_predict(codes)
    for features in (["code", "c"], "both"):
        model = XGBoostRegressor(features_col=features, label_col="y", max_cat_to_onehot=1, **COMMON).fit(rows)
        assert model.get_booster().feature_types == ["c", "q"]
        np.testing.assert_allclose(column(model.transform(rows), "prediction"), expected, atol=1e-5)
    numeric = XGBoostRegressor(features_col="both", label_col="y", enable_categorical=False, **COMMON).fit(rows)
    assert numeric.get_booster().feature_types is None
    declared = XGBoostRegressor(features_col=["a", "c"], label_col="y", feature_types={"a": "c"}, **COMMON).fit(rows)
    assert declared.get_booster().feature_types == ["c", "q"]


def test_a_ranker_keeps_queries_whole(spark: SparkSession) -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 20, (50, 2)).astype(float)
    rows = pd.DataFrame({"x": features.tolist(), "query": np.repeat(np.arange(10) * 3, 5), "id": np.arange(50)})
    rows["relevance"] = (features[:, 0] > 12).astype(int)
    df = spark.createDataFrame(rows.sample(frac=1, random_state=1)).repartition(4).cache()
    ranker = XGBoostRanker(features_col="x", label_col="relevance", qid_col="query", eval_metric="ndcg@2", **COMMON)
    model = ranker.fit(df)
    given = df.toPandas().sort_values("query", kind="stable")  # within a query, rows of equal score keep their order
    data = xgb.DMatrix(np.array(given["x"].tolist()), given["relevance"], qid=given["query"])
    reference = xgb.train({"objective": "rank:ndcg", "max_depth": 4, "learning_rate": 0.4}, data, 8)
    expected = reference.inplace_predict(features)
    np.testing.assert_allclose(column(model.transform(df), "prediction"), expected, atol=1e-5)
    assert model.history[-1]["ndcg@2"] > 0.9

    one = ranker.fit(df.withColumn("query", F.lit(1)))
    assert len(one.history) == 8
    with pytest.raises(DataError, match="queries have rows in several partitions"):
        ranker.copy().setPartitioned(True).fit(df.repartition(2))
    with pytest.raises(ColumnError, match="qid_col: 'x' is array<double>; a query id is a whole number"):
        ranker.copy().setQidCol("x").fit(df)
    with pytest.raises(ParamError, match="XGBoostRanker needs qid_col"):
        XGBoostRanker(label_col="relevance").fit(df.withColumnRenamed("x", "features"))


def test_four_rows_of_which_one_is_for_validation(spark: SparkSession) -> None:
    rows = [(float(number), float(number), number == 2) for number in range(4)]
    df = spark.createDataFrame(rows, ["x", "y", "held"])
    model = XGBoostRegressor(
        features_col=["x"],
        label_col="y",
        validation_indicator_col="held",
        early_stopping_rounds=2,
        n_estimators=5,
        num_workers=3,
        verbose=0,
    ).fit(df)
    assert model.history[0]["val_rmse"] == pytest.approx(abs(2 - 4 / 3), rel=0.5)
    with pytest.raises(DataError, match="validation takes all 4 rows"):
        XGBoostRegressor(features_col=["x"], label_col="y", validation="held", num_proc=2, verbose=0).fit(
            df.withColumn("held", F.lit(True))
        )


def test_early_stopping_is_one_and_the_same_everywhere(df: DataFrame, frame: pd.DataFrame, tmp_path: Path) -> None:
    noisy = df.withColumn("noise", (F.xxhash64("id") % 2 == 0).cast("int"))
    model = XGBoostClassifier(
        features_col="features",
        label_col="noise",
        validation=0.3,
        early_stopping_rounds=3,
        **{**COMMON, "n_estimators": 60},
    ).fit(noisy)
    losses = [entry["val_logloss"] for entry in model.history]
    booster = model.get_booster()
    assert booster.num_boosted_rounds() == int(np.argmin(losses)) + 1 < len(losses)
    expected = booster.predict(xgb.DMatrix(frame[NAMES].to_numpy(np.float32)))
    np.testing.assert_allclose(column(model.transform(noisy), "probability")[:, 1], expected, atol=1e-6)
    model.save(str(tmp_path / "model"))
    loaded = XGBoostClassifierModel.load(str(tmp_path / "model"))
    assert loaded.history == model.history
    assert loaded.get_booster().best_iteration == booster.best_iteration
    np.testing.assert_array_equal(
        column(loaded.transform(noisy), "probability"), column(model.transform(noisy), "probability")
    )


def test_leaves_contributions_and_iteration_range(df: DataFrame, frame: pd.DataFrame) -> None:
    matrix = xgb.DMatrix(frame[NAMES].to_numpy(np.float32))
    regressor = XGBoostRegressor(
        features_col="features", label_col="y", pred_contrib_col="shap", leaf_prediction_col="leaf", **COMMON
    ).fit(df)
    out = regressor.transform(df)
    booster = regressor.get_booster()
    np.testing.assert_allclose(column(out, "shap"), booster.predict(matrix, pred_contribs=True), atol=1e-6)
    np.testing.assert_allclose(column(out, "shap").sum(axis=1), column(out, "prediction"), atol=1e-4)
    np.testing.assert_array_equal(column(out, "leaf"), booster.predict(matrix, pred_leaf=True))
    first = regressor.copy().setIterationRange((0, 3)).transform(df)
    np.testing.assert_allclose(column(first, "prediction"), booster.predict(matrix, iteration_range=(0, 3)), atol=1e-6)
    with pytest.raises(ParamError, match=r"iteration_range=\(0, 9\), but the model has 8 rounds"):
        regressor.copy().setIterationRange((0, 9)).transform(df)

    classifier = XGBoostClassifier(features_col="features", label_col="kind", pred_contrib_col="shap", **COMMON).fit(df)
    values = column(classifier.transform(df), "shap")
    assert values.shape == (400, 3, 4)
    np.testing.assert_allclose(values, classifier.get_booster().predict(matrix, pred_contribs=True), atol=1e-6)


def test_base_margin_targets_quantiles_and_callables(df: DataFrame, frame: pd.DataFrame) -> None:
    features = frame[NAMES].to_numpy(np.float32)
    margins = df.withColumn("start", F.col("y") * 0.5)
    model = XGBoostRegressor(features_col="features", label_col="y", base_margin_col="start", **COMMON).fit(margins)
    data = xgb.DMatrix(features, frame["y"], base_margin=frame["y"] * 0.5)
    expected = xgb.train({"max_depth": 4, "learning_rate": 0.4}, data, 8).predict(data)
    np.testing.assert_allclose(column(model.transform(margins), "prediction"), expected, atol=1e-5)
    with pytest.raises(ColumnError, match="base_margin_col: the DataFrame has no column 'start'"):
        model.transform(df)

    both = df.withColumn("both", F.array("y", -F.col("y")))
    two = XGBoostRegressor(features_col="features", label_col="both", **COMMON).fit(both).transform(both)
    predicted = column(two, "prediction")
    assert predicted.shape == (400, 2)
    np.testing.assert_allclose(predicted[:, 0], -predicted[:, 1], atol=0.1)
    quantiles = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]}
    spread = XGBoostRegressor(features_col="features", label_col="y", **quantiles, **COMMON).fit(df).transform(df)
    low, high = column(spread, "prediction").T
    assert (low <= high + 1e-3).mean() > 0.9

    def half_squared(labels: Any, predictions: Any) -> Any:
        return predictions - labels, np.ones_like(predictions)

    def largest(labels: Any, predictions: Any) -> float:
        return float(np.abs(labels - predictions).max())

    own = XGBoostRegressor(
        features_col="features", label_col="y", objective=half_squared, eval_metric=["rmse", largest], **COMMON
    ).fit(df)
    apart = np.abs(column(own.transform(df), "prediction") - frame["y"]).max()
    assert own.history[-1]["largest"] == pytest.approx(apart, rel=1e-5)
    with pytest.raises(ParamError, match="objective: with weight_col the callable must take sample_weight"):
        XGBoostRegressor(features_col="features", label_col="y", weight_col="w", objective=half_squared).fit(df)


def test_a_user_error_in_a_callable_is_told_with_its_traceback(df: DataFrame) -> None:
    def faulty(labels: Any, predictions: Any) -> float:
        raise ZeroDivisionError("in the user's metric")

    with pytest.raises(RankFailed, match=r"ZeroDivisionError: in the user's metric(.|\n)*in faulty"):
        XGBoostRegressor(features_col="features", label_col="y", eval_metric=faulty, **COMMON).fit(df)


def test_constraints_by_position_and_by_name(df: DataFrame, tmp_path: Path) -> None:
    estimator = XGBoostRegressor(
        features_col=["a", "c"],
        label_col="y",
        monotone_constraints=(-1, 0),
        interaction_constraints=[[0], [1]],
        **COMMON,
    )
    estimator.save(str(tmp_path / "estimator"))
    by_name = estimator.copy().setMonotoneConstraints({"a": -1}).setInteractionConstraints([["a"], ["c"]])
    found = [
        column(one.fit(df).transform(df), "prediction")
        for one in (estimator, XGBoostRegressor.load(str(tmp_path / "estimator")), by_name)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    free = estimator.copy().setMonotoneConstraints((0, 0)).fit(df).transform(df)
    assert np.abs(column(free, "prediction") - found[0]).max() > 0.1


def test_going_on_from_a_model_that_stopped_early(df: DataFrame) -> None:
    noisy = df.withColumn("noise", F.xxhash64("id") % 2)
    common = {**COMMON, "features_col": "features", "label_col": "noise", "learning_rate": 0.9}
    first = XGBoostRegressor(**{**common, "n_estimators": 40}, validation=0.3, early_stopping_rounds=2).fit(noisy)
    rounds = first.get_booster().num_boosted_rounds()
    assert first.best_iteration == rounds - 1 < 39
    for start in (first, first.get_booster()):
        on = XGBoostRegressor(**common, xgb_model=start).fit(noisy)
        assert on.get_booster().num_boosted_rounds() == rounds + 8
    assert first.best_iteration == rounds - 1


def test_going_on_from_a_model_and_callbacks(df: DataFrame, tmp_path: Path) -> None:
    first = XGBoostClassifier(features_col="features", label_col="kind", **COMMON).fit(df)
    whole = XGBoostClassifier(features_col="features", label_col="kind", **{**COMMON, "n_estimators": 16}).fit(df)
    on = XGBoostClassifier(features_col="features", label_col="kind", xgb_model=first, **COMMON)
    on.save(str(tmp_path / "estimator"))
    for estimator in (on, XGBoostClassifier.load(str(tmp_path / "estimator"))):
        second = estimator.fit(df)
        assert second.get_booster().num_boosted_rounds() == 16
        assert len(second.history) == 8
        np.testing.assert_allclose(
            column(second.transform(df), "probability"), column(whole.transform(df), "probability"), atol=1e-5
        )
    few = on.fit(df.filter("kind < 5"))  # a class that these rows lack is still the model's
    assert few.classes == (3.0, 4.0, 5.0)

    decay = xgb.callback.LearningRateScheduler([0.4] * 4 + [1e-9] * 4)
    slowed = XGBoostRegressor(features_col="features", label_col="y", callbacks=[decay], eval_metric="rmse", **COMMON)
    assert slowed.fit(df).history[-1]["rmse"] == pytest.approx(slowed.fit(df).history[4]["rmse"], rel=1e-4)


def test_boosters_of_others_become_models(
    spark: SparkSession, df: DataFrame, frame: pd.DataFrame, tmp_path: Path
) -> None:
    codes = frame["kind"] - 3
    theirs = xgb.XGBClassifier(n_estimators=40, early_stopping_rounds=2, learning_rate=0.9)
    theirs.fit(frame[NAMES].to_numpy(), codes, eval_set=[(frame[NAMES].to_numpy()[::-1], codes)], verbose=False)
    wrapped = XGBoostClassifierModel(model=theirs, features_col="features", class_labels=[3, 4, 5])
    wrapped.save(str(tmp_path / "wrapped"))
    for model in (wrapped, XGBoostClassifierModel.load(str(tmp_path / "wrapped"))):
        predicted = model.transform(df)
        np.testing.assert_allclose(
            column(predicted, "probability"), theirs.predict_proba(frame[NAMES].to_numpy()), atol=1e-5
        )
        assert set(column(predicted, "prediction")) == {3.0, 4.0, 5.0}
    booster = plain(frame, "y")
    plain_model = XGBoostRegressorModel(model=booster, features_col="features")
    np.testing.assert_allclose(
        column(plain_model.transform(df), "prediction"),
        booster.inplace_predict(frame[NAMES].to_numpy(np.float32)),
        atol=1e-6,
    )
    named = xgb.train({}, xgb.DMatrix(frame[NAMES], frame["y"]), 2)
    for names, text in (
        (["b0", "a", "c"], "in this order"),
        (["a", "c"], "names 2 columns, but the model was trained on 3"),
    ):
        with pytest.raises(ParamError, match=text):
            XGBoostRegressorModel(model=named, features_col=names).transform(df)
    said = XGBoostRegressorModel(model=named, features_col=["a", "b0", "c"], feature_names=NAMES).transform(df)
    np.testing.assert_allclose(column(said, "prediction"), named.predict(xgb.DMatrix(frame[NAMES])), atol=1e-6)
    with pytest.raises(ParamError, match=r"iteration_range=\(2, 1\): the end must be above the begin"):
        XGBoostRegressorModel(model=named, features_col=["a", "b", "c"], iteration_range=(2, 1)).transform(df)
    with pytest.raises(ParamError, match="the booster's objective, 'reg:squarederror', gives no classes"):
        XGBoostClassifierModel(model=named, features_col=["a", "b", "c"]).transform(df)
    with pytest.raises(ParamError, match="model: expected a fitted model"):
        XGBoostRegressorModel(model=xgb.XGBRegressor())
    with pytest.raises(ParamError, match="class_labels has 2 values, but the booster has 3 classes"):
        XGBoostClassifierModel(model=theirs, features_col="features", class_labels=[3, 4]).transform(df)


@pytest.mark.filterwarnings("ignore")
def test_a_script_of_xgboost_spark_changes_its_import_only(df: DataFrame, tmp_path: Path) -> None:
    from xgboost.spark import SparkXGBClassifier, SparkXGBRegressor

    keywords: dict[str, Any] = {
        "features_col": "features",
        "label_col": "flag",
        "weight_col": "w",
        "prediction_col": "p",
        "probability_col": "q",
        "raw_prediction_col": "r",
        "pred_contrib_col": "shap",
        "validation_indicator_col": "held",
        "num_workers": 2,
        "missing": 0.0,
        "enable_sparse_data_optim": True,
        "force_repartition": True,
        "repartition_random_shuffle": True,
        "launch_tracker_on_driver": False,
        "device": "cpu",
        "max_bin": 64,
        "early_stopping_rounds": 2,
        "eval_metric": "logloss",
        "verbose": False,
        **{**SETTINGS, "n_estimators": 40, "learning_rate": 0.9},
    }
    rows = df.withColumn("held", F.col("id") % 5 == 0).withColumn("flag", (F.col("flag") > 2).cast("int"))
    theirs = SparkXGBClassifier(**keywords).fit(rows)
    ours = XGBoostClassifier(**keywords).fit(rows)
    schemas = [model.transform(rows).schema for model in (ours, theirs)]
    kinds = [{field.name: field.dataType.simpleString() for field in schema} for schema in schemas]
    assert kinds[0] == kinds[1]
    np.testing.assert_allclose(column(ours.transform(rows), "q"), column(theirs.transform(rows), "q"), atol=1e-5)
    np.testing.assert_allclose(column(ours.transform(rows), "shap"), column(theirs.transform(rows), "shap"), atol=1e-5)
    estimator = XGBoostClassifier(**keywords)
    assert estimator.getNumWorkers() == 2
    assert estimator.validationIndicatorCol is estimator.validation
    assert estimator.getFeaturesCol() == "features"
    assert estimator.set_device("cpu").getDevice() == "cpu"
    assert ours.getMaxDepth() == 4
    grid = ParamGridBuilder().addGrid(estimator.max_depth, [1, 2]).build()
    assert [estimator.copy(params).getMaxDepth() for params in grid] == [1, 2]

    theirs.write().overwrite().save(str(tmp_path / "classifier"))
    loaded = XGBoostClassifierModel.load(str(tmp_path / "classifier"))
    assert loaded.get_booster().num_boosted_rounds() == theirs.get_booster().best_iteration + 1
    assert loaded.get_booster().num_boosted_rounds() < theirs.get_booster().num_boosted_rounds()
    np.testing.assert_allclose(column(loaded.transform(rows), "q"), column(theirs.transform(rows), "q"), atol=1e-6)
    regressor = SparkXGBRegressor(features_col=NAMES, label_col="y", num_workers=2, **SETTINGS).fit(df)
    regressor.save(str(tmp_path / "regressor"))
    with pytest.raises(PersistenceError, match=r"load it with XGBoostRegressorModel\.load"):
        XGBoostRankerModel.load(str(tmp_path / "regressor"))
    ours = XGBoostRegressorModel.load(str(tmp_path / "regressor"))
    assert ours.getFeaturesCol() == NAMES
    np.testing.assert_allclose(
        column(ours.transform(df), "prediction"), column(regressor.transform(df), "prediction"), atol=1e-6
    )


@pytest.mark.slow
def test_cross_validation_and_pipelines_are_saved(df: DataFrame, tmp_path: Path) -> None:
    estimator = XGBoostClassifier(features_col="features", label_col="kind", **COMMON)
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b0", "c"], outputCol="v"), estimator])
    estimator.setFeaturesCol("v")
    objectives = ["multi:softprob", "multi:softmax"]
    grid = ParamGridBuilder().addGrid(estimator.maxDepth, [1, 4]).addGrid(estimator.objective, objectives).build()
    evaluator = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy")
    tuner = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2)
    found = tuner.fit(df)
    assert max(found.avgMetrics[2:]) > max(found.avgMetrics[:2])
    found.write().overwrite().save(str(tmp_path / "tuned"))
    again = CrossValidatorModel.load(str(tmp_path / "tuned"))
    np.testing.assert_array_equal(column(again.transform(df), "prediction"), column(found.transform(df), "prediction"))
    fitted = pipeline.fit(df)
    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    np.testing.assert_array_equal(
        column(loaded.transform(df), "prediction"), column(fitted.transform(df), "prediction")
    )
    pipeline.write().overwrite().save(str(tmp_path / "unfitted"))
    assert Pipeline.load(str(tmp_path / "unfitted")).getStages()[1].getMaxDepth() == 4


def test_external_memory_leaves_no_files(df: DataFrame, frame: pd.DataFrame, tmp_path: Path) -> None:
    model = XGBoostRegressor(features_col="features", label_col="y", external_memory=True, **COMMON).fit(df)
    expected = plain(frame, "y").inplace_predict(frame[NAMES].to_numpy(np.float32))
    np.testing.assert_allclose(column(model.transform(df), "prediction"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"max_dept": 3}, ParamError, "no parameter 'max_dept'; did you mean 'max_depth'?"),
        ({"max_depth": "deep"}, ParamError, "Invalid Parameter format for max_depth expect int but value='deep'"),
        ({"subsample": 3.0}, ParamError, "value 3 for Parameter subsample exceed bound"),
        ({"objective": "reg:nothing"}, ParamError, "Unknown objective function: `reg:nothing`"),
        ({"eval_metric": "nothing"}, ParamError, "Unknown metric function nothing"),
        ({"n_jobs": 4}, ParamError, "takes no 'n_jobs': a rank's threads are the cores Spark gives its task"),
        ({"eval_set": []}, ParamError, "takes no 'eval_set': mark the rows: validation_indicator_col"),
        ({"tree_method": "exact"}, ParamError, "tree_method='exact': XGBoost trains it in one process only"),
        (
            {"booster": "gblinear", "max_depth": None},
            ParamError,
            "booster='gblinear': XGBoost trains it in one process only",
        ),
        ({"early_stopping_rounds": 3}, ParamError, "early_stopping_rounds needs validation rows"),
        ({"enable_sparse_data_optim": True}, ParamError, "set missing=0.0 (it is nan)"),
        ({"tree_method": "gpu_hist"}, ParamError, "use tree_method='hist' and device='cuda'"),
        ({"device": "cuda:1"}, ParamError, "device: expected 'cpu' or 'cuda' (which GPU is Spark's to say"),
        ({"device": "cuda"}, GangError, "Spark assigns this gang's tasks no GPU"),
        ({"launch_tracker_on_driver": True}, ParamError, "launch_tracker_on_driver: expected False"),
        ({"xgb_model": "path"}, ParamError, "xgb_model: expected an xgboost.Booster"),
        ({"callbacks": [print]}, ParamError, "callbacks: expected a list of xgboost.callback.TrainingCallback"),
        ({"feature_types": ["c"]}, ParamError, "feature_types has 1 entries for the 2 features"),
        ({"feature_types": {"z": "c"}}, ParamError, "feature_types names 'z', which is not one of features_col"),
        ({"external_memory": True, "tree_method": "approx"}, ParamError, "external_memory=True is for trees"),
        ({"features_col": ["a", "colour"]}, ColumnError, "column 'colour' is string"),
        ({"features_col": ["a", "features"]}, ColumnError, "features_col: 'features' is vector; expected one vector"),
        ({"features_col": "nothing"}, ColumnError, "features_col: the DataFrame has no column 'nothing'"),
        ({"label_col": "colour"}, ColumnError, "label_col: column 'colour' is string"),
        ({"weight_col": "colour"}, ColumnError, "weight_col: column 'colour' is string"),
        ({"validation": "w"}, ColumnError, "validation: column 'w' is double; a validation column is boolean"),
    ],
)
def test_what_is_wrong_is_told_before_any_job(
    df: DataFrame, keywords: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {"features_col": ["a", "c"], "label_col": "y", **COMMON, **keywords}
    with pytest.raises(error) as caught:
        XGBoostRegressor(**given).fit(df)
    assert text in str(caught.value)


def test_what_rows_show_to_be_wrong(df: DataFrame) -> None:
    classifier = XGBoostClassifier(features_col=["a", "c"], label_col="kind", **COMMON)
    with pytest.raises(DataError, match="column 'b': 40 null rows"):
        XGBoostRegressor(features_col=["a", "c"], label_col="b", **{**COMMON, "num_workers": 1}).fit(df)
    with pytest.raises(DataError, match=r"label_col has the value \[3\.0\] only"):
        classifier.fit(df.filter("kind = 3"))
    with pytest.raises(DataError, match="3 classes, but objective='binary:logistic' is for two"):
        classifier.copy().setObjective("binary:logistic").fit(df)
    with pytest.raises(ColumnError, match="label_col: 'features' is an array or vector"):
        classifier.copy().setLabelCol("features").fit(df)
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        classifier.fit(df.limit(0))
    with pytest.raises(ParamError, match="objective='reg:squarederror' is not a classifier's"):
        classifier.copy().setObjective("reg:squarederror").fit(df)
    regressor = XGBoostRegressor(features_col=["a", "c"], label_col="y", **COMMON)
    huge = df.withColumn("a", F.when(F.col("id") == 7, 1e300).otherwise(F.col("a")))
    with pytest.raises(DataError, match="column 'a': 1 rows with values that are infinite or too large for float32"):
        regressor.fit(huge)
    with pytest.raises(ParamError, match="monotone_constraints has 3 entries for 2 features"):
        regressor.copy().setMonotoneConstraints((1, 0, 0)).fit(df)
    with pytest.raises(ParamError, match=r"constraints name 'zz', but the features are \['a', 'c'\]"):
        regressor.copy().setInteractionConstraints([["zz"]]).fit(df)
    with pytest.warns(UserWarning, match='XGBoost does not use "rate_drop" with the other parameters'):
        XGBoostRegressor(features_col=["a"], label_col="y", rate_drop=0.1, **COMMON).fit(df)
    with pytest.raises(ParamError, match="features_col names 1 columns, but the model was trained on 2 features"):
        classifier.fit(df).copy().setFeaturesCol(["a"]).transform(df)


def test_rows_that_xgboost_refuses(df: DataFrame) -> None:
    regressor = XGBoostRegressor(features_col=["a", "c"], label_col="y", **COMMON)
    classifier = XGBoostClassifier(features_col=["a", "c"], label_col="id", **COMMON)
    wide = df.withColumn("id", F.when(F.col("id") == 7, F.lit(2**53)).otherwise(F.col("id") % 2))
    with pytest.raises(DataError, match="column 'id': 1 rows of 2\\*\\*53 and more"):
        classifier.fit(wide)
    with pytest.raises(DataError, match="weight_col: all training rows have the weight 0"):
        regressor.copy().setWeightCol("w").fit(df.withColumn("w", F.lit(0)))
    one = df.withColumn("a", F.when(F.col("id") == 7, 1.5).otherwise(F.col("a")))  # on one rank
    with pytest.raises(DataError, match=r"features_col: 'a' is categorical, but has the value 1\.5"):
        regressor.copy().setFeatureTypes({"a": "c"}).fit(one)
    for empty in (F.array().cast("array<double>"), array_to_vector(F.array().cast("array<double>"))):
        with pytest.raises(DataError, match="features_col: the rows of 'none' have no elements: no features"):
            regressor.copy().setFeaturesCol("none").fit(df.withColumn("none", empty))

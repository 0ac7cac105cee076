"""`TorchEstimator` and `TorchModel` among Spark ML's own: pipelines, cross-validation, evaluators, streams."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch
import torchmetrics
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparktrain.errors import ColumnError, ParamError
from sparktrain.torch import EarlyStopping, TorchEstimator, TorchModel
from tests.integration.nets import Bag, Line

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def points(spark: SparkSession) -> DataFrame:
    """600 points: two columns of different scale, an integer class 0 or 1, and a value."""
    a, b = F.randn(1), 100 * F.randn(2)
    return (
        spark.range(600)
        .select("id", a.alias("a"), b.alias("b"))
        .withColumn("label", (F.col("a") + F.col("b") / 100 > 0).cast("int"))
        .withColumn("value", F.col("a") - F.col("b") / 50)
        .cache()
    )


def classifier(features: list[str] | dict, **keywords: object) -> TorchEstimator:
    """One logit against integer labels 0 and 1."""
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    defaults = {
        "model": net,
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "loss": nn.BCEWithLogitsLoss(),
        "feature_cols": features,
        "label_cols": ["label"],
        "prediction_type": "classification",
        "num_proc": 2,
        "batch_size": 32,
        "epochs": 2,
        "verbose": 0,
    }
    return TorchEstimator(**{**defaults, **keywords})


@pytest.mark.slow
def test_cross_validation_of_a_pipeline_in_parallel_is_that_in_turn(
    points: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = classifier(["scaled"])
    stages = [
        VectorAssembler(inputCols=["a", "b"], outputCol="features"),
        StandardScaler(inputCol="features", outputCol="scaled", withMean=True),
        estimator,
    ]
    grid = ParamGridBuilder().addGrid(estimator.epochs, [3, 5]).build()
    found, weights = [], []
    with caplog.at_level(logging.INFO, logger="sparktrain.estimator"):
        for parallelism in (1, 2):
            validator = CrossValidator(
                estimator=Pipeline(stages=stages),
                estimatorParamMaps=grid,
                evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),  # areas: added up in no fixed order
                numFolds=2,
                seed=3,
                parallelism=parallelism,
            )
            fitted = validator.fit(points)
            found.append(fitted.avgMetrics)
            weights.append(list(fitted.bestModel.stages[-1].getModel().state_dict().values()))
            assert fitted.bestModel.transform(points).count() == 600
    assert found[0] == found[1]
    for mine, other in zip(*weights, strict=True):
        assert torch.equal(mine, other)
    assert min(found[0]) > 0.9
    gangs = [record for record in caplog.records if "rows by rank" in record.message]
    assert len(gangs) == 2 * (2 * 2 + 1)
    for record in gangs:
        ranks = record.args[1]
        assert len(ranks) == 2
        assert min(ranks) > 0


def test_one_logit_on_integer_labels_and_spark_s_evaluators(points: DataFrame) -> None:
    scaled = points.withColumn("b", F.col("b") / 100)
    predictions = classifier(["a", "b"]).fit(scaled).transform(scaled).cache()
    assert BinaryClassificationEvaluator(metricName="areaUnderROC").evaluate(predictions) > 0.95
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions) > 0.9
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(predictions) < 0.5
    assert {row["prediction"] for row in predictions.select("prediction").distinct().collect()} == {0.0, 1.0}
    regression = classifier(
        ["a", "b"],
        loss=nn.MSELoss(),
        label_cols=["value"],
        prediction_type="regression",
        optimizer=partial(torch.optim.SGD, lr=0.1),
    ).fit(scaled)
    assert RegressionEvaluator(labelCol="value", metricName="r2").evaluate(regression.transform(scaled)) > 0.9


@pytest.mark.parametrize("kind", ["classification", "regression", "raw"])
def test_predictions_over_columnar_tables(spark: SparkSession, points: DataFrame, kind: str, tmp_path: Path) -> None:
    """Spark hands cached and Parquet columns to an Arrow UDF as they are, and takes fewer types back."""
    points.write.parquet(str(tmp_path / "points"))
    outputs = 3 if kind == "classification" else 1
    model = TorchModel(model=nn.Linear(2, outputs), feature_cols=["a", "b"], prediction_type=kind)
    rows = model.transform(points.withColumn("a", F.col("a") + 0)).orderBy("id").collect()
    for table in (points, spark.read.parquet(str(tmp_path / "points"))):
        out = model.transform(table)
        assert out.orderBy("id").collect() == rows
        selected = out.select("id", "prediction").orderBy("id").collect()
        assert selected == [Row(id=row["id"], prediction=row["prediction"]) for row in rows]
        assert out.groupBy("prediction").count().agg(F.sum("count")).first()[0] == 600
    if kind == "classification":
        assert out.schema["probability"].dataType == VectorUDT()
        assert out.select("probability").first()["probability"].size == 3


def test_early_stopping_torchmetrics_and_going_on_from_a_model(points: DataFrame) -> None:
    scaled = points.withColumn("b", F.col("b") / 100).withColumn("held_out", F.col("id") % 4 == 0)
    estimator = classifier(
        ["a", "b"],
        epochs=30,
        validation="held_out",
        metrics={"auc": torchmetrics.classification.BinaryAUROC()},
        callbacks=[EarlyStopping("val_auc", patience=2, mode="max")],
        shuffle="global",
    )
    model = estimator.fit(scaled)
    assert 2 < len(model.history) < 30
    best = max(model.history, key=lambda entry: entry["val_auc"])
    held_out = model.transform(scaled.where("held_out"))
    evaluator = BinaryClassificationEvaluator(metricName="areaUnderROC", numBins=0)
    assert evaluator.evaluate(held_out) == pytest.approx(best["val_auc"], abs=1e-6), "the best epoch's weights"

    untouched = classifier(["a", "b"], epochs=1, initial_model=model, optimizer=partial(torch.optim.SGD, lr=0.0))
    again = untouched.fit(scaled)
    for p, q in zip(again.getModel().parameters(), model.getModel().parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(ParamError, match=r"initial_model: 1 weights .* 'weight' is of shape \(1, 2\) in model"):
        classifier(["a", "b"], initial_model=nn.Linear(3, 1)).fit(scaled)
    with pytest.raises(ParamError, match="monitor='val_auc' needs validation="):
        estimator.fit(scaled, {estimator.validation: None})


def rename(inputs: dict, labels: object, training: bool) -> tuple:
    return {"age": inputs["age"], "ids": inputs["ids"], "attention_mask": inputs["ids_mask"]}, labels


def test_arrays_of_varying_length_by_argument(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(400).select(
        "id",
        F.transform(F.sequence(F.lit(0), F.col("id") % 7), lambda i: (i + F.col("id")) % 20).alias("tokens"),
        (F.col("id") % 50 / 50).alias("age"),
        (F.col("id") % 7 > 2).cast("int").alias("label"),
    )
    net = Bag()
    estimator = classifier(
        {"ids": "tokens", "age": "age"},
        model=net,
        pad="longest",
        transform_batch=rename,
        optimizer=partial(torch.optim.Adam, lr=0.05),
        inference_batch_size=16,
    )
    model = estimator.fit(df)
    rows = model.transform(df).orderBy("id").collect()
    net = model.getModel()
    for row in rows[:50]:  # alone, without padding
        ids = torch.tensor([row["tokens"]])
        logit = net(torch.tensor([[row["age"]]]), ids, torch.ones_like(ids, dtype=torch.bool))
        assert row["rawPrediction"][1] == pytest.approx(logit.item(), abs=1e-5)
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"), allow=("tests",))
    assert loaded.transform(df).orderBy("id").collect() == rows
    with pytest.raises(ColumnError, match="has no argument 'ids_mask'"):
        classifier({"ids": "tokens", "age": "age"}, model=Bag(), pad=9).fit(df)
    with pytest.raises(Exception, match=r"column 'tokens': \d+ rows longer than pad=3"):
        estimator.fit(df, {estimator.pad: 3})


def test_a_model_without_a_fit(spark: SparkSession, points: DataFrame) -> None:
    df = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points)
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.9))
    model = TorchModel(model=net, feature_cols=["features"])
    out = model.transform(df).orderBy("id")
    assert out.schema["prediction"].dataType == T.ArrayType(T.FloatType(), False)
    row = out.first()
    expected = net[0](torch.tensor([[row["a"], row["b"]]]))[0]
    torch.testing.assert_close(torch.tensor(row["prediction"]), expected)
    assert net.training, "the user's module is left as it was"

    classes = TorchModel(model=net, feature_cols=["features"], prediction_type="classification")
    assert classes.transform(df).first()["probability"].size == 3
    assert classes.transform(df.where("false")).count() == 0
    with pytest.raises(ParamError, match="it failed on one row of zeros"):
        TorchModel(model=nn.Linear(3, 1), feature_cols=["features"]).transform(df)
    with pytest.raises(ParamError, match=r"an empty DataFrame doesn't tell the shape of column 'features'"):
        model.transform(df.where("false"))


def test_transform_of_a_stream(spark: SparkSession, points: DataFrame, tmp_path: Path) -> None:
    points.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(points.schema).parquet(str(tmp_path / "in"))
    model = TorchModel(model=nn.Linear(2, 1), feature_cols=["a", "b"])
    query = (
        model.transform(stream)
        .writeStream.format("memory")
        .queryName("predicted")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = spark.table("predicted").orderBy("id").collect()
    assert found == model.transform(points).orderBy("id").collect()

    arrays = stream.withColumn("features", F.array("a", "b"))
    with pytest.raises(
        ParamError, match=r"a streaming DataFrame doesn't tell .*feature_shapes=\{'features': \(20,\)\}"
    ):
        TorchModel(model=nn.Linear(2, 1), feature_cols=["features"]).transform(arrays)
    declared = TorchModel(model=nn.Linear(2, 1), feature_cols=["features"], feature_shapes={"features": (2,)})
    assert declared.transform(arrays).isStreaming


def test_rows_dealt_by_hash_are_the_same_for_the_same_seed(points: DataFrame) -> None:
    net = Line(2)
    estimator = classifier(["a", "b"], model=net, loss=nn.MSELoss(), label_cols=["value"], prediction_type="raw")
    estimator = estimator.copy().setShuffle("global").setOptimizer(partial(torch.optim.SGD, lr=1e-6))
    one, same, other = estimator.fit(points), estimator.fit(points), estimator.copy().setSeed(9).fit(points)
    assert torch.equal(one.getModel().linear.weight, same.getModel().linear.weight)
    assert not torch.equal(one.getModel().linear.weight, other.getModel().linear.weight)
    with pytest.raises(ParamError, match="shuffle='global' deals rows to ranks anew"):
        estimator.copy().setPartitioned(True).fit(points)

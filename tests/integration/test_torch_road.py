"""`TorchEstimator.fit` to `TorchModel.transform` on real Spark: two ranks, every part of the road."""

from __future__ import annotations

import math
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sklearn.datasets import load_digits
from torch import nn

from sparktrain.errors import (
    ColumnError,
    DataError,
    GangError,
    GangTimeout,
    NotEnoughSlots,
    ParamError,
    PersistenceError,
    RankFailed,
)
from sparktrain.torch import TorchEstimator, TorchModel
from tests.integration.nets import Line, TwoTowers

pytestmark = pytest.mark.integration


def estimator(net: nn.Module, **keywords: object) -> TorchEstimator:
    defaults = {
        "model": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        "loss": nn.MSELoss(),
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "num_proc": 2,
        "batch_size": 64,
        "verbose": 0,
    }
    return TorchEstimator(**{**defaults, **keywords})


def shift(inputs: torch.Tensor, labels: torch.Tensor | None, training: bool) -> tuple:
    return inputs + 1, labels


@pytest.fixture(scope="module")
def line(spark: SparkSession) -> DataFrame:
    """1,000 rows of y = 2 x + 1."""
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    return spark.range(1000).select(x, (2 * x + 1).cast("float").alias("y"), F.col("id")).cache()


@pytest.fixture(scope="module")
def digits(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """scikit-learn's 1,797 digits of 8 x 8: sparse vectors to train on, dense ones to test."""
    data = load_digits()
    rows = [
        (i, Vectors.dense(pixels / 16), float(label))
        for i, (pixels, label) in enumerate(zip(data.data, data.target, strict=True))
    ]
    sparse = F.udf(lambda v: Vectors.sparse(len(v), list(np.flatnonzero(v.toArray())), v.toArray()[v.toArray() != 0]))
    df = spark.createDataFrame(rows, ["id", "features", "label"])
    train = df.where("id % 5 != 0").withColumn("features", F.udf(sparse.func, VectorUDT())("features"))
    return train.cache(), df.where("id % 5 = 0").cache()


def test_classification_with_sparks_evaluator_and_saved_pipeline(
    digits: tuple[DataFrame, DataFrame], tmp_path: Path
) -> None:
    train, test = digits
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))  # 76 kB of weights
    stage = estimator(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=5e-3),
        loss=nn.CrossEntropyLoss(),
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
        feature_cols=["assembled"],
        label_cols=["label"],
        validation=0.1,
        epochs=8,
        batch_size=32,
        prediction_type="classification",
    )
    before = [p.detach().clone() for p in net.parameters()]
    fitted = Pipeline(stages=[VectorAssembler(inputCols=["features"], outputCol="assembled"), stage]).fit(train)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)), "fit changed the user's model"

    inputs = fitted.stages[1]._input_plan(fitted.stages[0].transform(test).schema).specs("input")
    predictor = fitted.stages[1]._predictor(test, inputs)
    assert len(cloudpickle.dumps(predictor)) < 5_000, "the weights travel as a file"
    predictions = fitted.transform(test)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions)
    assert accuracy > 0.93
    row = predictions.first()
    assert row["probability"].toArray().sum() == pytest.approx(1.0)
    assert row["prediction"] == int(np.argmax(row["rawPrediction"].toArray()))

    history = fitted.stages[1].history
    assert [entry["epoch"] for entry in history] == list(range(1, 9))
    assert set(history[0]) == {
        *("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr", "rows_per_s", "seconds"),
    }
    assert history[-1]["loss"] < history[0]["loss"]

    path = str(tmp_path / "pipeline")
    fitted.write().overwrite().save(path)
    loaded = PipelineModel.load(path)
    assert loaded.stages[1].history == history
    again = loaded.transform(test).select("id", "probability").orderBy("id").collect()
    assert again == predictions.select("id", "probability").orderBy("id").collect()
    assert (tmp_path / "pipeline").exists()
    assert list((tmp_path / "pipeline").rglob("model.safetensors"))


def test_the_same_seed_gives_the_same_model_and_the_loss_of_one_process(line: DataFrame) -> None:
    net = Line()
    est = estimator(net, batch_size=600, epochs=4)  # one global batch an epoch: plain gradient descent
    first, second = est.fit(line), est.fit(line)
    for p, q in zip(first.getModel().parameters(), second.getModel().parameters(), strict=True):
        assert torch.equal(p, q)

    rows = line.collect()
    x = torch.tensor([[row["x"]] for row in rows])
    y = torch.tensor([[row["y"]] for row in rows])
    reference = Line()
    reference.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(x), y).backward()
        optimizer.step()
    for p, q in zip(first.getModel().parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)


def test_uneven_and_empty_partitions_as_they_are(spark: SparkSession) -> None:
    schema = "x float, y float, w float"
    rows = [(float(i), float(2 * i + 1), 0.5 + i % 3) for i in range(12)]
    parts = [rows[:11], [], rows[11:]]

    def place(batches):  # one input row a task: its number picks the rows
        for batch in batches:
            for number in batch["id"]:
                yield batch.iloc[:0].reindex(columns=["x", "y", "w"]) if not parts[number] else frame(parts[number])

    def frame(values):
        import pandas as pd

        return pd.DataFrame(values, columns=["x", "y", "w"]).astype("float32")

    df = spark.range(0, 3, 1, numPartitions=3).mapInPandas(place, schema)
    assert df.rdd.glom().map(len).collect() == [11, 0, 1]
    net = Line()
    model = estimator(
        net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-3),
        num_proc=3,
        partitioned=True,
        batch_size=11,
        epochs=2,
        sample_weight_col="w",
    ).fit(df)
    reference = Line()
    reference.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=1e-3)
    x, y, w = (torch.tensor([[row[i]] for row in rows]) for i in range(3))
    for _ in range(2):
        optimizer.zero_grad()
        ((reference(x) - y) ** 2 * w).sum().div(w.sum()).backward()
        optimizer.step()
    for p, q in zip(model.getModel().parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)

    with pytest.raises(GangError, match="num_proc=2, but the barrier stage has 3 tasks"):
        estimator(Line(), partitioned=True).fit(df)
    more_than_slots = spark.range(0, 8, 1, numPartitions=8).select(F.lit(1.0).alias("x"), F.lit(1.0).alias("y"))
    with pytest.raises(GangError, match=r"partitioned=True: .* repartition\(num_proc\) last"):
        estimator(Line(), partitioned=True).fit(df.coalesce(2))
    with pytest.raises(GangTimeout, match=r"run nothing for 3 s \(launch_timeout_s\) .* partition"):
        estimator(Line(), partitioned=True, launch_timeout_s=3).fit(more_than_slots)


def test_several_inputs_and_labels_with_a_validation_column(spark: SparkSession) -> None:
    df = spark.range(600).select(
        (F.col("id") % 10).cast("int").alias("item"),
        F.array(*[F.sin(F.col("id") * k).cast("double") for k in (1, 2, 3)]).alias("context"),
        (F.col("id") % 3).cast("double").alias("kind"),
        F.cos("id").alias("value"),
        (F.col("id") % 4 == 0).alias("held_out"),
    )
    net = TwoTowers()
    model = estimator(
        net,
        loss=[nn.CrossEntropyLoss(), nn.MSELoss()],
        loss_weights=[1.0, 0.5],
        feature_cols=["item", "context"],
        label_cols=["kind", "value"],
        validation="held_out",
        epochs=2,
    ).fit(df)
    out = model.transform(df)
    assert out.columns == [*df.columns, "prediction_kind", "prediction_value"]
    assert out.schema["prediction_kind"].dataType == T.ArrayType(T.FloatType(), False)
    assert out.schema["prediction_value"].dataType == T.FloatType()
    assert out.count() == 600
    renamed = model.copy().setOutputCols(["a", "b"]).transform(df)
    assert renamed.columns[-2:] == ["a", "b"]
    assert math.isfinite(model.history[-1]["val_loss"])


def test_images_as_bytes_and_joined_scalars(spark: SparkSession) -> None:
    rows = [(bytes([i % 256] * 6), i % 7, i / 10, bool(i % 2), float(i % 256)) for i in range(64)]
    df = spark.createDataFrame(rows, "image binary, a int, b double, c boolean, y double")

    class Image(nn.Module):  # a local class travels by value
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            assert image.dtype == torch.uint8
            assert image.shape[1:] == (1, 2, 3)
            return self.linear(image.float().flatten(1) / 255)

    image = estimator(
        Image(), feature_cols=["image"], feature_dtypes={"image": "uint8"}, feature_shapes={"image": (1, 2, 3)}
    )
    image.setOptimizer(torch.optim.SGD(image.getModel().parameters(), lr=1e-3))
    fitted = image.setPredictionType("regression").fit(df)
    predicted = fitted.transform(df)
    assert predicted.schema["prediction"].dataType == T.DoubleType()
    assert RegressionEvaluator(labelCol="y").evaluate(predicted) > 0

    net = Line(3)
    joined = estimator(net, optimizer=torch.optim.Adam, feature_cols=["a", "b", "c"]).fit(df)
    assert joined.transform(df).where("prediction is null").count() == 0


def test_transform_keeps_columns_rows_and_metadata_and_is_lazy(line: DataFrame) -> None:
    model = estimator(Line()).fit(line)
    tagged = line.withColumn("id", F.col("id").alias("id", metadata={"kept": 1})).withColumn("a.b", F.lit("text"))
    out = model.transform(tagged.repartition(5))
    assert out.columns == ["x", "y", "id", "a.b", "prediction"]
    assert out.schema["id"].metadata == {"kept": 1}
    assert out.count() == 1000
    empty = model.transform(line.where("false"))
    assert empty.count() == 0
    bad = line.withColumn("x", F.when(F.col("id") != 7, F.col("x")))
    lazy = model.transform(bad)  # no job yet, so no error yet
    with pytest.raises(Exception, match="column 'x': 1 null rows"):
        lazy.collect()
    with pytest.raises(ColumnError, match="already has"):
        model.transform(out)


def test_an_error_inside_the_model_names_columns_dtypes_and_shapes(line: DataFrame) -> None:
    with pytest.raises(RankFailed, match=r"model inputs: x: float32, shape \(batch, 1\); labels: y: float32"):
        estimator(Line(features=3), feature_cols=["x"]).fit(line)


def test_params_maps_and_grids(line: DataFrame) -> None:
    est = estimator(Line(), epochs=1)
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 2]).build()
    models = dict(est.fitMultiple(line, grid))
    assert [len(models[i].history) for i in range(2)] == [1, 2]
    model = est.fit(line, {est.epochs: 2, est.outputCols: ["p"]})
    assert len(model.history) == 2
    assert model.transform(line).columns[-1] == "p"
    with pytest.raises(ParamError, match="epochs: expected a whole number of at least 1"):
        est.fit(line, {est.epochs: 0})


def test_save_and_load_model_and_estimator(line: DataFrame, tmp_path: Path) -> None:
    est = estimator(Line(), epochs=2, lr_scheduler=torch.optim.lr_scheduler.ConstantLR)
    model = est.fit(line)
    path = str(tmp_path / "model")
    model.save(path)
    with pytest.raises(PersistenceError, match=r"already exists; replace it with .write\(\).overwrite"):
        model.save(path)
    with pytest.raises(Exception, match=r"allow=\('tests',\)"):
        TorchModel.load(path)
    loaded = TorchModel.load(path, allow=("tests",))
    assert loaded.uid == model.uid
    assert loaded.transform(line).orderBy("id").collect() == model.transform(line).orderBy("id").collect()
    with pytest.raises(Exception, match=r"TorchModel\.load\(path\)"):
        TorchEstimator.load(path)

    unfitted = str(tmp_path / "estimator")
    est.save(unfitted)
    again = TorchEstimator.load(unfitted, allow=("tests",))
    assert again.getEpochs() == 2
    refit = again.fit(line)
    for p, q in zip(refit.getModel().parameters(), model.getModel().parameters(), strict=True):
        assert torch.equal(p, q)


def test_transform_batch_runs_in_training_and_in_transform(line: DataFrame, tmp_path: Path) -> None:
    net = Line()
    shifted = estimator(net, transform_batch=shift, batch_size=600, epochs=2, prediction_type="regression").fit(line)
    moved = line.withColumn("x", (F.col("x") + 1).cast("float"))
    plain = estimator(net, batch_size=600, epochs=2, prediction_type="regression").fit(moved)
    expected = [row["prediction"] for row in plain.transform(moved).orderBy("id").collect()]
    assert [row["prediction"] for row in shifted.transform(line).orderBy("id").collect()] == pytest.approx(
        expected, abs=1e-5
    )
    shifted.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"), allow=("tests",))
    assert [row["prediction"] for row in loaded.transform(line).orderBy("id").collect()] == pytest.approx(
        expected, abs=1e-5
    )


def test_bad_input_is_refused_before_any_job(spark: SparkSession, line: DataFrame) -> None:
    named = line.withColumn("name", F.lit("a"))
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("refused", "")
    with pytest.raises(ColumnError, match="column 'name' is string"):
        estimator(Line(), feature_cols=["name"]).fit(named)
    with pytest.raises(ColumnError, match="no column 'z'"):
        estimator(Line(), label_cols=["z"]).fit(named)
    with pytest.raises(NotEnoughSlots, match=r"num_proc=4, but the cluster runs 3 tasks"):
        estimator(Line(), num_proc=4).fit(line)
    with pytest.raises(ParamError, match="are not the model's"):
        estimator(Line(), optimizer=torch.optim.SGD(Line().parameters(), lr=1)).fit(line)
    assert not tracker.getJobIdsForGroup("refused")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_faulty_rows_are_counted_by_column(line: DataFrame) -> None:
    broken = line.withColumn("x", F.when(F.col("id") % 99 != 0, F.col("x"))).withColumn(
        "y", F.when(F.col("id") < 3, F.lit(float("nan"))).otherwise(F.col("y"))
    )
    with pytest.raises(DataError, match=r"column 'x': \d+ null rows .*shard of rank"):
        estimator(Line()).fit(broken)
    with pytest.raises(DataError, match="no rows"):
        estimator(Line()).fit(line.where("false"))

"""The road on Spark Connect, in a process of its own: ``python -m tests.integration.connect_session DIR``."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain import current_gang, run
from sparktrain.errors import DataError, GangError, NotEnoughSlots, RankFailed
from sparktrain.torch import TorchEstimator, TorchModel
from tests.integration.nets import Faulty


def expect(kind: type[Exception], text: str, estimator: TorchEstimator, df: object) -> None:
    with pytest.raises(kind) as caught:
        estimator.fit(df)
    assert text in str(caught.value), str(caught.value)


def main(directory: str) -> None:
    spark = SparkSession.builder.remote("local[2]").config("spark.driver.maxResultSize", "20m").getOrCreate()
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    df = spark.range(1000).select("id", x, (F.col("id") >= 500).cast("int").alias("label"))

    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.05),
        loss=nn.CrossEntropyLoss(),
        feature_cols=["x"],
        label_cols=["label"],
        num_proc=2,
        batch_size=50,
        epochs=3,
        prediction_type="classification",
    )
    model = estimator.fit(df)
    predictions = model.transform(df)
    accuracy = MulticlassClassificationEvaluator(labelCol="label", metricName="accuracy").evaluate(predictions)
    assert accuracy > 0.95, accuracy

    df.write.parquet(f"{directory}/rows")
    stored = model.transform(spark.read.parquet(f"{directory}/rows"))
    assert (
        stored.select("prediction").orderBy("id").collect() == predictions.orderBy("id").select("prediction").collect()
    )

    path = f"{directory}/model"
    model.save(path)
    model.write().overwrite().save(path)
    loaded = TorchModel.load(path)
    again = loaded.transform(df).orderBy("id").collect()
    assert again == predictions.orderBy("id").collect()
    assert loaded.history == model.history

    large = nn.Sequential(nn.Linear(1, 600_000), nn.Linear(600_000, 2))  # over what rides in a closure
    estimator.copy({estimator.model: large, estimator.optimizer: torch.optim.SGD}).setEpochs(1).fit(df)

    too_large = nn.Sequential(nn.Linear(1, 900_000), nn.Linear(900_000, 2))  # 14.4 MB; rows take 10.5
    refused = estimator.copy({estimator.model: too_large, estimator.optimizer: torch.optim.SGD})
    expect(GangError, "with spark.driver.maxResultSize=20m Spark's rows take 10,485,760 bytes", refused, df)

    faulty = Faulty("raise")
    broken = estimator.copy(
        {estimator.model: faulty, estimator.optimizer: torch.optim.SGD, estimator.loss: nn.MSELoss()}
    )
    expect(RankFailed, "Traceback of rank 1:\nTraceback (most recent call last):", broken, df)
    expect(NotEnoughSlots, "num_proc=3, but the cluster runs 2 tasks", estimator.copy().setNumProc(3), df)
    nulls = df.withColumn("x", F.when(F.col("id") > 3, F.col("x")))
    expect(DataError, "null rows", estimator, nulls)
    run_functions(df)
    spark.stop()
    print("connect: all passed")


def run_functions(df: DataFrame) -> None:
    """`sparktrain.run`: results, rows, and what ranks print, which Connect brings at the end."""

    def work(base: int) -> tuple[int, float]:
        gang = current_gang()
        print("line of", gang.rank)
        return base + gang.rank, 0.0 if gang.shard is None else float(gang.shard.arrays()["x"].sum())

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(work, (10,), num_proc=2) == [(10, 0.0), (11, 0.0)]
    assert sorted(printed.getvalue().splitlines()) == ["[rank 0] line of 0", "[rank 1] line of 1"]
    found = run(work, (10,), df=df.select("x"), num_proc=2, verbose=0)
    assert [base for base, _ in found] == [10, 11]
    total = df.agg(F.sum("x")).collect()[0][0]
    assert abs(sum(part for _, part in found) - total) < 1e-3
    with pytest.raises(RankFailed, match=r"rank [01] of 2 failed .*ZeroDivisionError"):
        run(lambda: 1 / 0, num_proc=2, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1])

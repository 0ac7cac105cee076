"""A fit over two hosts, in a process of its own: ``python -m tests.integration.two_hosts_session MASTER DRIVER``."""

from __future__ import annotations

import sys

import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain import backends
from sparktrain.torch import TorchEstimator
from sparktrain.xgboost import XGBoostRegressor
from tests.integration.nets import Line


def boost(df: DataFrame) -> None:
    """XGBoost's tracker and its own connections between the hosts."""
    model = XGBoostRegressor(features_col=["x"], label_col="y", num_workers=2, n_estimators=5).fit(df)
    assert len(model.history) == 5
    assert model.transform(df).count() == 1000


def main(master: str, driver: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", driver)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    df = spark.range(1000).select(x, (2 * x + 1).cast("float").alias("y"))
    for backend in ("native", *(("horovod",) if backends.load("horovod").missing() is None else ())):
        train(df, backend)
    boost(df)
    spark.stop()
    print("two hosts: all passed")


def train(df: DataFrame, backend: str) -> None:
    """Two ranks end with the weights of one process."""
    net = Line()
    model = TorchEstimator(
        backend=backend,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=600,
        epochs=3,
        launch_timeout_s=60,
    ).fit(df)
    rows = df.collect()
    features, labels = (torch.tensor([[row[name]] for row in rows]) for name in ("x", "y"))
    reference = Line()
    reference.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(features), labels).backward()
        optimizer.step()
    for p, q in zip(model.getModel().parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)
    assert model.transform(df.repartition(8)).count() == 1000


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

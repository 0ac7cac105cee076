"""A session with a small local disk, in its own process: ``python -m tests.integration.full_disk_session DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import GangError
from sparktrain.torch import TorchEstimator
from tests.integration.leftovers import held, wait_until, workers
from tests.integration.nets import Line

FEATURES = 1000
LEFT_S = 5.0


def fit(df: DataFrame) -> None:
    net = Line(FEATURES)
    TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-7),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        partitioned=True,  # no shuffle that would fill the disk first
        verbose=0,
    ).fit(df)


def rows(spark: SparkSession, number: int) -> DataFrame:
    """Rows of 4 kB that Spark makes as they are read, in two partitions."""
    x = F.array_repeat(F.col("id").cast("float"), FEATURES).alias("x")
    return spark.range(0, number, 1, 2).select(x, F.lit(0.5).alias("y"))


def main(directory: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", directory)
        .getOrCreate()
    )
    fit(rows(spark, 100))
    assert wait_until(lambda: not workers(), LEFT_S), workers()
    before, files = held(), named(directory)
    with pytest.raises(GangError) as caught:
        fit(rows(spark, 30_000))
    print(caught.value)
    assert str(caught.value).startswith(f"no space left in {directory}/"), caught.value
    assert "to spool a rank's shard, after " in str(caught.value), caught.value
    assert wait_until(lambda: not workers(), LEFT_S), workers()
    assert wait_until(lambda: not held() - before, LEFT_S), held() - before
    assert named(directory) <= files, named(directory) - files
    fit(rows(spark, 100))
    spark.stop()
    print("full disk: all passed")


def named(directory: str) -> set[Path]:
    return {path for path in Path(directory).rglob("*") if path.is_file()}


if __name__ == "__main__":
    main(sys.argv[1])

"""A user's script whose fit does not end by itself: ``python -m tests.integration.driver_session FAULT``."""

from __future__ import annotations

import sys

import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.torch import TorchEstimator
from tests.integration.nets import Faulty


def main(fault: str) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    df = spark.range(1000).select(F.col("id").cast("float").alias("x"), F.rand(1).cast("float").alias("y"))
    net = Faulty(fault)
    TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-7),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
    ).fit(df)


if __name__ == "__main__":
    main(sys.argv[1])

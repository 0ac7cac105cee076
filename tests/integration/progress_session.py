"""Two fits on a terminal, silent and not: ``python -m tests.integration.progress_session``."""

from __future__ import annotations

import torch
from pyspark.sql import SparkSession
from torch import nn

from sparktrain.torch import TorchEstimator


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    df = spark.range(200).selectExpr("cast(id / 100 as float) x", "cast(id / 50 as float) y")
    estimator = TorchEstimator(
        model=nn.Linear(1, 1),
        optimizer=torch.optim.Adam,
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        epochs=2,
    )
    for verbose in (0, 1):
        print(f"verbose={verbose} begins", flush=True)
        estimator.setVerbose(verbose).fit(df)
        print(f"verbose={verbose} ends", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

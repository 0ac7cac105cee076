"""A fit that is broken in its middle: by the tests' own process, and as a user's script that a test kills."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.torch import Callback, TorchEstimator, TorchModel
from sparktrain.torch.callbacks import TrainState

EPOCHS, STEPS = 4, 16  # 1000 rows, 2 ranks, 32 rows a step


class Breaks(Callback):
    """In a step of the second epoch on rank 1, `times` times: ends a process, or raises.

    Parameters
    ----------
    how : str
        ``worker``, ``task``: which process is killed; ``raise``; ``sleep``; ``wait``: for another file.
    directory : str
        Keeps a file for each time.
    times : int
    """

    def __init__(self, how: str, directory: str, times: int = 1) -> None:
        self.how, self.directory, self.times = how, directory, times

    def on_step_end(self, state: TrainState) -> None:
        if (state.rank, state.epoch, state.step) != (1, 2, 7):
            return
        before = len(os.listdir(self.directory))
        if before >= self.times:
            return
        Path(self.directory, str(before)).touch()
        time.sleep(0.5)  # the checkpoint of step 5 is written in the background
        if self.how == "raise":
            raise ValueError("boom")
        if self.how == "wait":
            while len(os.listdir(self.directory)) == 1:
                time.sleep(0.05)
            return
        if self.how == "sleep":
            time.sleep(60)
        os.kill(os.getpid() if self.how == "worker" else os.getppid(), signal.SIGKILL)
        time.sleep(60)


def rows(spark: SparkSession) -> DataFrame:
    x = [(F.sin(F.col("id") * (one + 1))).cast("float").alias(f"x{one}") for one in range(4)]
    return spark.range(0, 1000, 1, 3).select(*x).withColumn("y", (F.col("x0") - 2 * F.col("x3")).cast("float"))


def estimator(**given: Any) -> TorchEstimator:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
    settings: dict[str, Any] = {"epochs": EPOCHS, **given}
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        feature_cols=[[f"x{one}" for one in range(4)]],
        label_cols=["y"],
        num_proc=2,
        batch_size=32,
        verbose=0,
        **settings,
    )


def weights(model: TorchModel) -> dict[str, torch.Tensor]:
    return dict(model.getModel().state_dict())


def main(store: str, directory: str, out: str) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    model = estimator(
        store=store, run_id="killed", checkpoint_every_n_steps=5, callbacks=[Breaks("sleep", directory)]
    ).fit(rows(spark))
    torch.save({"weights": weights(model), "epochs": len(model.history)}, out)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

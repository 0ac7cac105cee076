"""What checkpoints cost a fit: with one each epoch, and without, in turns.

    python -m benchmarks.torch.checkpoints

A network whose state (weights and Adam's moments) takes about 200 MB, 2 processes. *waited*: how long the steps waited
for copies and for the checkpoint before; *writing*: how long it took in the background, with checksum. Epochs are those
of `history`, the first of each fit left out.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from statistics import median
from typing import Any

import torch
from pyspark.sql import functions as F
from torch import nn

from benchmarks import report
from benchmarks.torch.fit import start_spark
from sparktrain.torch import TorchEstimator

PACKAGES = ("sparktrain", "torch", "pyspark")
WIDTH, BATCH, STEPS = 2900, 64, 40


class Counted(logging.Handler):
    """Keeps what the estimator tells of its checkpoints: how many, seconds of writing, seconds of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, float, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "checkpoints in" in record.msg and isinstance(record.args, tuple):
            count, writing, stalled = record.args
            self.found.append((float(str(count)), float(str(writing)), float(str(stalled))))


def fit(df: Any, epochs: int, store: str | None) -> list[float]:
    """Seconds of each epoch but the first."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH * 2), nn.ReLU(), nn.Linear(WIDTH * 2, 1)
    )
    model = TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=1e-4),
        loss=nn.MSELoss(),
        feature_cols=["features"],
        label_cols=["y"],
        num_proc=2,
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        store=store,
    ).fit(df)
    return [entry["seconds"] for entry in model.history[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    counted = Counted()
    logger = logging.getLogger("sparktrain")
    logger.addHandler(counted)
    logger.setLevel(logging.INFO)
    spark = start_spark()
    features = F.transform(F.sequence(F.lit(1), F.lit(20)), lambda one: F.sin(one * F.col("id")).cast("float"))
    rows = 2 * BATCH * STEPS
    df = spark.range(0, rows, 1, 2).select(features.alias("features"), F.sin("id").cast("float").alias("y")).cache()
    df.count()
    kept: list[float] = []
    plain: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as store:
        for number in range(args.rounds):
            kept.append(sum(fit(df, args.epochs, f"{store}/{number}")))
            plain.append(sum(fit(df, args.epochs, None)))
            print(f"round {number + 1}: with {kept[-1]:.2f} s, without {plain[-1]:.2f} s", file=sys.stderr)
    spark.stop()
    count, writing, stalled = (sum(one[place] for one in counted.found) for place in range(3))
    state = 3 * 4 * (20 * WIDTH + 2 * WIDTH * WIDTH + 5 * WIDTH) / 1e6
    print("## PyTorch: checkpoints\n")
    print(f"State of {state:.0f} MB, {rows:,} rows, {STEPS} steps an epoch, {args.epochs} epochs a fit, one checkpoint")
    print(f"each, {args.rounds} fits with and without in turns. Spark local[2], local disk.\n")
    print(report.environment(PACKAGES), end="\n\n")
    table = [
        ["epochs with checkpoints, s", f"{median(kept):.2f}"],
        ["epochs without, s", f"{median(plain):.2f}"],
        ["checkpoints", f"{count:.0f}"],
        ["writing one, s", f"{writing / count:.3f}"],
        ["steps waited for one, s", f"{stalled / count:.3f}"],
        ["waited / writing", f"{stalled / writing:.3f}"],
    ]
    print(report.table(["", "median or mean"], table), end="\n\n")
    ratios = [report.ratio_row("throughput with / without", plain, kept)]
    print(report.table(["ratio", "median", "min", "max"], ratios))


if __name__ == "__main__":
    main()

"""`TorchEstimator.fit` in a running Spark session against the same training under ``torchrun``.

    python -m benchmarks.torch.fit

An MLP 20-64-1 (ReLU, Adam, MSELoss) on 200,000 rows of 20 features, 3 epochs, 256 rows a step from each of
2 processes. Our side is timed from the call of `fit` to its return; the other side is a process, from its
start to its end. Both train on the CPU with one thread a process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from benchmarks import report
from benchmarks.torch.torchrun_baseline import FEATURES, LEARNING_RATE, make_network
from sparktrain.torch import TorchEstimator

BASELINE = Path(__file__).with_name("torchrun_baseline.py")
PACKAGES = ("sparktrain", "torch", "pyspark", "pyarrow", "numpy")
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training: all of it, the epochs alone, the last epoch's loss."""

    seconds: float
    training_s: float
    loss: float


def make_rows(count: int) -> np.ndarray[Any, Any]:
    """Rows of FEATURES features and a label with a smooth, noisy dependence: shape (count, FEATURES + 1), float32."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((count, FEATURES), dtype=np.float32)
    weights = rng.standard_normal((FEATURES, 2), dtype=np.float32)
    signal = np.tanh(features @ weights / 4).sum(axis=1) + 0.1 * rng.standard_normal(count, dtype=np.float32)
    return np.column_stack([features, signal]).astype(np.float32)


def write_parquet(rows: np.ndarray[Any, Any], path: Path) -> None:
    """Columns ``features``, array<float>, and ``y``, float."""
    offsets = np.arange(0, FEATURES * len(rows) + 1, FEATURES, dtype=np.int32)
    features = pa.ListArray.from_arrays(offsets, np.ascontiguousarray(rows[:, :FEATURES]).reshape(-1))
    pq.write_table(pa.table({"features": features, "y": np.ascontiguousarray(rows[:, FEATURES])}), path)


def start_spark() -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{RANKS}]")
        .appName("sparktrain-benchmark-fit")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_estimator(epochs: int, batch_size: int) -> TorchEstimator:
    net = make_network()
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=LEARNING_RATE),
        loss=nn.MSELoss(),
        feature_cols=["features"],
        label_cols=["y"],
        num_proc=RANKS,
        batch_size=batch_size,
        epochs=epochs,
    )


def run_fit(estimator: TorchEstimator, df: DataFrame) -> Run:
    seconds, model = report.stopwatch(lambda: estimator.fit(df))
    return Run(seconds, sum(epoch["seconds"] for epoch in model.history), model.history[-1]["loss"])


def run_torchrun(data: Path, epochs: int, batch_size: int) -> Run:
    """A fresh process, timed from its start to its end; imports and rendezvous included."""
    command = shutil.which("torchrun", path=os.path.dirname(sys.executable)) or "torchrun"
    arguments = ["--standalone", "--nproc-per-node", str(RANKS), str(BASELINE), str(data)]
    settings = ["--epochs", str(epochs), "--batch-size", str(batch_size)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def train() -> str:
        return subprocess.run(
            [command, *arguments, *settings], env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    seconds, output = report.stopwatch(train)
    last = json.loads(output.splitlines()[-1])
    return Run(seconds, last["training_s"], last["loss"])


def results(warm_up: list[Run], fits: list[Run], torchruns: list[Run]) -> str:
    """The Markdown tables."""
    first, second = warm_up
    fit_s, torchrun_s = [run.seconds for run in fits], [run.seconds for run in torchruns]

    def more(runs: list[Run]) -> tuple[str, str]:
        return f"{median(run.training_s for run in runs):.2f}", f"{runs[-1].loss:.5f}"

    header = ["", "median s", "min s", "max s", "epochs alone, median s", "final training loss"]
    rows = [
        report.timing_row("fit, first in the session", [first.seconds], *more([first])),
        report.timing_row("fit, second in the session", [second.seconds], *more([second])),
        report.timing_row(f"fit, {len(fits)} more", fit_s, *more(fits)),
        report.timing_row(f"torchrun, {len(torchruns)} runs", torchrun_s, *more(torchruns)),
    ]
    ratio = report.ratio_row("fit / torchrun, by pair", fit_s, torchrun_s)
    first_ratio = report.timing_row("first fit / median torchrun", [first.seconds / median(torchrun_s)])
    ratio_header = ["ratio (below 1: sparktrain is faster)", "median", "min", "max"]
    return f"{report.table(header, rows)}\n\n{report.table(ratio_header, [ratio, first_ratio])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of fit and torchrun")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256, help="rows a rank brings to a step")
    args = parser.parse_args()

    rows = make_rows(args.rows)
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as directory:
        data, parquet = Path(directory, "rows.npy"), Path(directory, "rows.parquet")
        np.save(data, rows)
        write_parquet(rows, parquet)
        spark = start_spark()
        df = spark.read.parquet(str(parquet)).repartition(RANKS).cache()
        df.count()

        estimator = make_estimator(args.epochs, args.batch_size)
        warm_up = [run_fit(estimator, df) for _ in range(2)]
        run_torchrun(data, args.epochs, args.batch_size)
        fits, torchruns = [], []
        for number in range(args.rounds):
            fits.append(run_fit(estimator, df))
            torchruns.append(run_torchrun(data, args.epochs, args.batch_size))
            print(
                f"round {number + 1}: fit {fits[-1].seconds:.2f} s, torchrun {torchruns[-1].seconds:.2f} s",
                file=sys.stderr,
            )
        spark.stop()

    print("## PyTorch: fit\n")
    print(
        f"MLP {FEATURES}-64-1, {args.rows:,} rows, {args.epochs} epochs, batch {args.batch_size} x {RANKS} processes. "
        f"Spark local[{RANKS}], session running,\nDataFrame cached in {RANKS} partitions and materialised before. "
        "torchrun: whole process, after one that isn't counted;\none .npy file on local disk.\n"
    )
    print(f"{report.environment(PACKAGES)}\n\n{results(warm_up, fits, torchruns)}")


if __name__ == "__main__":
    main()

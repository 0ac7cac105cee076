"""`TorchEstimator.fit` in a running Spark session against the same training under ``torchrun``.

    python -m benchmarks.torch.fit --work mlp
    python -m benchmarks.torch.fit --work cnn

``mlp``: an MLP 20-64-1 (ReLU, Adam, MSELoss) on 200,000 rows of 20 features, 3 epochs, 256 rows a step from each
of 2 processes. ``cnn``: the network of examples/mnist.py (Adam, CrossEntropyLoss) on 10,000 digits of 28 x 28
bytes, 2 epochs, 32 rows a step from each. Our side is timed from the call of `fit` to its return; the other
side is a process, from its start to its end. Both train on the CPU with one thread a process.
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

from benchmarks import report
from benchmarks.torch.workloads import FEATURES, WORKLOADS
from sparktrain.torch import TorchEstimator

DIGITS = Path(__file__).resolve().parents[2] / "data" / "mnist10k.parquet"
IMAGE = (1, 28, 28)
COLUMNS: dict[str, dict[str, Any]] = {
    "mlp": {"feature_cols": ["features"], "label_cols": ["y"]},
    "cnn": {
        "feature_cols": ["image"],
        "label_cols": ["label"],
        "feature_dtypes": {"image": "uint8"},
        "feature_shapes": {"image": IMAGE},
    },
}
PACKAGES = ("sparktrain", "torch", "pyspark", "pyarrow", "numpy")
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training: all of it, the epochs alone, the last epoch's loss."""

    seconds: float
    training_s: float
    loss: float


def write_rows(count: int, directory: Path) -> None:
    """Rows of FEATURES features and a label with a smooth, noisy dependence, float32: columns ``features``, ``y``."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((count, FEATURES), dtype=np.float32)
    weights = rng.standard_normal((FEATURES, 2), dtype=np.float32)
    signal = np.tanh(features @ weights / 4).sum(axis=1) + 0.1 * rng.standard_normal(count, dtype=np.float32)
    labels = signal.astype(np.float32)
    offsets = np.arange(0, FEATURES * count + 1, FEATURES, dtype=np.int32)
    table = pa.table({"features": pa.ListArray.from_arrays(offsets, features.reshape(-1)), "y": labels})
    save(directory, table, features, labels[:, None])


def write_digits(count: int, directory: Path) -> None:
    """The first digits of the file: columns ``image``, 784 bytes, and ``label``."""
    table = pq.read_table(DIGITS).slice(0, count)
    pixels = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8)
    save(directory, table, pixels.reshape(table.num_rows, *IMAGE), table["label"].to_numpy())


WRITERS = {"mlp": write_rows, "cnn": write_digits}


def save(directory: Path, table: pa.Table, features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    """The same rows for Spark, as Parquet, and for ``torchrun``, as arrays ready to train on."""
    pq.write_table(table, directory / "rows.parquet")
    np.save(directory / "features.npy", features)
    np.save(directory / "labels.npy", labels)


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


def make_estimator(work: str, epochs: int, batch_size: int) -> TorchEstimator:
    workload = WORKLOADS[work]
    net = workload.make_network()
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=workload.learning_rate),
        loss=workload.loss(),
        **COLUMNS[work],
        num_proc=RANKS,
        batch_size=batch_size,
        epochs=epochs,
    )


def run_fit(estimator: TorchEstimator, df: DataFrame) -> Run:
    seconds, model = report.stopwatch(lambda: estimator.fit(df))
    return Run(seconds, sum(epoch["seconds"] for epoch in model.history), model.history[-1]["loss"])


def run_torchrun(work: str, directory: Path, epochs: int, batch_size: int) -> Run:
    """A fresh process, timed from its start to its end; imports and rendezvous included."""
    command = shutil.which("torchrun", path=os.path.dirname(sys.executable)) or "torchrun"
    launcher = ["--standalone", "--nproc-per-node", str(RANKS), "-m", "benchmarks.torch.torchrun_baseline"]
    settings = [work, str(directory), "--epochs", str(epochs), "--batch-size", str(batch_size)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def train() -> str:
        return subprocess.run(
            [command, *launcher, *settings], env=env, stdout=subprocess.PIPE, text=True, check=True
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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", choices=WORKLOADS, default="mlp")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of fit and torchrun")
    parser.add_argument("--rows", type=int, help="instead of the workload's own number")
    parser.add_argument("--epochs", type=int, help="likewise")
    parser.add_argument("--batch-size", type=int, help="rows a rank brings to a step; likewise")
    args = parser.parse_args()
    for name in ("rows", "epochs", "batch_size"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(WORKLOADS[args.work], name))
    return args


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as name:
        directory = Path(name)
        WRITERS[args.work](args.rows, directory)
        spark = start_spark()
        df = spark.read.parquet(str(directory / "rows.parquet")).repartition(RANKS).cache()
        df.count()

        estimator = make_estimator(args.work, args.epochs, args.batch_size)
        warm_up = [run_fit(estimator, df) for _ in range(2)]
        run_torchrun(args.work, directory, args.epochs, args.batch_size)
        fits, torchruns = [], []
        for number in range(args.rounds):
            fits.append(run_fit(estimator, df))
            torchruns.append(run_torchrun(args.work, directory, args.epochs, args.batch_size))
            print(
                f"round {number + 1}: fit {fits[-1].seconds:.2f} s, torchrun {torchruns[-1].seconds:.2f} s",
                file=sys.stderr,
            )
        spark.stop()

    title = WORKLOADS[args.work].title
    print(f"## PyTorch: fit, {title}\n")
    print(
        f"{title}, {args.rows:,} rows, {args.epochs} epochs, batch {args.batch_size} x {RANKS} processes. "
        f"Spark local[{RANKS}], session running,\nDataFrame cached in {RANKS} partitions and materialised before. "
        "torchrun: whole process, after one that isn't counted;\n.npy files on local disk.\n"
    )
    print(f"{report.environment(PACKAGES)}\n\n{results(warm_up, fits, torchruns)}")


if __name__ == "__main__":
    main()

"""`KerasEstimator.fit` in a running Spark session beside Keras's own `Model.fit` in one process, on each backend.

    python -m benchmarks.keras.fit --work mlp
    python -m benchmarks.keras.fit --work cnn

``mlp``: an MLP 20-64-1 (Adam, MSE) on 200,000 rows of 20 features, 3 epochs, 256 rows a step from each of 2 processes.
``cnn``: a small CNN on 10,000 digits of 28 x 28 bytes, 2 epochs, 32 rows a step from each. `Model.fit` has the global
batch and both cores. Our side is timed from the call of `fit` to its return, the other from a process's start to its
end. ``--horovod PYTHON`` adds `horovod.spark`'s KerasEstimator, run by the interpreter of an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks import report
from benchmarks.keras.workloads import FEATURES, WORKLOADS
from sparktrain.keras import KerasEstimator

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("tensorflow", "jax", "torch")
COLUMNS: dict[str, dict[str, Any]] = {
    "mlp": {"feature_cols": ["features"], "label_cols": ["y"]},
    "cnn": {
        "feature_cols": ["image"],
        "label_cols": ["label"],
        "feature_dtypes": {"image": "uint8"},
        "feature_shapes": {"image": (28, 28, 1)},
    },
}
PACKAGES = ("sparktrain", "keras", "tensorflow-cpu", "jax", "torch", "pyspark", "pyarrow", "numpy")
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training: all of it, its epochs, the last one's loss, and the import where it was measured."""

    seconds: float
    epochs: Sequence[float]
    loss: float
    import_s: float = 0.0


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
    table = pq.read_table(ROOT / "data" / "mnist10k.parquet").slice(0, count)
    pixels = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8)
    save(directory, table, pixels.reshape(table.num_rows, 28, 28, 1), table["label"].to_numpy())


WRITERS = {"mlp": write_rows, "cnn": write_digits}


def save(directory: Path, table: pa.Table, features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    """The same rows for Spark, as Parquet, and for `Model.fit`, as arrays."""
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


def run_fit(args: argparse.Namespace, backend: str, df: DataFrame) -> Run:
    work = WORKLOADS[args.work]
    estimator = KerasEstimator(
        model=work.make_network(),
        optimizer=keras.optimizers.Adam(1e-3),
        loss=work.loss,
        **COLUMNS[args.work],
        num_proc=RANKS,
        batch_size=args.batch_size,
        epochs=args.epochs,
        keras_backend=backend,
        verbose=0,
    )
    seconds, model = report.stopwatch(lambda: estimator.fit(df))
    return Run(seconds, [epoch["seconds"] for epoch in model.history], model.history[-1]["loss"])


def run_plain(
    args: argparse.Namespace, backend: str, directory: Path, *, processes: int, batch_size: int, threads: int
) -> Run:
    """Fresh processes at the same time, each on its share of the rows; the slowest one's figures."""
    settings = [args.work, str(directory), "--epochs", str(args.epochs), "--batch-size", str(batch_size)]
    command = [sys.executable, "-m", "benchmarks.keras.plain", *settings, "--rows", str(args.rows // processes)]
    env = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def train() -> list[dict[str, Any]]:
        running = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(processes)
        ]
        outputs = [process.communicate()[0] for process in running]
        return [json.loads(output.splitlines()[-1]) for output in outputs]

    seconds, found = report.stopwatch(train)
    slowest = max(found, key=lambda one: sum(one["epochs"]))
    return Run(seconds, slowest["epochs"], slowest["loss"], max(one["import_s"] for one in found))


def run_horovod(args: argparse.Namespace, directory: Path) -> list[Run]:
    """`horovod.spark` in its own environment, in a session of its own that does as many fits."""
    settings = [str(directory / "rows.parquet"), str(args.rounds), str(args.epochs), str(args.batch_size)]
    script = str(ROOT / "benchmarks" / "keras" / "horovod_baseline.py")
    done = subprocess.run(
        [args.horovod, script, *settings], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    return [Run(one["seconds"], [], one["loss"]) for one in map(json.loads, done.stdout.splitlines()[-args.rounds :])]


def results(args: argparse.Namespace, backend: str, fits: list[Run], plains: list[Run], shares: list[Run]) -> list[str]:
    """A backend's rows of the table of parts, in seconds, the last two in milliseconds a step."""
    steps = -(-(args.rows // RANKS) // args.batch_size)
    imported = median(run.import_s for run in shares)
    total, epochs = median(run.seconds for run in fits), median(sum(run.epochs) for run in fits)
    alone = median(run.epochs[-1] for run in shares) / steps * 1000
    step = median(run.epochs[-1] for run in fits) / steps * 1000
    values = [total, imported, total - imported - epochs, epochs, median(sum(run.epochs) for run in plains)]
    return [backend, *(f"{value:.2f}" for value in values), f"{alone:.2f}", f"{step:.2f}", f"{step - alone:.2f}"]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", choices=WORKLOADS, default="mlp")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="instead of the workload's own number")
    parser.add_argument("--epochs", type=int, help="likewise")
    parser.add_argument("--batch-size", type=int, help="rows a rank brings to a step; likewise")
    parser.add_argument("--horovod", metavar="PYTHON", help="the interpreter of an environment with horovod.spark")
    args = parser.parse_args()
    if args.horovod and args.work != "mlp":
        parser.error("--horovod trains the MLP alone")
    for name in ("rows", "epochs", "batch_size"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(WORKLOADS[args.work], name))
    return args


def main() -> None:
    args = parse_args()
    batch = args.batch_size
    fits: dict[str, list[Run]] = {backend: [] for backend in args.backends}
    plains: dict[str, list[Run]] = {backend: [] for backend in args.backends}
    shares: dict[str, list[Run]] = {backend: [] for backend in args.backends}
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as name:
        directory = Path(name)
        WRITERS[args.work](args.rows, directory)
        spark = start_spark()
        df = spark.read.parquet(str(directory / "rows.parquet")).repartition(RANKS).cache()
        df.count()
        first = {backend: run_fit(args, backend, df) for backend in args.backends}
        for number in range(args.rounds):
            for backend in args.backends:
                fits[backend].append(run_fit(args, backend, df))
                whole = {"processes": 1, "batch_size": batch * RANKS, "threads": RANKS}
                plains[backend].append(run_plain(args, backend, directory, **whole))
                share = {"processes": RANKS, "batch_size": batch, "threads": 1}
                shares[backend].append(run_plain(args, backend, directory, **share))
                print(
                    f"round {number + 1}, {backend}: fit {fits[backend][-1].seconds:.2f} s, "
                    f"Model.fit {plains[backend][-1].seconds:.2f} s",
                    file=sys.stderr,
                )
        spark.stop()
        horovods = run_horovod(args, directory) if args.horovod else []

    work = WORKLOADS[args.work]
    print(f"## Keras: fit, {work.title}\n")
    print(
        f"{work.title}, {args.rows:,} rows, {args.epochs} epochs, batch {batch} x {RANKS} processes. Spark "
        f"local[{RANKS}], session running,\nDataFrame cached in {RANKS} partitions and materialised before. Model.fit: "
        f"a whole process, batch {batch * RANKS}, {RANKS} threads;\n.npy files on local disk.\n"
    )
    timings, ratios = [], []
    for backend in args.backends:
        ours, theirs = [run.seconds for run in fits[backend]], [run.seconds for run in plains[backend]]
        loss = [f"{runs[-1].loss:.5f}" for runs in (fits[backend], plains[backend])]
        timings.append(report.timing_row(f"{backend}: fit, first in the session", [first[backend].seconds], loss[0]))
        timings.append(report.timing_row(f"{backend}: fit, {args.rounds} more", ours, loss[0]))
        timings.append(report.timing_row(f"{backend}: Model.fit, {args.rounds} processes", theirs, loss[1]))
        ratios.append(report.ratio_row(f"{backend}: fit / Model.fit, by pair", ours, theirs))
        if horovods:
            ratios.append(report.ratio_row(f"{backend}: fit / horovod.spark", ours, [run.seconds for run in horovods]))
    if horovods:
        seconds = [run.seconds for run in horovods]
        timings.append(report.timing_row(f"horovod.spark: fit, {args.rounds}", seconds, f"{horovods[-1].loss:.5f}"))
    parts = [results(args, name, fits[name], plains[name], shares[name]) for name in args.backends]
    print(report.environment(PACKAGES), end="\n\n")
    print(report.table(["", "median s", "min s", "max s", "final training loss"], timings), end="\n\n")
    print(report.table(["ratio (below 1: sparktrain is faster)", "median", "min", "max"], ratios), end="\n\n")
    header = ["parts, medians", "fit s", "import s", "launch, spool, model back s", "epochs s", "Model.fit's epochs s"]
    print(report.table([*header, "a rank's step alone, ms", "in the gang, ms", "overhead, ms"], parts))


if __name__ == "__main__":
    main()

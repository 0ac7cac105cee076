"""Memory of `TorchEstimator.fit` while a rank's shard grows: it should stay where it is.

    python -m benchmarks.torch.memory

An MLP 20-64-1 trains one epoch on shards of 0.2 to 2 GB, a tenth of their rows held out. During each fit the
anonymous memory (``RssAnon``, Linux) of every process of the gang is read 20 times a second: memory that can't be
given back, unlike the pages of mapped files.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from benchmarks import report
from benchmarks.torch.workloads import FEATURES, WORKLOADS
from sparktrain.torch import TorchEstimator

PACKAGES = ("sparktrain", "torch", "pyspark", "pyarrow", "numpy")
ROW_BYTES = FEATURES * 4 + 4 + 8  # features, label, row key
BATCH_ROWS = 1 << 15
SAMPLE_S = 0.05
WORKER, TASK = "worker process", "Spark's Python worker"


@dataclass(frozen=True)
class Peak:
    """The largest process of a role, in bytes; the two peaks need not be of the same moment."""

    anonymous: int
    mapped: int


@dataclass(frozen=True)
class Run:
    gigabytes: float
    rows: int
    seconds: float
    peaks: dict[str, Peak]


def role_of(process: psutil.Process) -> str | None:
    """A worker process, or a child of Spark's Python daemon; None for the JVM, the daemon itself and others."""
    command = process.cmdline()
    if "sparktrain.gang.worker" in command:
        return WORKER
    if "pyspark.daemon" in command and "pyspark.daemon" in psutil.Process(process.ppid()).cmdline():
        return TASK
    return None


def resident(process: psutil.Process) -> Peak:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    kilobytes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if "Rss" in name
    }
    return Peak(kilobytes["RssAnon"] << 10, kilobytes["RssFile"] << 10)


def sample(peaks: dict[str, Peak]) -> None:
    """Raise the peaks to what this process's descendants have now."""
    for process in psutil.Process().children(recursive=True):
        try:
            role = role_of(process)
            now = resident(process) if role else None
        except (psutil.Error, OSError, KeyError):  # it has ended meanwhile
            continue
        if role and now:
            peak = peaks[role]
            peaks[role] = Peak(max(peak.anonymous, now.anonymous), max(peak.mapped, now.mapped))


@contextmanager
def watched() -> Iterator[dict[str, Peak]]:
    """The peaks by role while the block runs."""
    peaks: dict[str, Peak] = defaultdict(lambda: Peak(0, 0))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            sample(peaks)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def start_spark(ranks: int) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{ranks}]")
        .appName("sparktrain-benchmark-memory")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.reuse", "false")  # each fit starts from a fresh process
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_frame(spark: SparkSession, rows: int, ranks: int) -> DataFrame:
    """Rows made as they are read, in `ranks` partitions: no file, no cache."""
    features = [((F.col("id") * (2 * number + 1)) % 1009 / 1009).cast("float") for number in range(FEATURES)]
    frame = spark.range(0, rows * ranks, numPartitions=ranks)
    return frame.select(F.array(*features).alias("features"), (F.col("id") % 7).cast("float").alias("y"))


def fit(df: DataFrame, ranks: int, *, shuffle: bool) -> None:
    net = WORKLOADS["mlp"].make_network()
    TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters()),
        loss=nn.MSELoss(),
        feature_cols=["features"],
        label_cols=["y"],
        validation=0.1,
        num_proc=ranks,
        partitioned=not shuffle,
        batch_size=BATCH_ROWS,
        epochs=1,
    ).fit(df)


def results(runs: list[Run]) -> str:
    """The Markdown tables."""

    def megabytes(size: int) -> str:
        return f"{size / 1e6:.0f}"

    header = ["shard", "rows", "seconds", *(f"{role}, MB" for role in (WORKER, TASK)), f"{WORKER}, mapped, MB"]
    rows = [
        [
            f"{run.gigabytes:g} GB",
            f"{run.rows:,}",
            f"{run.seconds:.0f}",
            *(megabytes(run.peaks[role].anonymous) for role in (WORKER, TASK)),
            megabytes(run.peaks[WORKER].mapped),
        ]
        for run in runs
    ]
    first = runs[0]
    growth = [
        [role, f"{round((max(run.peaks[role].anonymous for run in runs) - first.peaks[role].anonymous) / 1e6):+d}"]
        for role in (WORKER, TASK)
    ]
    title = f"largest peak, above that at {first.gigabytes:g} GB"
    return f"{report.table(header, rows)}\n\n{report.table([title, 'MB'], growth)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.2, 0.5, 1.0, 2.0], help="of one shard")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shuffle", action="store_true", help="let fit repartition, so that rows come in no order")
    args = parser.parse_args()

    spark = start_spark(args.ranks)
    runs = []
    for gigabytes in args.gigabytes:
        rows = int(gigabytes * 1e9 / ROW_BYTES)
        df = make_frame(spark, rows, args.ranks)
        with watched() as peaks:
            seconds, _ = report.stopwatch(lambda df=df: fit(df, args.ranks, shuffle=args.shuffle))
        runs.append(Run(gigabytes, rows, seconds, dict(peaks)))
        print(f"{gigabytes:g} GB: {seconds:.0f} s, {runs[-1].peaks}", file=sys.stderr)
    spark.stop()

    print("## PyTorch: memory\n")
    delivery = "shuffled by fit" if args.shuffle else "partitions as they are"
    print(
        f"MLP {FEATURES}-64-1, one epoch, a tenth held out, {BATCH_ROWS:,} rows a step from each of {args.ranks} "
        f"process{'es' if args.ranks > 1 else ''}.\nSpark local[{args.ranks}], rows made by `spark.range`, {delivery}. "
        "Peak RssAnon of the largest process of each kind,\nread every "
        f"{SAMPLE_S * 1000:.0f} ms; `mapped` is peak RssFile: shared libraries, and the parts of the shard that the "
        "kernel keeps at hand.\n"
    )
    print(f"{report.environment(PACKAGES)}\n\n{results(runs)}")


if __name__ == "__main__":
    main()

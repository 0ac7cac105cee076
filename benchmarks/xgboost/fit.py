"""`XGBoostClassifier.fit` beside ``xgboost.spark`` and bare `xgboost.train`: seconds and memory.

    python -m benchmarks.xgboost.fit

1,000,000 rows of 20 features, a label of two classes, 50 rounds of depth 6. Both Spark ways train on 2 ranks of one
thread in one session, on the same cached DataFrame, from the call of `fit` to its return. Bare XGBoost is a process of
its own with two threads and the rows in memory; from the making of its `QuantileDMatrix` to the end of `xgboost.train`.
Memory is the anonymous memory (``RssAnon``) of all Python processes below the JVM together, 20 times a second, in a
session of its own in which Spark reuses no Python worker: else those of earlier fits would count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from xgboost.spark import SparkXGBClassifier

from benchmarks import report
from benchmarks.xgboost.workload import CORES, FEATURES, PACKAGES, SETTINGS, read_rows, start_spark, write_rows
from sparktrain.xgboost import XGBoostClassifier

SAMPLE_S = 0.05
MEMORY_ROUNDS = 2
Fit = Callable[[DataFrame], Any]


def python_bytes() -> int:
    """Anonymous memory of the Python processes below this one: Spark's workers, and what they started."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            if "java" not in process.name():
                status = Path(f"/proc/{process.pid}/status").read_text()
                total += int(status.split("RssAnon:")[1].split()[0]) << 10
        except (psutil.Error, OSError, IndexError):  # it has ended meanwhile
            continue
    return total


@contextmanager
def watched() -> Iterator[list[int]]:
    """The peak while the block runs, as the list's only element."""
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], python_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def peaks_of(ways: dict[str, Fit], directory: Path, rounds: int) -> dict[str, list[float]]:
    """Megabytes of each way's fits."""
    spark = start_spark("xgboost-fit-memory", reuse=False)
    df = read_rows(spark, directory, CORES)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with watched() as peak:
                way(df)
            found[name].append(peak[0] / 1e6)
    spark.stop()
    return found


def run_bare(directory: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.xgboost.bare", str(directory)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(json.loads(shown.splitlines()[-1]))


def logloss(model: Any, df: DataFrame) -> float:
    positive = vector_to_array("probability")[1]
    loss = -F.log(F.when(F.col("label") > 0, positive).otherwise(1 - positive))
    return float(model.transform(df).select(F.mean(loss)).first()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of one fit each way")
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()

    columns = {"features_col": "features", "label_col": "label", "num_workers": CORES}
    ways: dict[str, Fit] = {
        "XGBoostClassifier": XGBoostClassifier(**columns, **SETTINGS).fit,
        "XGBoostClassifier, partitioned=True": XGBoostClassifier(**columns, **SETTINGS, partitioned=True).fit,
        "xgboost.spark": SparkXGBClassifier(**columns, **SETTINGS).fit,
    }
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as name:
        directory = Path(name)
        write_rows(args.rows, directory)
        spark = start_spark("xgboost-fit")
        df = read_rows(spark, directory, CORES)
        firsts = {name: report.stopwatch(lambda way=way: way(df)) for name, way in ways.items()}
        losses = {name: logloss(model, df) for name, (_, model) in firsts.items()}
        run_bare(directory)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        bare: list[dict[str, float]] = []
        for number in range(args.rounds):
            order = list(ways) if number % 2 else list(reversed(ways))
            for name in order:
                seconds[name].append(report.stopwatch(lambda way=ways[name]: way(df))[0])
            bare.append(run_bare(directory))
            shown = ", ".join(f"{name} {seconds[name][-1]:.2f} s" for name in ways)
            print(f"round {number + 1}: {shown}, bare {bare[-1]['fit_s']:.2f} s", file=sys.stderr)
        spark.stop()
        peaks = peaks_of(ways, directory, MEMORY_ROUNDS)

    ours, as_they_are, theirs = ways
    bare_s = [run["fit_s"] for run in bare]
    rows = [
        *(
            report.timing_row(f"{name}, first in the session", [first_s], "", "")
            for name, (first_s, _) in firsts.items()
        ),
        *(report.timing_row(name, seconds[name], f"{median(peaks[name]):.0f}", f"{losses[name]:.5f}") for name in ways),
        report.timing_row("xgboost.train, 2 threads", bare_s, "", f"{bare[-1]['logloss']:.5f}"),
    ]
    ratios = [
        report.ratio_row(f"{theirs} / {ours}, by round", seconds[theirs], seconds[ours]),
        report.ratio_row(f"{theirs} / {as_they_are}, by round", seconds[theirs], seconds[as_they_are]),
        report.ratio_row(f"{ours} / xgboost.train, by round", seconds[ours], bare_s),
        report.ratio_row(f"{as_they_are} / xgboost.train, by round", seconds[as_they_are], bare_s),
        report.ratio_row(f"peak memory: {ours} / {theirs}", peaks[ours], peaks[theirs]),
    ]
    print("## XGBoost: fit\n")
    print(
        f"{args.rows:,} rows of {FEATURES} features, two classes, {SETTINGS['n_estimators']} rounds of depth "
        f"{SETTINGS['max_depth']}. Spark local[{CORES}], session running,\nDataFrame cached in {CORES} partitions and "
        f"materialised before; {args.rounds} rounds of one fit each way after a first one.\n"
    )
    header = ["", "median s", "min s", "max s", "Python's peak memory, MB", "training logloss"]
    print(f"{report.environment(PACKAGES)}\n\n{report.table(header, rows)}\n")
    print(report.table(["ratio", "median", "min", "max"], ratios))


if __name__ == "__main__":
    main()

"""`XGBoostRegressorModel.transform` and the classifier's beside those of ``xgboost.spark``, and bare XGBoost.

    python -m benchmarks.xgboost.transform

1,000,000 rows of a long and an ML vector of 20, boosters of 50 rounds of depth 6. ``xgboost.spark`` trains them; what
it saved is loaded by our models, so that both ways have the same booster. The rows go to Spark's ``noop`` sink, so that
every column is computed and none is written. Bare XGBoost is `Booster.inplace_predict` on the features in memory, with
as many threads as Spark has cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost as xgb
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from xgboost.spark import SparkXGBClassifier, SparkXGBRegressor

from benchmarks import report
from benchmarks.xgboost.workload import CORES, FEATURES, PACKAGES, SETTINGS, read_rows, start_spark, write_rows
from sparktrain.xgboost import XGBoostClassifierModel, XGBoostRegressorModel

PARTITIONS = 4
CHECKED_ROWS = 1000
OURS, THEIRS, BARE = "sparktrain", "xgboost.spark", "inplace_predict"
VECTORS = ("rawPrediction", "probability")
TRAINERS: dict[str, tuple[Any, Any]] = {
    "regressor": (SparkXGBRegressor, XGBoostRegressorModel),
    "classifier": (SparkXGBClassifier, XGBoostClassifierModel),
}

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Contest:
    """The ways to predict with one booster."""

    task: str
    ours: Any
    theirs: Any
    bare: xgb.Booster

    def ways(self, df: DataFrame, features: Values) -> dict[str, Callable[[], object]]:
        """What is timed, by the name of its row."""
        return {
            f"{self.task}, {OURS}": lambda: consume(self.ours.transform(df)),
            f"{self.task}, {THEIRS}": lambda: consume(self.theirs.transform(df)),
            f"{self.task}, {BARE}": lambda: self.bare.inplace_predict(features),
        }


def make_contest(task: str, df: DataFrame, directory: Path) -> Contest:
    estimator, model = TRAINERS[task]
    theirs = estimator(features_col="features", label_col="label", num_workers=CORES, verbose=False, **SETTINGS).fit(df)
    path = str(directory / task)
    theirs.save(path)
    bare = xgb.Booster({"nthread": CORES})
    bare.load_model(theirs.get_booster().save_raw("ubj"))
    bare.set_param({"nthread": CORES})
    return Contest(task, model.load(path), theirs, bare)


def predicted(df: DataFrame) -> dict[str, Values]:
    """Each predicted column, in the order of ``id``."""
    names = [name for name in (*VECTORS, "prediction") if name in df.columns]
    columns = [vector_to_array(name).alias(name) if name in VECTORS else F.col(name) for name in names]
    rows = df.sort("id").select(columns).collect()
    return {name: np.array([row[name] for row in rows]) for name in names}


def check_equal(contest: Contest, df: DataFrame, features: Values) -> None:
    """Stop where the ways don't predict the same from the same rows."""
    few = df.where(F.col("id") < CHECKED_ROWS)
    found, other = (predicted(model.transform(few)) for model in (contest.ours, contest.theirs))
    bare = contest.bare.inplace_predict(features[:CHECKED_ROWS])
    other_bare = found["probability"][:, 1] if "probability" in found else found["prediction"]
    same = found.keys() == other.keys() and all(np.allclose(found[name], other[name], atol=1e-5) for name in found)
    if not (same and np.allclose(bare, other_bare, atol=1e-5)):
        raise SystemExit(f"{contest.task}: the ways predict different values: no comparison")


def threads_in_workers(spark: SparkSession) -> set[str]:
    """OMP_NUM_THREADS in Spark's Python workers."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            threads = os.environ.get("OMP_NUM_THREADS", "not set")
            yield pa.RecordBatch.from_pydict({"threads": pa.array([threads] * len(batch))})

    rows = spark.range(CORES, numPartitions=CORES).mapInArrow(look, "threads string").collect()
    return {row["threads"] for row in rows}


def consume(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def time_rounds(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round; every round begins with another way."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        ways[name]()
    for number in range(rounds):
        start = number % len(names)
        for name in [*names[start:], *names[:start]]:
            seconds[name].append(report.stopwatch(ways[name])[0])
        shown = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items())
        print(f"round {number + 1}: {shown}", file=sys.stderr)
    return seconds


def results(seconds: dict[str, list[float]], rows: int) -> str:
    """The Markdown tables."""
    timings = [report.timing_row(name, times, f"{rows / median(times):,.0f}") for name, times in seconds.items()]
    pairs = [pair for task in TRAINERS for pair in ((task, THEIRS, OURS), (task, OURS, BARE))]
    ratios = [
        report.ratio_row(f"{task}: {one} / {other}, by round", seconds[f"{task}, {one}"], seconds[f"{task}, {other}"])
        for task, one, other in pairs
    ]
    return (
        f"{report.table(['', 'median s', 'min s', 'max s', 'rows/s'], timings)}\n\n"
        f"{report.table(['ratio (above 1: the second is faster)', 'median', 'min', 'max'], ratios)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()

    for name in ("XGBoost-PySpark", *(estimator.__name__ for estimator, _ in TRAINERS.values())):
        logging.getLogger(name).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as name:
        directory = Path(name)
        write_rows(args.rows, directory)
        features = np.load(directory / "features.npy")
        spark = start_spark("xgboost-transform")
        table = read_rows(spark, directory, PARTITIONS)
        df = table.drop("label")
        ways: dict[str, Callable[[], object]] = {}
        for task in TRAINERS:
            contest = make_contest(task, table, directory)
            check_equal(contest, df, features)
            ways |= contest.ways(df, features)
        threads = threads_in_workers(spark)
        seconds = time_rounds(ways, args.rounds)
        arrow_rows = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        spark.stop()

    print("## XGBoost: transform\n")
    print(
        f"Boosters of {SETTINGS['n_estimators']} rounds of depth {SETTINGS['max_depth']}, {args.rows:,} rows of (id "
        f"long, features vector of {FEATURES}), {args.rounds} rounds after one that isn't counted.\n"
        f"Spark local[{CORES}], DataFrame cached in {PARTITIONS} partitions and materialised before, noop sink. Arrow "
        f"batches of up to {arrow_rows} rows.\nThe classifiers give rawPrediction, probability and prediction; "
        f"inplace_predict, float32 in memory, gives the value or the probability.\nOMP_NUM_THREADS in each Python "
        f"worker: {', '.join(sorted(threads))}; inplace_predict has {CORES} threads.\n"
    )
    print(f"{report.environment(PACKAGES)}\n\n{results(seconds, args.rows)}")


if __name__ == "__main__":
    main()

"""`XGBoostClassifier` beside `xgboost.XGBClassifier` on real rows: does it learn the same from them?

    python -m benchmarks.xgboost.flights PATH

PATH is the table ``flights`` of nycflights13 as Parquet: 336,776 flights out of New York in 2013. What is learnt is
which arrive more than 15 minutes late, from what is known when they depart. Strings are categories (`StringIndexer`),
nulls stay nulls. Both sides train 100 rounds of depth 6 on the same rows: ours on 2 ranks, over the DataFrame;
XGBoost's own in one process with 2 threads. Printed is the area under the ROC curve on the held-out fifth, for several
splits; the exit status is 1 where two differ by more than 0.002.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb
from pyspark.ml.feature import StringIndexer
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from sklearn.metrics import roc_auc_score

from benchmarks import report
from benchmarks.xgboost.workload import CORES, PACKAGES, start_spark
from sparktrain.xgboost import XGBoostClassifier

NUMBERS = (
    *("month", "day", "hour", "minute", "dep_time", "dep_delay", "sched_dep_time", "sched_arr_time", "distance"),
    "previous_delay",
)
STRINGS = ("carrier", "origin", "dest", "tailnum")
INDEXED = [f"{name}_index" for name in STRINGS]
FEATURES = [*NUMBERS, *INDEXED]
TYPES = ["q"] * len(NUMBERS) + ["c"] * len(INDEXED)
SETTINGS: dict[str, Any] = {"n_estimators": 100, "max_depth": 6}
LATE_MIN = 15
HELD_OUT = 5  # one row of so many
LARGEST_DIFFERENCE = 0.002


@dataclass(frozen=True)
class Outcome:
    """One split: its rows, and the area under the ROC curve of both sides."""

    seed: int
    train_rows: int
    test_rows: int
    ours: float
    bare: float

    @property
    def difference(self) -> float:
        return self.ours - self.bare

    def row(self) -> list[str]:
        counts = (f"{count:,}" for count in (self.train_rows, self.test_rows))
        return [str(self.seed), *counts, f"{self.ours:.5f}", f"{self.bare:.5f}", f"{self.difference:+.5f}"]


def read_flights(spark: SparkSession, path: str) -> DataFrame:
    """The flights that arrived, with ``label`` and ``previous_delay``: how late the same plane arrived before that day.

    It is null for a plane's first flight of the day, and where the one before did not arrive; cached.
    """
    flights = spark.read.parquet(path)
    order = Window.partitionBy("month", "day", "tailnum").orderBy("dep_time", "flight")
    before = F.lag("arr_delay").over(order)
    known = flights.withColumn("previous_delay", before).where("arr_delay is not null")
    return known.withColumn("label", (F.col("arr_delay") > LATE_MIN).cast("int")).repartition(CORES).cache()


def split(df: DataFrame, seed: int) -> tuple[DataFrame, DataFrame]:
    """Training and held-out rows by a hash of row and seed, with strings as categories; cached.

    The categories are those of the training rows; others that the held-out rows have are one more.
    """
    bucket = F.pmod(F.xxhash64(F.lit(seed), *df.columns), F.lit(HELD_OUT))
    train, test = df.where(bucket > 0), df.where(bucket == 0)
    indexer = StringIndexer(inputCols=list(STRINGS), outputCols=INDEXED, handleInvalid="keep").fit(train)
    parts = [indexer.transform(part).select(*FEATURES, "label").cache() for part in (train, test)]
    return parts[0], parts[1]


def arrays(df: DataFrame) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features, of which null is NaN, and labels."""
    rows = df.toPandas()
    return rows[FEATURES].to_numpy(np.float32), rows["label"].to_numpy()


def auc_of_ours(train: DataFrame, test: DataFrame, seed: int) -> float:
    estimator = XGBoostClassifier(features_col=FEATURES, num_workers=CORES, random_state=seed, **SETTINGS)
    model = estimator.fit(train)
    found = model.get_booster().feature_types
    if found != TYPES:
        raise SystemExit(f"the column metadata gave the feature types {found}, not {TYPES}: no comparison")
    rows = model.transform(test).select("label", vector_to_array("probability")[1].alias("late")).toPandas()
    return float(roc_auc_score(rows["label"], rows["late"]))


def auc_of_bare(train: DataFrame, test: DataFrame, seed: int) -> float:
    model = xgb.XGBClassifier(
        n_jobs=CORES, random_state=seed, enable_categorical=True, feature_types=TYPES, **SETTINGS
    ).fit(*arrays(train))
    features, labels = arrays(test)
    return float(roc_auc_score(labels, model.predict_proba(features)[:, 1]))


def compare(df: DataFrame, seed: int) -> Outcome:
    train, test = split(df, seed)
    ours, bare = auc_of_ours(train, test, seed), auc_of_bare(train, test, seed)
    outcome = Outcome(seed, train.count(), test.count(), ours, bare)
    for part in (train, test):
        part.unpersist()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", help="Parquet of nycflights13's flights")
    parser.add_argument("--splits", type=int, default=3)
    args = parser.parse_args()

    spark = start_spark("xgboost-flights")
    df = read_flights(spark, args.path)
    late, nulls = df.select(F.mean("label"), F.mean(F.isnull("previous_delay").cast("int"))).first()
    outcomes = [compare(df, seed) for seed in range(args.splits)]
    spark.stop()

    print("## XGBoost: flights\n")
    print(
        f"{SETTINGS['n_estimators']} rounds of depth {SETTINGS['max_depth']}, {len(FEATURES)} features, {len(INDEXED)} "
        f"of them categorical. {late:.1%} of the flights arrive more than {LATE_MIN} minutes late;\n{nulls:.1%} have "
        f"no previous_delay. XGBoostClassifier: Spark local[{CORES}], {CORES} ranks; XGBClassifier: {CORES} threads.\n"
    )
    header = ["split", "training rows", "held-out rows", "AUC, XGBoostClassifier", "AUC, XGBClassifier", "difference"]
    print(f"{report.environment(PACKAGES)}\n\n{report.table(header, [outcome.row() for outcome in outcomes])}")
    worst = max((outcome.difference for outcome in outcomes), key=abs)
    if abs(worst) > LARGEST_DIFFERENCE:
        sys.exit(f"The sides differ by {worst:+.5f}, more than {LARGEST_DIFFERENCE}")


if __name__ == "__main__":
    main()

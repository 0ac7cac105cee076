"""What the XGBoost benchmarks train on and with, and the Spark session they do it in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession

FEATURES = 20
CORES = 2
SETTINGS: dict[str, Any] = {"n_estimators": 50, "max_depth": 6, "learning_rate": 0.3}
PACKAGES = ("sparktrain", "xgboost-cpu", "pyspark", "pyarrow", "pandas", "numpy")


def write_rows(count: int, directory: Path) -> None:
    """`count` rows of FEATURES features, float32, and a label 0 or 1: Parquet for Spark, arrays for bare XGBoost."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((count, FEATURES), dtype=np.float32)
    weights = rng.standard_normal((FEATURES, 2), dtype=np.float32)
    signal = np.tanh(features @ weights / 4).sum(axis=1) + 0.5 * rng.standard_normal(count, dtype=np.float32)
    labels = (signal > 0).astype(np.float32)
    offsets = np.arange(0, FEATURES * count + 1, FEATURES, dtype=np.int32)
    values = pa.ListArray.from_arrays(offsets, features.reshape(-1))
    table = pa.table({"id": np.arange(count), "array": values, "label": labels})
    pq.write_table(table, directory / "rows.parquet")
    np.save(directory / "features.npy", features)
    np.save(directory / "labels.npy", labels)


def read_rows(spark: SparkSession, directory: Path, partitions: int) -> DataFrame:
    """Columns ``id``, ``features``, a vector, and ``label``; cached."""
    rows = spark.read.parquet(str(directory / "rows.parquet"))
    df = rows.select("id", array_to_vector(rows.array.cast("array<double>")).alias("features"), "label")
    df = df.repartition(partitions).cache()
    df.count()
    return df


def start_spark(name: str, *, reuse: bool = True) -> SparkSession:
    warnings.filterwarnings("ignore", category=FutureWarning)
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName(f"sparktrain-benchmark-{name}")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.reuse", str(reuse).lower())
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")  # of XGBoost, in every Python worker that predicts
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark

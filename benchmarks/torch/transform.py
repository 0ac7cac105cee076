"""`TorchModel.transform` against pyspark's `predict_batch_udf` and a hand-written `mapInArrow`.

    python -m benchmarks.torch.transform

1,000,000 rows of a long and an array<float> of 20 through an MLP 20-64-1. Each way appends one float column
to the rows; the rows go to Spark's ``noop`` sink, so that every column is computed and none is written.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import FloatType, StructField, StructType
from torch import nn

from benchmarks import report
from benchmarks.torch.workloads import FEATURES, WORKLOADS
from sparktrain.torch import TorchEstimator, TorchModel

PACKAGES = ("sparktrain", "torch", "pyspark", "pyarrow", "pandas", "numpy")
CORES = 2
PARTITIONS = 4
FIT_ROWS = 4096
CHECKED_ROWS = 1000

Transform = Callable[[DataFrame], DataFrame]
Batches = Iterator[pa.RecordBatch]


def write_parquet(count: int, path: Path) -> None:
    """Columns ``id``, long, ``features``, array<float>, and ``y``, float."""
    values = np.random.default_rng(0).standard_normal((count, FEATURES), dtype=np.float32)
    offsets = np.arange(0, FEATURES * count + 1, FEATURES, dtype=np.int32)
    features = pa.ListArray.from_arrays(offsets, values.reshape(-1))
    pq.write_table(pa.table({"id": np.arange(count), "features": features, "y": values.mean(axis=1)}), path)


def start_spark() -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("sparktrain-benchmark-transform")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")  # of torch, in every Python worker
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fit_model(df: DataFrame) -> TorchModel:
    """A model to predict with: one epoch on a small slice."""
    net = WORKLOADS["mlp"].make_network()
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters()),
        loss=nn.MSELoss(),
        feature_cols=["features"],
        label_cols=["y"],
        num_proc=CORES,
        batch_size=256,
    )
    return estimator.fit(df.where(F.col("id") < FIT_ROWS))


def by_predict_batch_udf(net: nn.Module, batch_size: int) -> Transform:
    """pyspark's own, as its documentation shows it; the model travels in the closure of `make_predict`."""

    def make_predict() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
        def predict(inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                return net(torch.from_numpy(inputs)).numpy()

        return predict

    udf = predict_batch_udf(
        make_predict, return_type=FloatType(), batch_size=batch_size, input_tensor_shapes=[[FEATURES]]
    )
    return lambda df: df.withColumn("prediction", udf("features"))


def by_map_in_arrow(net: nn.Module) -> Transform:
    """By hand, for this very schema: no copy of the input, one forward pass for each Arrow batch, no checks."""

    def predict(batches: Batches) -> Batches:
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        for batch in batches:
            values = batch.column("features").flatten().to_numpy()
            with torch.inference_mode():
                output = net(torch.from_numpy(values.reshape(-1, FEATURES))).numpy().reshape(-1)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(output)], names=[*batch.schema.names, "prediction"]
            )

    def transform(df: DataFrame) -> DataFrame:
        return df.mapInArrow(predict, StructType([*df.schema.fields, StructField("prediction", FloatType())]))

    return transform


def threads_in_workers(spark: SparkSession) -> set[int]:
    """Threads that torch uses in Spark's Python workers."""

    def count(batches: Batches) -> Batches:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"threads": pa.array([torch.get_num_threads()] * len(batch), pa.int64())})

    rows = spark.range(CORES, numPartitions=CORES).mapInArrow(count, "threads long").collect()
    return {row["threads"] for row in rows}


def check_equal(ways: dict[str, Transform], df: DataFrame) -> None:
    """Stop where the ways don't predict the same from the same rows."""
    few = df.where(F.col("id") < CHECKED_ROWS)
    found = {
        name: np.array([row["prediction"] for row in way(few).sort("id").select("prediction").collect()])
        for name, way in ways.items()
    }
    first, *others = found
    for other in others:
        if not np.allclose(found[first], found[other], atol=1e-5):
            raise SystemExit(f"{first} and {other} predict different values: no comparison")


def consume(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def time_rounds(ways: dict[str, Transform], df: DataFrame, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round; every round begins with another way."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        consume(ways[name](df))
    for number in range(rounds):
        start = number % len(names)
        for name in [*names[start:], *names[:start]]:
            way = ways[name]
            seconds[name].append(report.stopwatch(lambda way=way: consume(way(df)))[0])
    return seconds


def results(seconds: dict[str, list[float]], rows: int) -> str:
    """The Markdown tables; the first way is ours."""
    ours, *others = seconds
    timings = [
        report.timing_row(name, times, f"{rows / sorted(times)[len(times) // 2]:,.0f}")
        for name, times in seconds.items()
    ]
    ratios = [report.ratio_row(f"{ours} / {other}, by round", seconds[ours], seconds[other]) for other in others]
    return (
        f"{report.table(['', 'median s', 'min s', 'max s', 'rows/s'], timings)}\n\n"
        f"{report.table(['ratio (below 1: sparktrain is faster)', 'median', 'min', 'max'], ratios)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()

    spark = start_spark()
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as directory:
        parquet = Path(directory, "rows.parquet")
        write_parquet(args.rows, parquet)
        table = spark.read.parquet(str(parquet)).repartition(PARTITIONS).cache()
        table.count()
        model = fit_model(table)
        batch_size = model.getInferenceBatchSize()
        ways = {
            "TorchModel.transform": model.transform,
            "predict_batch_udf": by_predict_batch_udf(model.getModel(), batch_size),
            "mapInArrow by hand": by_map_in_arrow(model.getModel()),
        }
        df = table.drop("y")
        threads = threads_in_workers(spark)
        check_equal(ways, df)
        seconds = time_rounds(ways, df, args.rounds)
        arrow_rows = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.stop()

    print("## PyTorch: transform\n")
    print(
        f"MLP {FEATURES}-64-1, {args.rows:,} rows of (id long, features array<float>), {args.rounds} rounds after one "
        f"that isn't counted.\nSpark local[{CORES}], DataFrame cached in {PARTITIONS} partitions and materialised "
        f"before, noop sink.\nArrow batches of up to {arrow_rows} rows; {batch_size} rows a forward pass, by hand all "
        f"of an Arrow batch.\ntorch threads in each Python worker: {', '.join(map(str, sorted(threads)))}.\n"
    )
    print(f"{report.environment(PACKAGES)}\n\n{results(seconds, args.rows)}")


if __name__ == "__main__":
    main()

"""`horovod.spark`'s KerasEstimator on the MLP, in an environment of its own: old TensorFlow, Keras 2, old Spark.

    python benchmarks/keras/horovod_baseline.py ROWS.parquet ROUNDS EPOCHS BATCH_SIZE

How to make that environment is in benchmarks/README.md. Prints a line of JSON for each fit after the first, which
is not counted: its seconds, from the call of `fit` to its return, and its last loss.
"""

import json
import os
import sys
import tempfile
import time

os.environ["PYSPARK_PYTHON"] = sys.executable

import tensorflow as tf
from horovod.spark.common.store import LocalStore
from horovod.spark.keras import KerasEstimator
from pyspark.sql import SparkSession

RANKS, FEATURES = 2, 20


def main() -> None:
    path, rounds, epochs, batch_size = sys.argv[1], *map(int, sys.argv[2:])
    spark = SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    df = spark.read.parquet(path).repartition(RANKS).cache()
    df.count()
    for number in range(rounds + 1):
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Input((FEATURES,)), layers.Dense(64, "relu"), layers.Dense(1)])
        with tempfile.TemporaryDirectory() as store:
            estimator = KerasEstimator(
                num_proc=RANKS,
                store=LocalStore(store),
                model=model,
                optimizer=tf.keras.optimizers.Adam(1e-3),
                loss="mse",
                feature_cols=["features"],
                label_cols=["y"],
                batch_size=batch_size,
                epochs=epochs,
                verbose=0,
            )
            started = time.perf_counter()
            fitted = estimator.fit(df)
            seconds = time.perf_counter() - started
        if number:
            print(json.dumps({"seconds": seconds, "loss": float(fitted.getHistory()["loss"][-1])}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

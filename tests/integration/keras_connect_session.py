"""Keras on Spark Connect, in a process of its own: ``python -m tests.integration.keras_connect_session DIR``.

The classes and functions below are of ``__main__``: they travel by value, and the model has no ``get_config``.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from pyspark.sql import SparkSession

from sparktrain.errors import PersistenceError
from sparktrain.keras import KerasEstimator, KerasModel


class Net(keras.Model):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.hidden = layers.Dense(units, "tanh")
        self.last = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.hidden(x))


def squared(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 2


def main(directory: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        check(spark, directory)
    finally:
        spark.stop()


def check(spark: SparkSession, directory: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    rows = [([float(v) for v in x], float(x.sum())) for x in features]
    df = spark.createDataFrame(rows, "features array<float>, y double")
    model = KerasEstimator(
        model=Net(8),
        optimizer=keras.optimizers.Adam(0.05),
        loss=squared,
        feature_cols=["features"],
        label_cols=["y"],
        num_proc=2,
        batch_size=16,
        epochs=9,
        keras_backend="tensorflow",
        callbacks=[Stop()],
        verbose=0,
    ).fit(df)
    assert len(model.history) == 3, model.history
    predictions = [row.prediction for row in model.transform(df).select("prediction").collect()]
    expected = model.getModel().predict(np.array([row[0] for row in rows], np.float32), verbose=0).reshape(-1)
    np.testing.assert_allclose(predictions, expected, atol=1e-4)
    model.write().overwrite().save(f"file://{directory}/model")
    with pytest.raises(PersistenceError, match="trust=True"):
        KerasModel.load(f"file://{directory}/model")
    loaded = KerasModel.load(f"file://{directory}/model", trust=True)
    again = [row.prediction for row in loaded.transform(df).select("prediction").collect()]
    np.testing.assert_allclose(again, predictions, atol=1e-5)
    print("connect: all passed")


if __name__ == "__main__":
    main(sys.argv[1])

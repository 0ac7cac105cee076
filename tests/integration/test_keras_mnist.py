"""A usual Keras script on real digits, with the callbacks that such a script has, on each backend."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from sparktrain.keras import KerasEstimator

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

DATA = Path(__file__).resolve().parents[2] / "data" / "mnist10k.parquet"
TRAIN_ROWS = 8_000


@pytest.fixture(scope="module")
def digits(spark: SparkSession) -> DataFrame:
    return spark.read.parquet(str(DATA)).select("image", "label", F.col("_metadata.row_index").alias("row"))


def digit_net() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(64, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_digits(digits: DataFrame, backend: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(7)
    estimator = KerasEstimator(
        num_proc=2,
        store=tmp_path,
        run_id="digits",
        model=digit_net(),
        optimizer=keras.optimizers.Adam(2e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["image"],
        label_cols=["label"],
        feature_dtypes={"image": "uint8"},
        feature_shapes={"image": (28, 28, 1)},
        prediction_type="classification",
        validation=0.1,
        batch_size=32,
        epochs=8,
        callbacks=[
            callbacks.EarlyStopping(patience=1, restore_best_weights=True),
            callbacks.ModelCheckpoint("best.keras", save_best_only=True),
            callbacks.TensorBoard("logs"),
        ],
        keras_backend=backend,
        seed=7,
        verbose=0,
    )
    model = estimator.fit(digits.where(F.col("row") < TRAIN_ROWS))
    held_out = digits.where(F.col("row") >= TRAIN_ROWS)
    evaluator = MulticlassClassificationEvaluator(labelCol="label", metricName="accuracy")
    assert evaluator.evaluate(model.transform(held_out)) >= 0.96

    losses = [entry["val_loss"] for entry in model.history]
    assert losses.index(min(losses)) == len(losses) - 2 or len(losses) == 8, "stopped one epoch after the best"
    best = keras.saving.load_model(tmp_path / "digits" / "best.keras")
    for mine, kept in zip(model.keras().get_weights(), best.get_weights(), strict=True):
        np.testing.assert_allclose(mine, kept, atol=1e-6)

    for part, name in (("train", "loss"), ("validation", "val_loss")):
        (file,) = (tmp_path / "digits" / "logs" / part).iterdir()
        events = EventAccumulator(str(file)).Reload()
        found = [float(tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors("epoch_loss")]
        np.testing.assert_allclose(found, [entry[name] for entry in model.history], rtol=1e-5)

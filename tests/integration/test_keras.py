"""`KerasEstimator` on real Spark: two ranks on each Keras backend, callbacks, tuning, persistence, errors."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import callbacks, layers
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparktrain.errors import ColumnError, ParamError, RankFailed
from sparktrain.keras import KerasEstimator, KerasModel
from sparktrain.store import LocalStore, Store
from tests.integration.leftovers import wait_until, workers
from tests.keras import nets

pytestmark = pytest.mark.integration

BACKENDS = ("tensorflow", "jax", "torch")
COMMON: dict[str, Any] = {"feature_cols": ["features"], "num_proc": 2, "batch_size": 16, "verbose": 0}


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    """400 rows: ``features`` (4 floats), ``y`` a sum of them, ``kind`` of 3 classes, ``held`` true for a fifth."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 4)).astype(np.float32)
    y = features @ np.array([1.0, -2.0, 0.5, 0.0])
    kinds = np.digitize(y, [-1.0, 1.0])
    rows = [
        (i, [float(v) for v in x], float(t), int(k), i % 5 == 0)
        for i, (x, t, k) in enumerate(zip(features, y, kinds, strict=True))
    ]
    schema = "id long, features array<float>, y double, kind int, held boolean"
    return spark.createDataFrame(rows, schema).repartition(3).cache()


def classifier() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Dense(16, "relu")(inputs)))


def regressor(rate: float = 0.05) -> keras.Model:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_classifier_on_each_backend(df: DataFrame, backend: str, tmp_path: Path) -> None:
    estimator = KerasEstimator(
        model=classifier(),
        optimizer=keras.optimizers.Adam(0.05),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        label_cols=["kind"],
        validation="held",
        epochs=12,
        prediction_type="classification",
        keras_backend=backend,
        callbacks=[
            callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
            callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), save_best_only=True),
            callbacks.CSVLogger(str(tmp_path / "log.csv")),
        ],
        **COMMON,
    )
    model = estimator.fit(df)
    assert set(model.history[0]) == {
        *("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr", "rows_per_s", "seconds"),
    }
    out = model.transform(df)
    evaluator = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy")
    assert evaluator.evaluate(out) > 0.9

    # the best epoch's weights came back, on held-out rows of all ranks
    best = min(entry["val_loss"] for entry in model.history)
    held = df.filter("held").select("features", "kind").toPandas()
    x, y = np.stack(held.features.to_list()).astype("float32"), held.kind.to_numpy()
    loss, accuracy = model.getModel().evaluate(x, y, verbose=0)
    assert loss == pytest.approx(best, abs=1e-4)
    assert accuracy == pytest.approx(max(e["val_accuracy"] for e in model.history if e["val_loss"] == best), abs=1e-4)

    # writers wrote once, where the driver's user looks
    assert len((tmp_path / "log.csv").read_text().splitlines()) == len(model.history) + 1
    kept = keras.saving.load_model(tmp_path / "best.keras")
    assert kept.evaluate(x, y, verbose=0)[0] == pytest.approx(best, abs=1e-4)


@pytest.mark.slow
def test_custom_objects_are_found_by_name_wherever_the_model_runs(df: DataFrame, tmp_path: Path) -> None:
    custom_objects = {"halved": halved}
    with keras.saving.custom_object_scope(custom_objects):
        model = keras.Sequential([layers.Input((4,)), nets.Activated("halved"), layers.Dense(1)])
    estimator = KerasEstimator(
        model=model, loss="mse", label_cols=["y"], custom_objects=custom_objects, keras_backend="tensorflow", **COMMON
    )
    fitted = estimator.fit(df)
    expected = [row.prediction for row in fitted.transform(df.orderBy("id")).collect()]
    fitted.save(str(tmp_path / "model"))
    loaded = KerasModel.load(str(tmp_path / "model"), allow="tests")
    assert [row.prediction for row in loaded.transform(df.orderBy("id")).collect()] == expected


def test_a_model_spread_over_the_ranks(df: DataFrame, tmp_path: Path) -> None:
    def halves(devices: list[str]) -> keras.distribution.ModelParallel:
        mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), devices)
        layout = keras.distribution.LayoutMap(mesh)
        layout["dense.*/kernel"] = (None, "model")
        return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")

    net = keras.Sequential([layers.Input((4,)), layers.Dense(8, "relu"), layers.Dense(2)])
    common = {"loss": "mse", "label_cols": ["pair"], "epochs": 3, "model": net, **COMMON}
    pairs = df.withColumn("pair", F.array("y", "y").cast("array<float>"))
    with pytest.raises(ParamError, match="distribution: Keras has it on JAX alone, and keras_backend is 'torch'"):
        KerasEstimator(distribution=halves, keras_backend="torch", **common).fit(pairs)
    spread = KerasEstimator(distribution=halves, keras_backend="jax", **common).fit(pairs)
    copied = KerasEstimator(keras_backend="jax", **common).fit(pairs)
    for mine, other in zip(spread.keras().get_weights(), copied.keras().get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    assert spread.history[2]["loss"] == pytest.approx(copied.history[2]["loss"], rel=1e-5)


def halved(rows: Any) -> Any:
    return rows / 2


def test_callbacks_write_into_the_run_s_directory(
    df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(str(tmp_path / "runs"))
    common = {"model": regressor(), "label_cols": ["y"], "epochs": 2, "keras_backend": "torch", **COMMON}
    writers = [callbacks.ModelCheckpoint("kept/{epoch}.keras"), callbacks.CSVLogger("log.csv")]
    fitted = KerasEstimator(store=store, run_id="first", callbacks=writers, **common).fit(df)
    assert fitted.getRunId() == "first"
    assert sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.*")) == [
        "runs/first/kept/1.keras",
        "runs/first/kept/2.keras",
        "runs/first/log.csv",
    ]
    named = KerasEstimator(store=tmp_path / "runs", callbacks=writers, **common).fit(df)
    assert (tmp_path / "runs" / named.getRunId() / "log.csv").exists()
    fitted.save(str(tmp_path / "model"))
    assert KerasModel.load(str(tmp_path / "model")).getRunId() == "first"

    # without a store, where the driver is
    monkeypatch.chdir(tmp_path)
    KerasEstimator(callbacks=writers, **common).fit(df)
    assert (tmp_path / "kept" / "2.keras").exists()
    assert writers[0].filepath == "kept/{epoch}.keras", "the user's object is as it was"
    with pytest.raises(ParamError, match="run_id='first' names a directory in a store, and there is none"):
        KerasEstimator(run_id="first", **common).fit(df)
    with pytest.raises(ParamError, match="store"):
        KerasEstimator(store=3, **common)


def test_the_example_of_horovods_users(df: DataFrame, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1, "sigmoid")])
    train_df = df.withColumn("y", (F.col("y") > 0).cast("float"))
    keras_estimator = KerasEstimator(
        num_proc=2,
        store=store,
        model=model,
        optimizer=keras.optimizers.Adam(0.05),
        loss="binary_crossentropy",
        feature_cols=["features"],
        label_cols=["y"],
        batch_size=32,
        epochs=10,
        verbose=0,
    )
    keras_model = keras_estimator.fit(train_df).setOutputCols(["predict"])
    predicted = keras_model.transform(train_df).select("predict", "y").toPandas()
    assert ((predicted.predict > 0.5) == predicted.y).mean() > 0.9
    assert predicted.predict.between(0.001, 0.999).any()  # a probability, not rounded to the label's type


def test_a_compiled_model_keeps_its_own_and_trains_on(df: DataFrame, tmp_path: Path) -> None:
    estimator = KerasEstimator(model=regressor(), label_cols=["y"], epochs=2, prediction_type="regression", **COMMON)
    first = estimator.fit(df)
    assert set(first.history[0]) >= {"loss", "mae"}
    trained = first.getModel()
    steps = int(trained.optimizer.iterations)
    assert steps == 2 * 13  # 200 rows a rank, 16 a step
    second = estimator.copy().setModel(trained).fit(df)
    assert int(second.getModel().optimizer.iterations) == 2 * steps
    assert second.history[0]["loss"] < first.history[0]["loss"] / 2

    first.write().overwrite().save(str(tmp_path / "model"))
    loaded = KerasModel.load(str(tmp_path / "model"))
    evaluator = RegressionEvaluator(labelCol="y")
    assert evaluator.evaluate(loaded.transform(df)) == pytest.approx(evaluator.evaluate(first.transform(df)), abs=1e-6)
    assert loaded.history == first.history


def test_inputs_and_outputs_by_name(df: DataFrame) -> None:
    left, right = keras.Input((4,), name="left"), keras.Input((1,), name="right")
    hidden = layers.Concatenate()([layers.Dense(8, "tanh")(left), layers.Rescaling(1 / 400)(right)])
    outputs = {"value": layers.Dense(1, name="value")(hidden), "kind": layers.Dense(3, "softmax", name="kind")(hidden)}
    model = KerasEstimator(
        model=keras.Model({"left": left, "right": right}, outputs),
        optimizer=keras.optimizers.Adam(0.05),
        loss={"value": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"value": 1.0, "kind": 0.5},
        metrics={"kind": ["accuracy"]},
        label_cols={"kind": "kind", "value": "y"},
        epochs=8,
        **{**COMMON, "feature_cols": {"left": "features", "right": "id"}},
    ).fit(df)
    assert model.history[-1]["kind_accuracy"] > 0.8
    found = model.transform(df).select("prediction_kind", "prediction_y", "kind", "y").toPandas()
    assert (np.stack(found.prediction_kind.to_list()).argmax(1) == found.kind).mean() > 0.8
    assert np.abs(found.prediction_y - found.y).mean() < 1.0


@pytest.mark.slow
def test_tuning_and_pipelines(df: DataFrame, tmp_path: Path) -> None:
    estimator = KerasEstimator(model=regressor(), label_cols=["y"], prediction_type="regression", epochs=1, **COMMON)
    grid = ParamGridBuilder().addGrid(estimator.epochs, [1, 6]).build()
    evaluator = RegressionEvaluator(labelCol="y")
    tuned = CrossValidator(
        estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=1
    ).fit(df)
    assert tuned.avgMetrics[1] < tuned.avgMetrics[0]
    tuned.save(str(tmp_path / "tuned"))
    again = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert evaluator.evaluate(again.transform(df)) == pytest.approx(evaluator.evaluate(tuned.transform(df)), abs=1e-6)

    pipeline = Pipeline(stages=[estimator])
    pipeline.save(str(tmp_path / "pipeline"))
    fitted = Pipeline.load(str(tmp_path / "pipeline")).fit(df)
    fitted.save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert evaluator.evaluate(loaded.transform(df)) == pytest.approx(evaluator.evaluate(fitted.transform(df)), abs=1e-6)


class Fails(callbacks.Callback):
    """Fails on one rank, while the other goes on into its next exchange."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if os.environ["RANK"] == "1":
            raise RuntimeError("the callback has failed")


@pytest.mark.parametrize(
    "backend",
    [pytest.param("tensorflow", marks=pytest.mark.slow), pytest.param("jax", marks=pytest.mark.slow), "torch"],
)
def test_the_failing_rank_s_own_error_is_told(df: DataFrame, backend: str) -> None:
    given: dict[str, Any] = {"label_cols": ["y"], "keras_backend": backend, "epochs": 3, **COMMON}
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed .*: RuntimeError: the callback has failed"):
        KerasEstimator(model=regressor(), callbacks=[Fails()], **given).fit(df)


class Dies(callbacks.Callback):
    """Rank 1 is killed in the second epoch, as by the kernel's out-of-memory killer."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if os.environ["RANK"] == "1" and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "backend",
    [pytest.param("tensorflow", marks=pytest.mark.slow), "jax", pytest.param("torch", marks=pytest.mark.slow)],
)
def test_a_killed_rank_is_named_and_leaves_nothing(df: DataFrame, backend: str) -> None:
    given: dict[str, Any] = {"label_cols": ["y"], "keras_backend": backend, "epochs": 3, **COMMON}
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed .* killed by SIGKILL"):
        KerasEstimator(model=regressor(), callbacks=[Dies()], **given).fit(df)
    assert wait_until(lambda: not workers(), 20)


class Adversaries(keras.Model):
    """Two optimizers, and a compile and train_step of its own, as generative adversarial networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(1), layers.Dense(1)

    def compile(self, first_optimizer: Any, second_optimizer: Any) -> None:
        super().compile(loss="mse")
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    def call(self, rows: Any) -> Any:
        return self.first(rows) - self.second(rows)

    def train_step(self, data: Any) -> dict[str, Any]:
        import torch

        x, y = data
        for layer, optimizer in ((self.first, self.first_optimizer), (self.second, self.second_optimizer)):
            self.zero_grad()
            loss = keras.ops.mean(keras.ops.square(self(x) - y))
            loss.backward()
            with torch.no_grad():
                optimizer.apply([one.value.grad for one in layer.trainable_weights], layer.trainable_weights)
        self._loss_tracker.update_state(loss, sample_weight=len(x))
        return {"loss": self._loss_tracker.result()}


@pytest.mark.slow
def test_a_model_with_a_compile_and_two_optimizers_of_its_own(df: DataFrame) -> None:
    one, two = Adversaries(), Adversaries()
    for model in (one, two):
        model(np.zeros((1, 4), np.float32))
        model.compile(keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.02))
    two.set_weights(one.get_weights())
    given: dict[str, Any] = {"label_cols": ["y"], "keras_backend": "torch", "epochs": 4, "shuffle": False, **COMMON}
    alone = KerasEstimator(model=one, **{**given, "num_proc": 1, "batch_size": 400}).fit(df)
    together = KerasEstimator(model=two, **{**given, "batch_size": 200}).fit(df)
    assert alone.history[3]["loss"] < alone.history[0]["loss"] / 2
    assert together.history[3]["loss"] == pytest.approx(alone.history[3]["loss"], rel=1e-4)
    for mine, theirs in zip(together.keras().get_weights(), alone.keras().get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_errors_name_what_is_wrong(df: DataFrame) -> None:
    given: dict[str, Any] = {"label_cols": ["y"], **COMMON}
    with pytest.raises(ParamError, match="loss: give one"):
        KerasEstimator(model=classifier(), **given).fit(df)
    with pytest.raises(ParamError, match=r"EarlyStopping monitor='val_loss' needs validation="):
        KerasEstimator(model=regressor(), callbacks=[callbacks.EarlyStopping()], **given).fit(df)
    with pytest.raises(ParamError, match="label_cols names 2 columns, but the model has 1 outputs"):
        KerasEstimator(model=regressor(), **{**given, "label_cols": ["y", "kind"]}).fit(df)
    with pytest.raises(ColumnError, match="'kind' gives rows of shape"):
        KerasEstimator(model=regressor(), **{**given, "feature_cols": ["kind"]}).fit(df)
    with pytest.raises(ParamError, match=r"jit_compile=True: on the torch backend"):
        KerasEstimator(model=regressor(), jit_compile=True, **given).fit(df)
    with pytest.raises(ParamError, match="keras_backend"):
        KerasEstimator(model=regressor(), keras_backend="theano", **given)


class Watch(keras.callbacks.Callback):
    """Writes down what it finds in the worker."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_train_end(self, logs: object = None) -> None:
        import sys

        found = {
            "optimizer": type(self.model.optimizer).__name__,
            "imported": sorted({"jax", "sklearn", "tensorflow", "torch"} & set(sys.modules)),
        }
        Path(self.path).write_text(json.dumps(found))


@pytest.mark.parametrize("backend", BACKENDS)
def test_mixed_precision_and_metrics_of_several_values(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """The driver's policy reaches the workers, which scale the loss; they import one framework; history has lists."""
    df = spark.range(60).select(
        F.array(F.col("id").cast("float") / 60, F.lit(1.0).cast("float")).alias("x"),
        F.array(*((F.col("id") % 3 == kind).cast("float") for kind in range(3))).alias("y"),
    )
    keras.config.set_dtype_policy("mixed_float16")
    try:
        net = keras.Sequential(
            [keras.layers.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(3, "softmax", dtype="float32")]
        )
        model = KerasEstimator(
            model=net,
            optimizer="sgd",
            loss="categorical_crossentropy",
            metrics=[keras.metrics.F1Score(name="f1")],
            feature_cols=["x"],
            label_cols=["y"],
            validation=0.2,
            num_proc=2,
            keras_backend=backend,
            callbacks=[Watch(str(tmp_path / "found"))],
            verbose=0,
        ).fit(df)
    finally:
        keras.config.set_dtype_policy("float32")
    found = json.loads((tmp_path / "found").read_text())
    assert found["optimizer"] == "LossScaleOptimizer"
    assert found["imported"] == [backend]
    for name in ("f1", "val_f1"):
        assert len(model.history[0][name]) == 3
    assert isinstance(model.getModel().optimizer, keras.optimizers.LossScaleOptimizer)


class Guided(keras.Model):
    """With a train_step as Keras's guide for PyTorch has it: its logs hold those of the compiled metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.line = layers.Dense(1)

    def call(self, rows: Any) -> Any:
        return self.line(rows)

    def train_step(self, data: Any) -> dict[str, Any]:
        import torch

        x, y = data
        self.zero_grad()
        predicted = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=predicted)
        loss.backward()
        trained = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in trained], trained)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=len(x))
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def test_a_train_step_as_in_keras_s_guide(df: DataFrame) -> None:
    given: dict[str, Any] = {"label_cols": ["y"], "keras_backend": "torch", "epochs": 2, "shuffle": False, **COMMON}
    net = Guided()
    net(np.zeros((1, 4), np.float32))
    net.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    alone = KerasEstimator(model=net, **{**given, "num_proc": 1, "batch_size": 400}).fit(df)
    together = KerasEstimator(model=net, **{**given, "batch_size": 200}).fit(df)
    for epoch in range(2):
        for name in ("loss", "mae"):
            assert together.history[epoch][name] == pytest.approx(alone.history[epoch][name], rel=1e-4)

"""`KerasModel` on Spark: plain models wrapped, saved and loaded, and two Keras backends on the same workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
from pyspark.ml import PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparktrain.errors import ColumnError, ParamError, PersistenceError
from sparktrain.keras import KerasModel
from tests.integration.leftovers import command, processes, running
from tests.keras import nets

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """60 rows: scalars a to d, an array of them, an item, a context of three, a class."""
    scalars = [(F.rand(seed)).cast("float").alias(name) for seed, name in enumerate("abcd")]
    return (
        spark.range(60)
        .repartition(2, "id")
        .select("id", *scalars)
        .withColumn("features", F.array("a", "b", "c", "d"))
        .withColumn("item", (F.col("id") % 10).cast("int"))
        .withColumn("context", F.array("a", "b", "c"))
        .withColumn("label", (F.col("id") % 3).cast("double"))
        .cache()
    )


def collected(df: DataFrame, *columns: str) -> list[np.ndarray[Any, Any]]:
    found = df.orderBy("id").select(*columns).collect()
    return [np.array([row[name] for row in found], dtype="float32") for name in columns]


def test_a_model_without_a_fit(rows: DataFrame) -> None:
    net = nets.dense(2)
    out = KerasModel(model=net, feature_cols=["features"], inference_batch_size=16).transform(rows)
    assert out.schema["prediction"].dataType == T.ArrayType(T.FloatType(), False)
    features, prediction = collected(out, "features", "prediction")
    np.testing.assert_allclose(prediction, net.predict(features, verbose=0), atol=1e-5)

    joined = KerasModel(model=net, feature_cols=["a", "b", "c", "d"])
    assert joined.getModel() is joined.keras() is net
    np.testing.assert_allclose(collected(joined.transform(rows), "prediction")[0], prediction, atol=1e-5)

    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    scalar = KerasModel(model=unbuilt, feature_cols=["features"], prediction_type="regression").transform(rows)
    assert scalar.schema["prediction"].dataType == T.DoubleType()
    np.testing.assert_allclose(
        collected(scalar, "prediction")[0], unbuilt.predict(features, verbose=0)[:, 0], atol=1e-5
    )
    with pytest.raises(Exception, match=r"rows of shape \(3,\) .* but their expected shape is \(4,\)"):
        KerasModel(model=net, feature_cols=["context"]).transform(rows).collect()
    with pytest.raises(ColumnError, match=r"rows of shape \(2,\), but model .* takes 1 input: .* \(4,\)"):
        KerasModel(model=net, feature_cols=["a", "b"]).transform(rows)
    pair = nets.Pair(3)
    pair(features)
    with pytest.raises(ParamError, match="it failed on one row of zeros"):
        KerasModel(model=pair, feature_cols=["context"]).transform(rows)


def test_inputs_and_outputs_by_name(rows: DataFrame) -> None:
    net = nets.towers("dict")
    model = KerasModel(model=net, feature_cols={"item": "item", "context": "context"})
    out = model.transform(rows)
    names = [name for name in out.columns if name.startswith("prediction")]
    assert sorted(names) == ["prediction_classes", "prediction_value"]
    assert out.schema["prediction_value"].dataType == T.FloatType()
    item, context, classes, value = collected(out, "item", "context", "prediction_classes", "prediction_value")
    expected = net.predict({"item": item, "context": context}, verbose=0)
    np.testing.assert_allclose(classes, expected["classes"], atol=1e-5)
    np.testing.assert_allclose(value, expected["value"][:, 0], atol=1e-5)

    net = nets.towers()
    out = KerasModel(model=net, feature_cols=["item", "context"], output_cols=["classes", "value"]).transform(rows)
    for found, wanted in zip(collected(out, "classes", "value"), net.predict([item, context], verbose=0), strict=True):
        np.testing.assert_allclose(found, wanted.squeeze(), atol=1e-5)
    with pytest.raises(ColumnError, match="no column for input 'context'"):
        KerasModel(model=net, feature_cols={"item": "item"}).transform(rows)


def test_classes_as_spark_s_evaluators_read_them(rows: DataFrame) -> None:
    net = nets.dense(3, "softmax")
    model = KerasModel(model=net, feature_cols=["features"], prediction_type="classification")
    out = model.transform(rows)
    assert out.schema["probability"].dataType == VectorUDT()
    features, probability, prediction = collected(out, "features", "probability", "prediction")
    expected = net.predict(features, verbose=0)
    np.testing.assert_allclose(probability, expected, atol=1e-5)
    assert prediction.tolist() == expected.argmax(1).tolist()
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(out)
    assert accuracy == pytest.approx(np.mean(expected.argmax(1) == np.arange(60) % 3))
    with pytest.raises(ParamError, match="set outputs='logits' or outputs='probabilities'"):
        KerasModel(model=nets.dense(3), feature_cols=["features"], prediction_type="classification").transform(rows)
    with pytest.raises(ParamError, match="needs a model of one output; this one has 2"):
        KerasModel(model=nets.towers(), feature_cols=["item", "context"], prediction_type="classification").transform(
            rows
        )


def scaled(inputs: Any, labels: Any, training: bool) -> Any:
    return inputs / 2, labels


def test_saved_and_loaded(rows: DataFrame, tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input((4,)), nets.Plus(0.5), keras.layers.Dense(3)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    settings = {"transform_batch": scaled, "prediction_type": "classification", "keras_backend": "torch"}
    model = KerasModel(model=net, feature_cols=["features"], **settings)
    expected = collected(model.transform(rows), "probability")[0]
    PipelineModel([model]).save(str(tmp_path / "pipeline"))
    (path,) = (tmp_path / "pipeline" / "stages").iterdir()
    with pytest.raises(PersistenceError, match=r"load\(path, allow=\('tests',\)\)"):
        KerasModel.load(str(path))
    loaded = KerasModel.load(str(path), allow="tests")
    assert loaded.uid == model.uid
    assert loaded.getKerasBackend() == "torch"
    np.testing.assert_allclose(collected(loaded.transform(rows), "probability")[0], expected, atol=1e-6)
    keras.saving.load_model(path / "model.keras", custom_objects={"Plus": nets.Plus})


def test_a_lambda_needs_trust(rows: DataFrame, tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda rows: rows * 2)])
    KerasModel(model=net, feature_cols=["features"]).save(str(tmp_path / "model"))
    with pytest.raises(PersistenceError, match=r"load\(path, trust=True\)"):
        KerasModel.load(str(tmp_path / "model"))
    loaded = KerasModel.load(str(tmp_path / "model"), trust=True)
    np.testing.assert_allclose(loaded.keras().predict(np.ones((1, 4)), verbose=0), [[2.0] * 4])


def test_two_backends_on_the_same_workers(rows: DataFrame) -> None:
    net = nets.dense(2)
    found = {}
    for backend in ("torch", "jax", "torch"):
        model = KerasModel(model=net, feature_cols=["features"], keras_backend=backend)
        features, found[backend] = collected(model.transform(rows), "features", "prediction")
        np.testing.assert_allclose(found[backend], net.predict(features, verbose=0), atol=1e-5)
    workers = {one.pid for one in running("pyspark.daemon")}
    children = [one for one in processes() if "spawn_main" in " ".join(command(one)) and one.ppid() in workers]
    assert children, "no worker has computed in a child"
    for child in children:
        os.kill(child.ppid(), signal.SIGKILL)  # as Spark ends them
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive

"""The column matrix: a feature of every kind and a label of every kind, trained, transformed, saved and loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparktrain.torch import TorchEstimator, TorchModel
from tests.integration.nets import AllKinds

pytestmark = pytest.mark.integration
ROWS = 60
LABELS = {
    "value": nn.MSELoss(),
    "flag": nn.BCEWithLogitsLoss(),
    "class": nn.CrossEntropyLoss(),
    "pair": nn.L1Loss(),
    "grid": nn.MSELoss(),
    "vector": nn.BCEWithLogitsLoss(),
}


def sparse_or_dense(k: int, sparse: bool) -> object:
    return Vectors.sparse(3, {0: float(k), 2: k + 1.0}) if sparse else Vectors.dense(k, 0, k + 1)


@pytest.fixture(scope="module")
def everything(spark: SparkSession) -> DataFrame:
    """Columns that all encode k = id % 5, and labels."""
    k = F.col("k")
    real = k.cast("double")
    triple = F.array(real, real + 1, real / 4)
    vector = F.udf(lambda k: Vectors.dense(k, k + 1, k / 4), VectorUDT())
    sparse = F.udf(lambda k: sparse_or_dense(k, sparse=True), VectorUDT())
    mixed = F.udf(lambda k: sparse_or_dense(k, sparse=k % 2 == 0), VectorUDT())
    image = F.udf(lambda k: bytes(range(k, k + 4)), T.BinaryType())
    samples = F.udf(lambda k: struct.pack("<2f", k, k + 0.5), T.BinaryType())
    features = {
        **{name: k.cast(name) for name in ("byte", "short", "int", "long")},
        **{name: (real / 4).cast(name) for name in ("float", "double")},
        "decimal": (real / 4).cast("decimal(10, 2)"),
        "boolean": k == 2,
        "double64": real / 4,
        "int_as_float": k.cast("int"),
        "reals": triple.cast("array<float>"),
        "ints": F.array(k, k + 1).cast("array<int>"),
        "flags": F.array(k == 1, k == 2),
        "nested": F.array(F.array(real, real + 1), F.array(real + 2, real + 3)),
        "reshaped": F.array(real, real + 1, real + 2, real + 3),
        "dense": vector(k),
        "sparse": sparse(k),
        "mixed": mixed(k),
        "image": image(k),
        "samples": samples(k),
        "padded": F.when(k == 0, F.array().cast("array<bigint>")).otherwise(F.sequence(k, 2 * k - 1)),
    }
    labels = {
        "label_value": (real / 4).cast("decimal(10, 3)"),
        "label_flag": (k % 2).cast("int"),
        "label_class": (k % 3).cast("double"),
        "label_pair": F.array(real, -real),
        "label_grid": F.array(F.array(real, real), F.array(real, real)).cast("array<array<float>>"),
        "label_vector": F.udf(lambda k: Vectors.dense(k % 2, 1, 0), VectorUDT())(k),
    }
    return (
        spark.range(ROWS)
        .withColumn("k", F.col("id") % 5)
        .select("id", *[column.alias(name) for name, column in (features | labels).items()])
        .cache()
    )


def test_every_kind_of_feature_against_every_kind_of_label(everything: DataFrame, tmp_path: Path) -> None:
    net = AllKinds()
    own = [name for name in everything.columns if name != "id" and not name.startswith("label_")]
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.05),
        loss=list(LABELS.values()),
        feature_cols={**{name: name for name in own}, "joined": ["int", "double", "boolean", "reals"]},
        feature_dtypes={"double64": "float64", "int_as_float": "float32", "image": "uint8", "samples": "float32"},
        feature_shapes={"image": (1, 2, 2), "samples": (2,), "reshaped": (2, 2)},
        pad={"padded": "longest"},
        label_cols=[f"label_{name}" for name in LABELS],
        num_proc=2,
        batch_size=8,
        epochs=3,
        validation=0.2,
        verbose=0,
    )
    model = estimator.fit(everything)  # the model itself checks what it is given
    assert model.history[-1]["loss"] < model.history[0]["loss"]

    out = model.transform(everything)
    shown = {field.name: field.dataType.simpleString() for field in out.schema.fields}
    assert {name: shown[f"prediction_label_{name}"] for name in LABELS} == {
        **{"value": "float", "flag": "float", "class": "array<float>"},
        **{"pair": "array<float>", "grid": "array<array<float>>", "vector": "array<float>"},
    }
    first = out.orderBy("id").collect()
    assert len(first) == ROWS
    trained = model.getModel()
    expected = trained.classes(trained.embed(torch.tensor([row["long"] for row in first])))
    torch.testing.assert_close(torch.tensor([row["prediction_label_class"] for row in first]), expected)

    model.save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"), allow=("tests",)).transform(everything).orderBy("id").collect()
    assert again == first

    estimator.save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"), allow=("tests",))
    assert loaded.getFeatureCols() == estimator.getFeatureCols()
    assert loaded.getPad() == {"padded": "longest"}

"""The client of a Spark Connect server started apart: ``python -m tests.integration.remote_session URL DIR``.

The server has another working directory and home, and of this project it knows the package alone: the
models below exist in this process (`Net`) and in a module on this side (`tests.integration.nets`).
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import GangError, PersistenceError
from sparktrain.torch import TorchEstimator, TorchModel
from tests.integration.nets import Line

ROOT = Path(__file__).resolve().parents[2]


class Net(nn.Module):
    """Defined in ``__main__``, so it travels by value."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def estimator(net: nn.Module) -> TorchEstimator:
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.05),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=50,
        epochs=3,
        prediction_type="regression",
    )


def by_value(df: DataFrame, directory: str) -> None:
    model = Pipeline(stages=[estimator(Net())]).fit(df)
    predictions = model.transform(df)
    assert RegressionEvaluator(labelCol="y").evaluate(predictions) < 1
    path = f"{directory}/pipeline"
    model.write().overwrite().save(path)
    with pytest.raises(PersistenceError, match="holds code by value"):
        PipelineModel.load(path)
    df.sparkSession.conf.set("spark.sparktrain.trust", "true")
    again = PipelineModel.load(path).transform(df)
    assert again.orderBy("id").collect() == predictions.orderBy("id").collect()
    df.sparkSession.conf.unset("spark.sparktrain.trust")


def by_module(df: DataFrame, directory: str) -> None:
    """A class of a module that only the client has: the server must be told of it."""
    with pytest.raises(GangError, match="No module named 'tests'") as caught:
        estimator(Line()).fit(df)
    assert "spark.addArtifact" in str(caught.value), str(caught.value)
    package = f"{directory}/package.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for name in ("tests/__init__.py", "tests/integration/__init__.py", "tests/integration/nets.py"):
            archive.write(ROOT / name, name)
    df.sparkSession.addArtifact(package, pyfile=True)
    model = estimator(Line()).fit(df)
    model.save(f"{directory}/model")
    loaded = TorchModel.load(f"{directory}/model", allow=("tests",))
    assert loaded.transform(df).orderBy("id").collect() == model.transform(df).orderBy("id").collect()


def main(url: str, directory: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    df = spark.range(1000).select("id", x, (2 * x + 1).cast("float").alias("y"))
    by_value(df, directory)
    by_module(df, directory)
    model = TorchModel(model=nn.Linear(1, 1), feature_cols=["x"])
    model._fitted([], ((1,),), (("float32", (1,)),), ("y",)).save("a relative/path")
    assert TorchModel.load("a relative/path").transform(df).count() == 1000
    assert not Path("a relative").exists(), "a relative path is the server's"
    spark.stop()
    print("remote: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])

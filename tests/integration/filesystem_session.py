"""Saves on file systems with and without a scheme, in a process of its own.

``python -m tests.integration.filesystem_session classic|connect DIR``: the default file system is Hadoop's
``viewfs://home``, a table of names over local directories; ``viewfs://other`` is another one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from torch import nn

from sparktrain.errors import PersistenceError
from sparktrain.torch import TorchEstimator, TorchModel

HISTORY = [{"epoch": 1, "loss": 0.5}]


def session(kind: str, directory: Path) -> SparkSession:
    builder = SparkSession.builder
    builder = builder.master("local[2]") if kind == "classic" else builder.remote("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": f"file:{directory}/warehouse",
        "spark.hadoop.fs.defaultFS": "viewfs://home/",
        "spark.hadoop.fs.viewfs.mounttable.home.link./data": f"file://{directory}/home",
        "spark.hadoop.fs.viewfs.mounttable.home.link./tmp": f"file://{directory}/tmp",
        "spark.hadoop.fs.viewfs.mounttable.other.link./data": f"file://{directory}/other",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def fitted(net: nn.Module) -> TorchModel:
    model = TorchModel(model=net, feature_cols=["x"])
    return model._fitted(HISTORY, ((1,),), (("float32", (1,)),), ("y",))


def check_model(path: str, lies_in: Path, net: nn.Linear, *, in_pieces: bool = False) -> None:
    """Saves, loads and overwrites `path`; all parts must lie in the local directory `lies_in`."""
    fitted(nn.Linear(2, 3)).save(path)
    with pytest.raises(PersistenceError, match="already exists"):
        fitted(net).save(path)
    fitted(net).write().overwrite().save(path)
    assert list(lies_in.glob("metadata/part-*"))
    for name in ("structure.pkl", "model.safetensors"):
        assert (lies_in / name).is_dir() if in_pieces else (lies_in / name).is_file(), name
    loaded = TorchModel.load(path)
    assert loaded.history == HISTORY
    assert torch.equal(loaded.getModel().weight, net.weight)


def main(kind: str, directory: Path) -> None:
    home, other, local = directory / "home", directory / "other", directory / "local"
    for made in (home, other, local, directory / "tmp"):
        made.mkdir()
    spark = session(kind, directory)
    net = nn.Linear(1000, 2500)  # 10 MB: several pieces

    check_model("/data/model", home / "model", net)
    check_model("viewfs://home/data/full name", home / "full name", net)
    check_model(f"file://{local}/a model", local / "a model", net)
    check_model("viewfs://other/data/model", other / "model", net, in_pieces=kind == "connect")

    estimator = TorchEstimator(model=net, optimizer=torch.optim.Adam, epochs=7)
    Pipeline(stages=[estimator]).write().overwrite().save("/data/pipeline")
    assert len(list((home / "pipeline").glob("stages/*/model.safetensors"))) == 1
    assert Pipeline.load("/data/pipeline").getStages()[0].getEpochs() == 7
    PipelineModel([fitted(net)]).save("viewfs://other/data/pipeline")
    again = PipelineModel.load("viewfs://other/data/pipeline")
    assert torch.equal(again.stages[0].getModel().weight, net.weight)

    grid = ParamGridBuilder().addGrid(estimator.loss, [nn.MSELoss(), nn.L1Loss()]).build()
    CrossValidator(estimator=estimator, estimatorParamMaps=grid, evaluator=RegressionEvaluator()).save("/data/tuner")
    tuner = CrossValidator.load("/data/tuner")
    losses = [tuner.getEstimator().copy(point).getLoss() for point in tuner.getEstimatorParamMaps()]
    assert [type(loss) for loss in losses] == [nn.MSELoss, nn.L1Loss]
    spark.stop()
    print("file systems: all passed")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

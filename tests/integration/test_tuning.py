"""Spark's tuners over grids of callables and modules: fit, save, load, fit again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
    TrainValidationSplitModel,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import PersistenceError
from sparktrain.persistence import ALLOW
from sparktrain.torch import TorchEstimator
from tests.integration.nets import Line

pytestmark = pytest.mark.integration

SLOW_SGD, SGD = partial(torch.optim.SGD, lr=1e-6), partial(torch.optim.SGD, lr=0.3)
Grid = list[dict]


@pytest.fixture(scope="module")
def line(spark: SparkSession) -> DataFrame:
    """300 rows of y = 2 x + 1."""
    x = (F.col("id") / 150 - 1).cast("float").alias("x")
    return spark.range(300).select("id", x, (2 * x + 1).cast("float").alias("y")).cache()


def estimator() -> TorchEstimator:
    return TorchEstimator(
        model=nn.Linear(1, 1),
        feature_cols=["x"],
        label_cols=["y"],
        prediction_type="regression",
        num_proc=1,
        epochs=2,
        verbose=0,
    )


def grid_of(est: TorchEstimator) -> Grid:
    losses = ParamGridBuilder().addGrid(est.loss, [nn.SmoothL1Loss(beta=0.5)]).addGrid(est.lrScheduler, [None])
    return losses.addGrid(est.optimizer, [SLOW_SGD, SGD]).build()


def check_values(grid: Grid, est: TorchEstimator) -> None:
    """The values of `grid_of`, after loading."""
    copies = [est.copy(point) for point in grid]
    assert [(type(copied.getLoss()), copied.getLoss().beta) for copied in copies] == [(nn.SmoothL1Loss, 0.5)] * 2
    assert [copied.getOptimizer().func for copied in copies] == [torch.optim.SGD] * 2
    assert [copied.getOptimizer().keywords["lr"] for copied in copies] == [1e-6, 0.3]
    assert [copied.getLrScheduler() for copied in copies] == [None] * 2


def rows(df: DataFrame) -> list:
    return df.orderBy("id").collect()


def test_cross_validator(line: DataFrame, tmp_path: Path) -> None:
    est = estimator()
    tuner = CrossValidator(
        estimator=est, estimatorParamMaps=grid_of(est), evaluator=RegressionEvaluator(labelCol="y"), numFolds=2, seed=1
    )
    tuner.save(str(tmp_path / "tuner"))
    tuner = CrossValidator.load(str(tmp_path / "tuner"))
    check_values(tuner.getEstimatorParamMaps(), tuner.getEstimator())

    fitted = tuner.fit(line)
    assert fitted.avgMetrics[1] < fitted.avgMetrics[0], "only the second learns"
    fitted.save(str(tmp_path / "fitted"))
    loaded = CrossValidatorModel.load(str(tmp_path / "fitted"))
    assert loaded.avgMetrics == pytest.approx(fitted.avgMetrics)
    check_values(loaded.getEstimatorParamMaps(), loaded.getEstimator())
    assert rows(loaded.transform(line)) == rows(fitted.transform(line))
    assert loaded.bestModel.history == fitted.bestModel.history
    loaded.write().overwrite().save(str(tmp_path / "fitted"))
    check_values(CrossValidatorModel.load(str(tmp_path / "fitted")).getEstimatorParamMaps(), loaded.getEstimator())


@pytest.mark.slow
def test_train_validation_split_over_a_pipeline_and_models(line: DataFrame, tmp_path: Path) -> None:
    spark = line.sparkSession
    est = estimator().setFeatureCols(["features"])
    models = [Line(), nn.Linear(1, 1)]
    grid = (
        ParamGridBuilder()
        .addGrid(est.model, models)
        .addGrid(est.metrics, [{"mae": nn.functional.l1_loss}])
        .baseOn({est.optimizer: SGD, est.loss: nn.MSELoss()})
        .build()
    )
    tuner = TrainValidationSplit(
        estimator=Pipeline(stages=[VectorAssembler(inputCols=["x"], outputCol="features"), est]),
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        trainRatio=0.7,
        seed=1,
    )
    fitted = tuner.fit(line)
    path = str(tmp_path / "fitted")
    fitted.save(path)
    with pytest.raises(PersistenceError, match=r"tests\.integration\.nets\.Line"):
        TrainValidationSplitModel.load(path)
    spark.conf.set(ALLOW, "tests")
    try:
        loaded = TrainValidationSplitModel.load(path)
    finally:
        spark.conf.unset(ALLOW)
    assert loaded.validationMetrics == pytest.approx(fitted.validationMetrics)
    stage = loaded.getEstimator().getStages()[1]
    for point, model in zip(loaded.getEstimatorParamMaps(), models, strict=True):
        copied = stage.copy(point)
        assert type(copied.getModel()) is type(model)
        assert all(torch.equal(p, q) for p, q in zip(copied.getModel().parameters(), model.parameters(), strict=True))
        assert copied.getMetrics() == {"mae": nn.functional.l1_loss}
    assert rows(loaded.transform(line)) == rows(fitted.transform(line))


def test_a_grid_made_by_hand_fits(line: DataFrame) -> None:
    est = estimator()
    grid = [{est.loss: nn.MSELoss(), est.optimizer: optimizer} for optimizer in (SLOW_SGD, SGD)]
    before = [dict(point) for point in grid]
    models = dict(est.fitMultiple(line, grid))
    assert models[1].history[-1]["loss"] < models[0].history[-1]["loss"]
    assert grid == before, "the user's dicts are left alone"

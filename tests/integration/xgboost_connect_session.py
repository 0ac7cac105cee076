"""XGBoost on Spark Connect, in a process of its own: ``python -m tests.integration.xgboost_connect_session DIR``.

The callables below are of ``__main__``: they travel by value.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from xgboost.callback import TrainingCallback

from sparktrain.errors import DataError, ParamError, PersistenceError
from sparktrain.xgboost import XGBoostClassifier, XGBoostClassifierModel, XGBoostRanker, XGBoostRegressor


def half_squared(labels: Any, predictions: Any) -> Any:
    return predictions - labels, np.ones_like(predictions)


def largest_error(labels: Any, predictions: Any) -> float:
    return float(np.abs(labels - predictions).max())


class StopAfter(TrainingCallback):
    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return epoch + 1 == self._rounds


def main(directory: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    a, b = (F.col("id") % 10).cast("double"), (F.col("id") % 7).cast("double")
    rows = spark.range(400).select("id", a.alias("a"), b.alias("b"), (a - b).alias("y"), F.col("id") % 4 + 3)
    rows = rows.withColumnRenamed("((id % 4) + 3)", "kind").withColumn("colour", F.concat(F.lit("c"), F.col("id") % 3))
    common: dict[str, Any] = {"num_workers": 2, "n_estimators": 5, "max_depth": 4}

    stages = [
        StringIndexer(inputCol="colour", outputCol="code"),
        VectorAssembler(inputCols=["code", "a", "b"], outputCol="features"),
        XGBoostClassifier(features_col="features", label_col="kind", validation=0.2, **common),
    ]
    fitted = Pipeline(stages=stages).fit(rows)
    assert fitted.stages[-1].get_booster().feature_types == ["c", "q", "q"]
    assert fitted.stages[-1].classes == (3.0, 4.0, 5.0, 6.0)
    predicted = fitted.transform(rows)
    fitted.write().overwrite().save(f"{directory}/pipeline")
    again = PipelineModel.load(f"{directory}/pipeline").transform(rows)
    assert predicted.orderBy("id").collect() == again.orderBy("id").collect()
    assert {"val_mlogloss", "mlogloss", "round"} == set(fitted.stages[-1].history[0])

    estimator = XGBoostRegressor(
        features_col=["a", "b"],
        label_col="y",
        objective=half_squared,
        eval_metric=largest_error,
        callbacks=[StopAfter(3)],
        **common,
    )
    model = estimator.fit(rows)
    assert [entry["round"] for entry in model.history] == [1, 2, 3]
    assert model.history[-1]["largest_error"] < model.history[0]["largest_error"]
    estimator.save(f"{directory}/estimator")
    with pytest.raises(PersistenceError, match="holds code by value"):
        XGBoostRegressor.load(f"{directory}/estimator")
    loaded = XGBoostRegressor.load(f"{directory}/estimator", trust=True)
    assert loaded.fit(rows).history == model.history

    ranker = XGBoostRanker(features_col=["a", "b"], label_col="relevant", qid_col="kind", **common)
    ranked = ranker.fit(rows.withColumn("relevant", (F.col("a") > 5).cast("int")))
    assert ranked.transform(rows).count() == 400

    classifier = XGBoostClassifier(features_col=["a", "b"], label_col="kind", **common)
    grid = ParamGridBuilder().addGrid(classifier.maxDepth, [1, 3]).build()
    evaluator = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy")
    tuned = CrossValidator(
        estimator=classifier, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2
    ).fit(rows)
    assert len(tuned.avgMetrics) == 2
    assert isinstance(tuned.bestModel, XGBoostClassifierModel)
    with pytest.raises(ParamError, match="did you mean 'max_depth'"):
        XGBoostClassifier(max_dept=3)
    with pytest.raises(DataError, match="null rows"):
        classifier.fit(rows.withColumn("kind", F.when(F.col("id") > 5, F.col("kind"))))
    spark.stop()
    print("connect: all passed")


if __name__ == "__main__":
    main(sys.argv[1])

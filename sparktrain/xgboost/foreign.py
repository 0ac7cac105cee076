"""Loads models that ``xgboost.spark`` has saved: Spark ML metadata beside the booster's JSON in a text file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from sparktrain import persistence
from sparktrain.errors import PersistenceError
from sparktrain.xgboost import boosters

MODELS = {
    "SparkXGBClassifierModel": "XGBoostClassifierModel",
    "SparkXGBRegressorModel": "XGBoostRegressorModel",
    "SparkXGBRankerModel": "XGBoostRankerModel",
}


OF_ITS_OWN = frozenset({"launch_tracker_on_driver", "coll_cfg", "force_repartition", "repartition_random_shuffle"})
"""Params about how ``xgboost.spark`` trained, which say nothing of the model."""


class SparkXGBReader(persistence.Reader):
    """Reads what ours wrote, and what ``xgboost.spark`` wrote of the same task."""

    def load(self, path: str) -> Any:
        spark = persistence.active_session()
        metadata = DefaultParamsReader.loadMetadata(path, persistence.context(spark))
        module, _, name = str(metadata["class"]).rpartition(".")
        if not module.startswith("xgboost.spark"):
            return super().load(path)
        if MODELS.get(name) != self._cls.__name__:
            wanted = MODELS.get(name)
            hint = f"load it with {wanted}.load(path)" if wanted else "only fitted models are loaded"
            raise PersistenceError(f"{path} holds a {metadata['class']}; {hint}")
        instance = self._cls(**keywords(self._cls, metadata))
        instance._resetUid(metadata["uid"])
        trained = boosters.of_bytes(booster_json(spark, path))  # it has the rounds after the best one too
        instance._fitted(bytes(boosters.up_to_best(trained).save_raw("ubj")), [])
        return instance


def keywords(cls: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The Params that mean the same here, by keyword, where they were set to something."""
    given = {**metadata["defaultParamMap"], **metadata["paramMap"]}
    if given.get("features_cols"):
        given["featuresCol"] = given["features_cols"]
    given.pop("features_cols", None)
    by_name = {param.name: param.keyword for param in cls._keywords.values()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        keyword = by_name.get(name) or (cls._keywords[name].keyword if name in cls._keywords else None)
        plain = value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))
        if keyword is not None and plain and keyword not in OF_ITS_OWN:
            found[keyword] = value
    return found


def booster_json(spark: SparkSession, path: str) -> bytes:
    """The booster, written in lines of 4,096 characters of one JSON text."""
    rows = spark.read.text(f"{path}/model", wholetext=True).collect()
    if len(rows) != 1:
        raise PersistenceError(f"{path}/model has {len(rows)} files; xgboost.spark writes one")
    return str(rows[0][0]).replace("\n", "").encode()

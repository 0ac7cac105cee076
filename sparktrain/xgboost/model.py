"""The XGBoost models: trained boosters as Spark ML transformers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import xgboost as xgb
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sparktrain import params, persistence, shipping
from sparktrain.errors import ColumnError, ParamError
from sparktrain.estimator import HasGang
from sparktrain.model import GangModel
from sparktrain.params import GangParam
from sparktrain.session import session_of
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner
from sparktrain.shards.tensors import TensorSpec
from sparktrain.xgboost import boosters
from sparktrain.xgboost.foreign import SparkXGBReader
from sparktrain.xgboost.held import BoosterValue
from sparktrain.xgboost.params import (
    HasBoosterColumns,
    HasBoosterLabels,
    HasBoosting,
    HasDevice,
    HasProbabilities,
    booster,
)
from sparktrain.xgboost.predict import BoosterPredictor, Output
from sparktrain.xgboost.spec import Task

History = list[dict[str, float]]
_DOUBLES = T.ArrayType(T.DoubleType(), containsNull=False)
_DOUBLES_BY_OUTPUT = T.ArrayType(_DOUBLES, containsNull=False)


class BoosterModel(
    GangModel, HasGang, HasBoosting, HasBoosterColumns, HasBoosterLabels, HasDevice, persistence.Saveable
):
    """A booster that appends its predictions to a DataFrame.

    Attributes
    ----------
    history : list of dict
        One a round: ``round``, each metric on the training rows, and their ``val_`` forms; the rounds after the best
        one included. Without eval_metric, validation rows or training_metrics=True there are no metrics.
    """

    task: Task
    weights_file = "model.ubj"
    _holder = BoosterValue
    _reader = SparkXGBReader

    model = GangParam(
        "model",
        "The trained xgboost.Booster; a fitted XGBClassifier, XGBRegressor or XGBRanker can be given as well.",
        booster,
        by_value=True,
    )

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self.history: History = []

    def _fitted(self, raw: bytes, history: History) -> Self:
        self._set(model=boosters.of_bytes(raw))
        self.history = history
        return self

    def get_booster(self) -> xgb.Booster:
        """The trained booster; after early stopping it has the rounds up to the best one.

        Raises
        ------
        ParamError
            Where the model was not fitted.
        """
        found: xgb.Booster = self._value(self.model)
        return found

    @property
    def num_features(self) -> int:
        return int(self.get_booster().num_features())

    @property
    def best_iteration(self) -> int:
        """The best round, counted from 0; AttributeError without early stopping."""
        return int(self.get_booster().best_iteration)

    @property
    def best_score(self) -> float:
        """The metric after the best round; AttributeError without early stopping."""
        return float(self.get_booster().best_score)

    @property
    def feature_importances(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Importance of each feature by ``importance_type``, shape (features,), float32, summing to 1.

        As `xgboost.XGBModel.feature_importances_`; zeros where no tree splits.
        """
        trained = self.get_booster()
        kind = self._value(self.importanceType) or ("weight" if boosters.is_linear(trained) else "gain")
        scores = trained.get_score(importance_type=kind)
        names = trained.feature_names or [f"f{number}" for number in range(trained.num_features())]
        found = np.array([scores.get(name, 0.0) for name in names], dtype=np.float32)
        total = found.sum()
        return found / total if total else found

    @property
    def featureImportances(self) -> DenseVector:
        """`feature_importances` as Spark ML's tree models give them."""
        return DenseVector(self.feature_importances.tolist())

    def get_feature_importances(self, importance_type: str = "weight") -> dict[str, Any]:
        """`xgboost.Booster.get_score`: the importance of each feature that is used, by name."""
        scores: dict[str, Any] = self.get_booster().get_score(importance_type=importance_type)
        return scores

    @property
    def training_summary(self) -> Any:
        """`history` as ``xgboost.spark`` gives it."""
        from xgboost.spark.summary import XGBoostTrainingSummary

        columns = {
            name: [entry[name] for entry in self.history] for name in (self.history or [{}])[0] if name != "round"
        }
        training = {name: values for name, values in columns.items() if not name.startswith("val_")}
        validation = {f"{name[4:]}": values for name, values in columns.items() if name.startswith("val_")}
        return XGBoostTrainingSummary(training, validation)

    def _input_plan(self, schema: T.StructType) -> ColumnPlan:
        planner = ColumnPlanner(schema)
        features, *parts = planner.features(self._value(self.featuresCol), "features_col")
        expected = (self.num_features,)
        if features.shape is not None and features.shape != expected:
            raise ParamError(
                f"features_col names {features.shape[0]} columns, but the model was trained on {expected[0]} features"
            )
        self._check_names([column.name for column in features.columns], scalar=features.columns[0].kind == "number")
        tensors = [replace(features, shape=expected), *parts]
        margin = self._value(self.baseMarginCol)
        return planner.plan([*tensors, *([self._margin(planner.margin(margin))] if margin else [])])

    def _margin(self, margin: TensorSpec) -> TensorSpec:
        """One value a row for each class, target or quantile."""
        outputs = boosters.margins_of(self.get_booster())
        if margin.shape is None:
            return replace(margin, shape=(outputs,))
        if outputs > 1:
            raise ColumnError(
                f"base_margin_col: {margin.name!r} is a number, but the model has {outputs} outputs: give an array or "
                "vector with one for each class, target or quantile"
            )
        return margin

    def _check_names(self, columns: list[str], *, scalar: bool) -> None:
        """Numeric columns must be the booster's features by name, where it names them, and in their order."""
        names = self.get_booster().feature_names
        if scalar and names is not None and columns != names and self._value(self.featureNames) is None:
            raise ParamError(
                f"features_col names {columns}, but the model was trained on {names}, in this order; give it those, "
                "rename columns, or set feature_names to the model's names to say that they are the same"
            )

    def _outputs(self) -> list[tuple[str, Output, T.DataType]]:
        """Name, kind and type of each appended column; a name may be empty, which leaves it out."""
        return [
            (self._value(self.predictionCol), "prediction", self._prediction_type()),
            (self._value(self.predContribCol), "contributions", self._contribution_type()),
            (self._value(self.leafPredictionCol), "leaves", T.ArrayType(T.IntegerType(), containsNull=False)),
        ]

    def _prediction_type(self) -> T.DataType:
        return T.DoubleType() if boosters.outputs_of(self.get_booster()) == 1 else _DOUBLES

    def _contribution_type(self) -> T.DataType:
        return VectorUDT() if boosters.outputs_of(self.get_booster()) == 1 else _DOUBLES_BY_OUTPUT

    def _output_fields(self) -> list[T.StructField]:
        return [T.StructField(name, kind) for name, _, kind in self._outputs() if name]

    def _predictor(self, dataset: DataFrame, inputs: Sequence[TensorSpec]) -> BoosterPredictor:
        trained = self.get_booster()
        linear = boosters.is_linear(trained)
        kinds = tuple(output for name, output, _ in self._outputs() if name)
        rounds = self._value(self.iterationRange) or [0, 0]
        if linear and ("leaves" in kinds or rounds != [0, 0]):
            raise ParamError("leaf_prediction_col and iteration_range are for trees; this model's booster is gblinear")
        if rounds[1] and rounds[0] >= rounds[1]:
            raise ParamError(
                f"iteration_range={tuple(rounds)}: the end must be above the begin, or 0 for the last round"
            )
        if max(rounds) > trained.num_boosted_rounds():
            raise ParamError(
                f"iteration_range={tuple(rounds)}, but the model has {trained.num_boosted_rounds()} rounds"
            )
        path = shipping.ship_bytes(session_of(dataset), bytes(trained.save_raw("ubj")))
        return BoosterPredictor(
            booster_file=path.rpartition("/")[2],
            outputs=kinds,
            classes=self._class_values(),
            nested=self._contribution_type() == _DOUBLES_BY_OUTPUT,
            missing=self._value(self.missing),
            rounds=(rounds[0], rounds[1]),
            linear=linear,
            device=self._device(),
            hinge=boosters.objective_of(trained) == "binary:hinge",
        )

    def _class_values(self) -> tuple[float, ...] | None:
        return None

    def _saved_objects(self) -> persistence.ToSave:
        raw = bytes(self.get_booster().save_raw("ubj"))
        write = partial(_write, raw)
        return persistence.ToSave(pickle.dumps(None), write, {"history": self.history})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        self._fitted(Path(saved.tensors_file).read_bytes(), saved.extra["history"])


def _write(raw: bytes, path: str) -> None:
    Path(path).write_bytes(raw)


class XGBoostRegressorModel(BoosterModel):
    """A trained regressor: appends ``prediction``, a double, or an array for several targets or quantiles.

    It is what `XGBoostRegressor.fit` gives, and can be made of any booster: ``XGBoostRegressorModel(model=booster,
    features_col="features")``.
    """

    task = "regression"


class XGBoostRankerModel(BoosterModel):
    """A trained ranker: appends ``prediction``, a double, by which the rows of a query are ordered.

    It is what `XGBoostRanker.fit` gives, and can be made of any booster: ``XGBoostRankerModel(model=booster,
    features_col="features")``.
    """

    task = "ranking"


class XGBoostClassifierModel(BoosterModel, HasProbabilities):
    """A trained classifier: appends ``rawPrediction`` and ``probability``, vectors, and ``prediction``, the class.

    It is what `XGBoostClassifier.fit` gives, and can be made of any booster: ``XGBoostClassifierModel(model=booster,
    features_col="features")``, with ``class_labels`` where the classes are not 0, 1, ….
    """

    task = "classification"

    classLabels = GangParam(
        "class_labels",
        "The label values in the order of the booster's classes, where the booster does not tell: fit has it tell.",
        params.labels,
        None,
    )

    @property
    def classes(self) -> tuple[float, ...]:
        """The label values, in the order of the probabilities."""
        found = boosters.classes_of(self.get_booster())
        given = self._value(self.classLabels)
        if given is not None and len(given) != len(found):
            raise ParamError(f"class_labels has {len(given)} values, but the booster has {len(found)} classes")
        return found if given is None else tuple(given)

    @property
    def numClasses(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    def _class_values(self) -> tuple[float, ...]:
        objective = boosters.objective_of(self.get_booster())
        if not boosters.classifies(objective):
            raise ParamError(f"the booster's objective, {objective!r}, gives no classes: use XGBoostRegressorModel")
        return self.classes

    def _outputs(self) -> list[tuple[str, Output, T.DataType]]:
        return [
            (self._value(self.rawPredictionCol), "raw", VectorUDT()),
            (self._value(self.probabilityCol), "probability", VectorUDT()),
            *super()._outputs(),
        ]

    def _prediction_type(self) -> T.DataType:
        return T.DoubleType()

    def _contribution_type(self) -> T.DataType:
        return _DOUBLES_BY_OUTPUT

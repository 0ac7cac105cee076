"""Inference without Spark: from features as Spark hands them over to Arrow columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb

from sparktrain.xgboost import predict
from sparktrain.xgboost.predict import BoosterPredictor, classified
from tests.xgboost.shards import sparse_of


@pytest.fixture
def booster(monkeypatch: pytest.MonkeyPatch) -> xgb.Booster:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 5, (200, 4)).astype(np.float32)
    labels = (features[:, 0] > 2).astype(float) + (features[:, 1] > 3)
    params = {"objective": "multi:softprob", "num_class": 3}
    trained = xgb.train(params, xgb.DMatrix(features, labels), 4)
    monkeypatch.setattr(predict, "loaded", lambda name, device: trained)
    return trained


def predictor(outputs: tuple[Any, ...], **fields: Any) -> BoosterPredictor:
    known: dict[str, Any] = {
        "booster_file": "file",
        "outputs": outputs,
        "classes": (3.0, 5.0, 9.0),
        "nested": True,
        "missing": float("nan"),
        "rounds": (0, 0),
        "linear": False,
        "device": "cpu",
    }
    return BoosterPredictor(**{**known, **fields})


def values(column: pa.Array) -> np.ndarray[Any, Any]:
    return np.array((column.field("values") if pa.types.is_struct(column.type) else column).to_pylist())


ROWS = np.random.default_rng(1).integers(0, 5, (30, 4)).astype(np.float32)


def test_outputs_come_in_the_order_asked_for(booster: xgb.Booster) -> None:
    leaves, probability, prediction = predictor(("leaves", "probability", "prediction"))([ROWS])
    expected = booster.predict(xgb.DMatrix(ROWS))
    np.testing.assert_allclose(values(probability), expected, atol=1e-6)
    np.testing.assert_array_equal(values(prediction), np.array([3.0, 5.0, 9.0])[expected.argmax(axis=1)])
    np.testing.assert_array_equal(values(leaves), booster.predict(xgb.DMatrix(ROWS), pred_leaf=True))


@pytest.mark.parametrize("missing", [float("nan"), 0.0])
def test_sparse_rows_are_predicted_as_dense_ones_in_parts(
    booster: xgb.Booster, missing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "BATCH_BYTES", 7 * ROWS.shape[1] * 4)
    ask = predictor(("raw", "contributions"), missing=missing)
    dense = ask([ROWS])
    sparse = ask([sparse_of(ROWS, np.arange(30) % 3 == 0)])
    for one, other in zip(dense, sparse, strict=True):
        np.testing.assert_allclose(values(one), values(other), atol=1e-6)
    expected = booster.predict(xgb.DMatrix(ROWS, missing=missing), output_margin=True)
    np.testing.assert_allclose(values(dense[0]), expected, atol=1e-6)


def test_margins_are_added(booster: xgb.Booster) -> None:
    margin = np.random.default_rng(2).normal(size=(30, 3)).astype(np.float32)
    (raw,) = predictor(("raw",))([ROWS, margin])
    expected = booster.predict(xgb.DMatrix(ROWS, base_margin=margin), output_margin=True)
    np.testing.assert_allclose(values(raw), expected, atol=1e-6)


def test_a_hinge_gives_no_likelihood(booster: xgb.Booster) -> None:
    raw, probability, prediction = predictor(("raw", "probability", "prediction"), hinge=True, classes=(2.0, 7.0))(
        [ROWS]
    )
    assert set(values(probability).ravel()) <= {0.0, 1.0}
    np.testing.assert_array_equal(values(prediction) == 7, values(raw)[:, 1] > 0)


def test_probabilities_of_far_margins_are_finite() -> None:
    raw, probability = classified(np.array([-1000.0, 0.0, 1000.0]))
    assert raw.tolist() == [[1000, -1000], [0, 0], [-1000, 1000]]
    assert probability.tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    _, several = classified(np.array([[1000.0, 0.0, -1000.0]]))
    assert several.tolist() == [[1, 0, 0]]

"""The estimators on Horovod, by gloo and by MPI, through real Spark: as on the native backend; who can't is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import callbacks, layers
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparktrain import backends, run
from sparktrain.errors import ParamError, RankFailed
from sparktrain.keras import KerasEstimator
from sparktrain.torch import Callback, TorchEstimator
from sparktrain.torch.callbacks import TrainState
from sparktrain.xgboost import XGBoostRegressor
from tests.backends import EACH_OTHER, OTHERS, horovod
from tests.integration.leftovers import wait_until, workers

pytestmark = pytest.mark.integration
COMMON: dict[str, Any] = {"feature_cols": ["features"], "num_proc": 2, "batch_size": 16, "epochs": 2, "verbose": 0}


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    """401 rows: ``features`` (4 floats), ``y`` a sum of them."""
    features = np.random.default_rng(0).normal(size=(401, 4))
    rows = [([float(v) for v in x], float(x @ [1.0, -2.0, 0.5, 0.0])) for x in features]
    return spark.createDataFrame(rows, "features array<float>, y float").repartition(3).cache()


class AsksHorovod(Callback):
    """User code on a rank finds Horovod initialised."""

    def on_epoch_end(self, state: TrainState) -> None:
        import horovod.torch as hvd

        total = hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum)
        state.history[-1]["ranks"] = float(total) if hvd.size() == state.world_size else 0.0


def torch_estimator(**given: Any) -> TorchEstimator:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return TorchEstimator(
        model=net, optimizer=optimizer, loss=nn.MSELoss(), label_cols=["y"], sync_batchnorm=True, **{**COMMON, **given}
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", EACH_OTHER)
def test_a_torch_estimator_trains_as_on_the_native_backend(df: DataFrame, backend: str) -> None:
    given = {"backward_passes_per_step": 2, "validation": 0.2}
    over = torch_estimator(backend=backend, callbacks=[AsksHorovod()], **given).fit(df)
    native = torch_estimator(**given).fit(df)
    assert [entry.pop("ranks") for entry in over.history] == [3.0, 3.0]
    for mine, theirs in zip(over.history, native.history, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-5)
    states = [model.getModel().state_dict().values() for model in (over, native)]
    for one, same in zip(*states, strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=1e-5)


@horovod
@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["native", "horovod"])
def test_gradients_in_half_precision(df: DataFrame, backend: str) -> None:
    import horovod.torch as hvd

    half = torch_estimator(backend=backend, compression=hvd.Compression.fp16).fit(df)
    exact = torch_estimator(backend=backend).fit(df)
    pairs = zip(half.getModel().parameters(), exact.getModel().parameters(), strict=True)
    differences = [float((one - other).detach().abs().max()) for one, other in pairs]
    assert 0 < max(differences) < 0.02


def keras_model() -> keras.Model:
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", EACH_OTHER)
@pytest.mark.parametrize("framework", [pytest.param("tensorflow", marks=pytest.mark.slow), "torch"])
def test_a_keras_estimator_trains_as_on_the_native_backend(df: DataFrame, framework: str, backend: str) -> None:
    given = {**COMMON, "label_cols": ["y"], "keras_backend": framework, "sync_batchnorm": True}
    model = keras_model()
    over, native, half = (
        KerasEstimator(model=model, **one, **given).fit(df)
        for one in ({"backend": backend}, {}, {"backend": backend, "gradient_compression": "fp16"})
    )
    for mine, theirs in zip(over.history, native.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert mine["mae"] == pytest.approx(theirs["mae"], abs=1e-4)
    weights = [one.getModel().get_weights() for one in (over, native, half)]
    for mine, theirs in zip(weights[0], weights[1], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert 0 < max(np.abs(a - b).max() for a, b in zip(weights[0], weights[2], strict=True)) < 0.02


class Dies(callbacks.Callback):
    """Rank 1 is killed in the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if os.environ["RANK"] == "1" and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("backend", OTHERS)
def test_a_killed_rank_of_keras_is_named_and_leaves_nothing(df: DataFrame, backend: str) -> None:
    given = {**COMMON, "label_cols": ["y"], "keras_backend": "tensorflow", "backend": backend}
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed .* killed by SIGKILL"):
        KerasEstimator(model=keras_model(), callbacks=[Dies()], **given).fit(df)
    assert wait_until(lambda: not workers(), 20)


class Sleeps(nn.Module):
    """Rank 1 does not come to its second step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.steps = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps == 2 and os.environ["RANK"] == "1":
            time.sleep(60)
        return self.linear(features)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("backend", OTHERS)
def test_a_rank_that_takes_no_part_ends_the_wait(df: DataFrame, backend: str) -> None:
    net = Sleeps()
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        label_cols=["y"],
        backend=backend,
        collective_timeout_s=3,
        **COMMON,
    )
    started = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 0 of 2 .*has not taken part for 3 s \(collective_timeout_s\)"):
        estimator.fit(df)
    assert time.monotonic() - started < 40
    assert wait_until(lambda: not workers(), 20)


def average(value: float) -> tuple[int, int, float]:
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.local_size(), float(hvd.allreduce(torch.tensor(value * hvd.rank())))


@horovod
@pytest.mark.timeout(90)
def test_a_function_finds_horovod(spark: SparkSession) -> None:
    assert run(average, (4.0,), num_proc=2, backend="horovod", verbose=0) == [(0, 2, 2.0), (1, 2, 2.0)]
    assert wait_until(lambda: not workers(), 20)


class Jobs:
    """Counts them."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()

    def count(self) -> int:
        return len(self._tracker.getJobIdsForGroup(None))


@pytest.mark.parametrize("estimator", ["xgboost", "keras on jax"])
def test_who_can_t_is_told_before_any_job(spark: SparkSession, df: DataFrame, estimator: str) -> None:
    df.count()  # the cache
    before = Jobs(spark).count()
    if estimator == "xgboost":
        boosted = XGBoostRegressor(features_col="features", label_col="y", backend="horovod", num_workers=2)
        with pytest.raises(ParamError, match=r"backend='horovod': XGBoost has a collective of its own"):
            boosted.fit(df)
    else:
        given = {**COMMON, "label_cols": ["y"], "keras_backend": "jax"}
        with pytest.raises(ParamError, match=r"backend='horovod': not with Keras on JAX"):
            KerasEstimator(model=keras_model(), backend="horovod", **given).fit(df)
        with pytest.raises(ParamError, match=r"gradient_compression='fp16': not with Keras on JAX"):
            KerasEstimator(model=keras_model(), gradient_compression="fp16", **given).fit(df)
    assert Jobs(spark).count() == before


def test_a_driver_without_horovod_is_told_how_to_build_it(
    spark: SparkSession, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.load("horovod").__class__, "missing", lambda self: "none here; make horovod")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    before = Jobs(spark).count()
    with pytest.raises(ParamError, match="make horovod"):
        torch_estimator(backend="horovod").fit(df)
    assert Jobs(spark).count() == before
    # executors of another Python may have it: there the worker looks
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/another")
    torch_estimator()._check_backend(spark)


def test_keras_s_own_accumulation_is_named() -> None:
    with pytest.raises(ParamError, match=r"takes no 'backward_passes_per_step'.*gradient_accumulation_steps="):
        KerasEstimator(backward_passes_per_step=2)


def test_kinds_of_compression() -> None:
    assert TorchEstimator(gradient_compression="fp16").getGradientCompression() == "fp16"
    with pytest.raises(ParamError, match=r"gradient_compression: expected 'fp16', or None, got 'int8'"):
        TorchEstimator(gradient_compression="int8")

"""A fit that loses a process, or its driver, ends as one that was never broken; what can't go on says why."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
import torch
from keras import callbacks
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import GangError, ParamError, RankFailed
from sparktrain.keras import KerasEstimator
from sparktrain.store.run import claim
from sparktrain.torch import Callback, TorchModel
from sparktrain.torch.callbacks import TrainState
from sparktrain.xgboost import XGBoostRegressor
from tests.integration import boosts
from tests.integration.leftovers import processes, wait_until, workers
from tests.integration.restarts import EPOCHS, Breaks, estimator, rows, weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return rows(spark).cache()


@pytest.fixture(scope="module")
def whole(df: DataFrame) -> TorchModel:
    """Never broken, and nothing is kept."""
    return estimator().fit(df)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    directory = tmp_path / "marks"
    directory.mkdir()
    return directory


def assert_same(found: TorchModel, whole: TorchModel) -> None:
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(found)[name], tensor, rtol=0, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert [entry["epoch"] for entry in found.history] == [entry["epoch"] for entry in whole.history]
    for mine, theirs in zip(found.history, whole.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-6)


@pytest.mark.parametrize("how", ["worker", "task"])
def test_a_lost_process_costs_no_more_than_the_steps_since_a_checkpoint(
    how: str, df: DataFrame, whole: TorchModel, tmp_path: Path, marks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = estimator(
        store=str(tmp_path / "runs"), checkpoint_every_n_steps=5, callbacks=[Breaks(how, str(marks))], keep_last=3
    )
    with caplog.at_level(logging.WARNING, "sparktrain"):
        found = broken.fit(df)
    assert len(list(marks.iterdir())) == 1
    assert "the gang is launched again in 1 s, from the checkpoint after step 4 of epoch 2" in caplog.text
    assert_same(found, whole)
    (run,) = (tmp_path / "runs").iterdir()
    kept = sorted(one.name for one in (run / "checkpoints").iterdir())
    assert len(kept) == 3
    assert kept[-1] == f"epoch-{EPOCHS:06d}-step-000000000"


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    df: DataFrame, whole: TorchModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path), "run_id": "mine"}
    estimator(epochs=2, **settings).fit(df)
    newest = tmp_path / "mine" / "checkpoints" / "epoch-000002-step-000000000" / "rank-0.data"
    newest.write_bytes(newest.read_bytes()[:1000])
    with caplog.at_level(logging.WARNING, "sparktrain"):
        found = estimator(**settings).fit(df)
    assert "passed over a checkpoint: the checkpoint after epoch 2: rank-0.data is not what was written" in caplog.text
    assert_same(found, whole)


def test_a_finished_run_goes_on_with_more_epochs_and_is_not_trained_twice(
    df: DataFrame, whole: TorchModel, tmp_path: Path, marks: Path
) -> None:
    estimator(epochs=1, store=str(tmp_path / "runs"), run_id="first").fit(df)
    assert_same(estimator(store=str(tmp_path / "runs"), resume=True).fit(df), whole)
    never = Breaks("raise", str(marks))
    again = estimator(store=str(tmp_path / "runs"), run_id="first", callbacks=[never])
    model = again.fit(df)
    assert not list(marks.iterdir())
    assert_same(model, whole)
    assert model.transform(df).count() == 1000
    assert [one.name for one in (tmp_path / "runs").iterdir()] == ["first"]


def test_what_can_t_be_continued_is_told_before_any_job(spark: SparkSession, df: DataFrame, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path), "epochs": 1}
    with pytest.raises(ParamError, match=r"resume=True: .* has no run of this TorchEstimator, model and columns"):
        estimator(resume=True, **settings).fit(df)
    with pytest.raises(ParamError, match=r"resume=True: there is no store to resume from"):
        estimator(resume=True).fit(df)
    estimator(run_id="mine", **settings).fit(df)
    other = nn.Linear(4, 1)
    given = {"model": other, "optimizer": torch.optim.SGD(other.parameters(), lr=0.1), "run_id": "mine"}
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    with pytest.raises(ParamError, match=r"run_id='mine': that run can't be continued, its model differs: .*Take anot"):
        estimator(**settings).setParams(**given).fit(df)
    with pytest.raises(ParamError, match=r"that run can't be continued, its batch_size differs: 32 there, 16 now"):
        estimator(run_id="mine", **settings).setBatchSize(16).fit(df)
    with pytest.raises(ParamError, match=r"that run can't be continued, its optimizer differs"):
        estimator(run_id="mine", **settings).setOptimizer(torch.optim.SGD).fit(df)
    with pytest.raises(ParamError, match=r"that run can't be continued, its columns differs"):
        estimator(run_id="mine", **settings).fit(df.withColumn("y", F.array("y")))
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs


def test_a_finished_run_is_no_answer_for_other_rows(df: DataFrame, tmp_path: Path) -> None:
    """As the folds of a tuner would have it."""
    settings: dict[str, Any] = {"store": str(tmp_path), "run_id": "mine", "epochs": 1}
    estimator(**settings).fit(df)
    with pytest.raises(ParamError, match=r"run_id: that run is finished, and was trained on other rows"):
        estimator(**settings).fit(df.where("x0 > 0"))
    with pytest.raises(ParamError, match=r"run_id: that run is finished, and was trained on other rows"):
        estimator(**settings).fit(df.withColumn("y", F.col("y") + 1))


def test_rows_that_have_become_others_are_told(df: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path), "run_id": "mine"}
    estimator(epochs=1, **settings).fit(df)
    with caplog.at_level(logging.WARNING, "sparktrain"):
        assert len(estimator(epochs=2, **settings).fit(df.withColumn("y", F.col("y") + 1)).history) == 2
    assert "after epoch 1 the rows are no longer those that the run was trained on" in caplog.text
    with pytest.raises(ParamError, match=r"epochs=1: the run that is to be gone on with has trained 2 already"):
        estimator(epochs=1, **settings).fit(df)


def test_the_best_stays_when_a_run_goes_on(df: DataFrame, tmp_path: Path) -> None:
    rises = {"store": str(tmp_path), "run_id": "mine", "keep_last": 1, "keep_best": "rising"}
    estimator(epochs=2, callbacks=[Rises()], **rises).fit(df)
    estimator(epochs=4, callbacks=[Rises()], **rises).fit(df)
    kept = sorted(one.name for one in (tmp_path / "mine" / "checkpoints").iterdir())
    assert kept == ["epoch-000001-step-000000000", "epoch-000004-step-000000000"]


class Rises(Callback):
    def on_epoch_end(self, state: TrainState) -> None:
        state.history[-1]["rising"] = float(state.epoch)


def test_two_fits_of_one_run_at_a_time(df: DataFrame, tmp_path: Path, marks: Path) -> None:
    """The later one has it."""
    settings: dict[str, Any] = {"store": str(tmp_path / "runs"), "run_id": "mine", "max_restarts": 0}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: estimator(callbacks=[Breaks("wait", str(marks))], **settings).fit(df))
        assert wait_until(lambda: len(list(marks.iterdir())) == 1, 60)
        claim(f"file://{tmp_path}/runs/mine", "another")  # as its launch does
        (marks / "go on").touch()
        with pytest.raises(GangError, match=r"another fit has gone on with the run at .* give each its own run_id"):
            first.result(60)


def test_a_store_that_can_t_be_written_is_named(df: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ParamError, match=r"store: file://.*/file/.* can't be written or read: NotADirectoryError"):
        estimator(store=str(tmp_path / "file")).fit(df)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("{")
    with pytest.raises(ParamError, match=r"run_id='mine': file://.*/mine/run.json is damaged"):
        estimator(store=str(tmp_path), run_id="mine").fit(df)


def test_a_fault_of_the_training_is_not_tried_again(df: DataFrame, tmp_path: Path, marks: Path) -> None:
    broken = estimator(store=str(tmp_path / "runs"), callbacks=[Breaks("raise", str(marks), times=9)])
    with pytest.raises(RankFailed, match="boom") as told:
        broken.fit(df)
    assert len(list(marks.iterdir())) == 1
    assert not hasattr(told.value, "__notes__")
    assert wait_until(lambda: not workers(), 10)


def test_a_rank_that_always_dies_at_the_same_step_ends_the_fit(df: DataFrame, tmp_path: Path, marks: Path) -> None:
    broken = estimator(store=str(tmp_path / "runs"), max_restarts=5, callbacks=[Breaks("worker", str(marks), times=9)])
    with pytest.raises(RankFailed, match="killed by SIGKILL") as told:
        broken.fit(df)
    assert len(list(marks.iterdir())) == 2
    assert told.value.__notes__ == ["launched 2 times (max_restarts=5)"]
    assert wait_until(lambda: not workers(), 10)


@pytest.mark.slow
def test_without_a_store_nothing_is_tried_again_unless_it_is_asked_for(
    df: DataFrame, whole: TorchModel, marks: Path
) -> None:
    with pytest.raises(RankFailed, match="killed by SIGKILL"):
        estimator(callbacks=[Breaks("worker", str(marks))]).fit(df)
    (marks / "0").unlink()
    assert_same(estimator(max_restarts=1, callbacks=[Breaks("worker", str(marks))]).fit(df), whole)


def test_xgboost_begins_anew(df: DataFrame, tmp_path: Path) -> None:
    given: dict[str, Any] = {"features_col": [f"x{one}" for one in range(4)], "label_col": "y", "n_estimators": 5}
    boosting = XGBoostRegressor(num_workers=2, verbose=0, callbacks=[boosts.DiesOnce(str(tmp_path / "mark"))], **given)
    with pytest.raises(RankFailed, match="killed by SIGKILL"):
        boosting.fit(df)
    (tmp_path / "mark").unlink()
    again = boosting.setMaxRestarts(1).fit(df)
    assert (tmp_path / "mark").exists()
    whole = boosting.fit(df)
    assert again.get_booster().get_dump() == whole.get_booster().get_dump()


class DiesOnce(callbacks.Callback):
    """Rank 1 is killed in the third epoch, where the file is not there yet."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if os.environ["RANK"] == "1" and epoch == 2 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_keras_goes_on_from_its_own_backup(df: DataFrame, tmp_path: Path) -> None:
    keras.utils.set_random_seed(2)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    given: dict[str, Any] = {
        "model": net,
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": "mse",
        "feature_cols": [[f"x{one}" for one in range(4)]],
        "label_cols": ["y"],
        "num_proc": 2,
        "epochs": 4,
        "keras_backend": "torch",
        "verbose": 0,
    }
    whole = KerasEstimator(**given).fit(df)
    kept = [callbacks.BackupAndRestore("backup"), DiesOnce(str(tmp_path / "mark"))]
    again = KerasEstimator(callbacks=kept, store=str(tmp_path / "runs"), max_restarts=1, **given).fit(df)
    assert (tmp_path / "mark").exists()
    for mine, theirs in zip(again.getModel().get_weights(), whole.getModel().get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert [entry["epoch"] for entry in again.history] == [3, 4]  # BackupAndRestore keeps no history


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_new_driver_finishes_the_run_of_one_that_was_killed(whole: TorchModel, tmp_path: Path, marks: Path) -> None:
    out = tmp_path / "out.pt"
    command = [sys.executable, "-m", "tests.integration.restarts", str(tmp_path / "runs"), str(marks), str(out)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(tmp_path)}
    before = set(processes())
    with (tmp_path / "stderr").open("wb") as stderr:
        driver = psutil.Popen(command, cwd=ROOT, env=environment, stderr=stderr)
    assert wait_until(lambda: len(list(marks.iterdir())) == 1, 90), (tmp_path / "stderr").read_text()[-3000:]
    for process in [*driver.children(recursive=True), driver]:
        if process.name() == "java" or process.pid == driver.pid:
            process.kill()
    driver.wait(20)
    assert wait_until(lambda: not set(processes()) - before, 20)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(out, weights_only=True)
    assert found["epochs"] == EPOCHS
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(found["weights"][name], tensor, rtol=0, atol=1e-6)

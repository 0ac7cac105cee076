"""What a user sees, and what is left behind, when a rank fails: real processes are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import GangError, RankFailed, SparktrainError
from sparktrain.torch import TorchEstimator
from sparktrain.xgboost import XGBoostRegressor
from tests.backends import BACKENDS, OTHERS
from tests.integration.boosts import Fault
from tests.integration.leftovers import all_training, held, wait_until, workers
from tests.integration.nets import Faulty, Line

pytestmark = pytest.mark.integration
LEFT_S = 5.0


@pytest.fixture(scope="module")
def line(spark: SparkSession) -> DataFrame:
    return spark.range(1000).select(F.col("id").cast("float").alias("x"), F.rand(1).cast("float").alias("y")).cache()


@pytest.fixture(scope="module", autouse=True)
def before(line: DataFrame) -> set[str]:
    """Files and ports that Spark itself holds after a fit that went well."""
    estimator(Line()).fit(line)
    assert wait_until(lambda: not workers(), LEFT_S)
    return held()


def estimator(net: nn.Module, backend: str = "native") -> TorchEstimator:
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-7),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=32,
        epochs=2,
        backend=backend,
    )


def assert_nothing_left(before: set[str]) -> None:
    assert wait_until(lambda: not workers(), LEFT_S), workers()
    assert wait_until(lambda: not _new(before), LEFT_S), _new(before)


def _new(before: set[str]) -> set[str]:
    return {one for one in held() - before if "(deleted)" in one or "port" in one}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_raises_speaks_first(line: DataFrame, before: set[str], backend: str) -> None:
    with pytest.raises(RankFailed) as caught:
        estimator(Faulty("raise"), backend).fit(line)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("rank 1 of 2 failed on ")
    assert "ValueError: boom at step 3; model inputs: x: float32, shape (batch, 1)" in lines[0]
    assert lines[2:4] == ["Traceback of rank 1:", "Traceback (most recent call last):"]
    assert 'raise ValueError("boom at step 3")' in str(caught.value)
    assert "what rank 1 said last" in caught.value.log_tail
    assert caught.value.rank == 1
    assert_nothing_left(before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSEGV"])
def test_a_rank_that_dies_is_named_with_its_signal(line: DataFrame, before: set[str], fault: str, backend: str) -> None:
    started = time.monotonic()
    with pytest.raises(RankFailed, match=rf"rank 1 of 2 failed on .* killed by {fault}"):
        estimator(Faulty(fault), backend).fit(line)
    assert time.monotonic() - started < 20
    assert_nothing_left(before)


class Fit(threading.Thread):
    """A fit in the background; `error` is what it raised."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except SparktrainError as error:
            self.error = error


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("fault", "backend"),
    [
        ("sleep", "native"),
        ("c_call", "native"),
        *(pytest.param("c_call", *one.values, marks=one.marks) for one in OTHERS),
    ],
)
def test_a_cancelled_job_leaves_nothing(
    spark: SparkSession, line: DataFrame, before: set[str], fault: str, backend: str
) -> None:
    def run() -> object:
        spark.sparkContext.setJobGroup("cancelled fit", "")
        return estimator(Faulty(fault), backend).fit(line)

    fit = Fit(run)
    fit.start()
    assert wait_until(lambda: len(workers()) == 4, 30)  # two workers, two guards
    assert wait_until(all_training, 30)
    spark.sparkContext.cancelJobGroup("cancelled fit")
    fit.join(20)
    assert isinstance(fit.error, GangError)
    assert "cancelled" in str(fit.error)
    assert_nothing_left(before)


@pytest.mark.timeout(90)
def test_a_killed_spark_python_worker_leaves_nothing(line: DataFrame, before: set[str]) -> None:
    fit = Fit(lambda: estimator(Faulty("c_call")).fit(line))
    fit.start()
    assert wait_until(lambda: len(workers()) == 4, 30)
    assert wait_until(all_training, 30)
    leader = next(process for process in workers() if process.pid == os.getpgid(process.pid))
    os.kill(leader.ppid(), signal.SIGKILL)  # Spark's Python worker: this rank's task
    fit.join(20)
    assert fit.error is not None
    assert_nothing_left(before)


@pytest.mark.timeout(90)
def test_a_killed_spark_daemon_leaves_nothing(spark: SparkSession, line: DataFrame, before: set[str]) -> None:
    fit = Fit(lambda: estimator(Faulty("c_call")).fit(line))
    fit.start()
    assert wait_until(lambda: len(workers()) == 4, 30)
    assert wait_until(all_training, 30)
    leader = next(process for process in workers() if process.pid == os.getpgid(process.pid))
    daemon = psutil.Process(leader.ppid()).parent()
    assert daemon is not None
    assert "pyspark.daemon" in daemon.cmdline()
    daemon.kill()
    fit.join(20)
    assert isinstance(fit.error, GangError)
    assert_nothing_left(before)
    estimator(Line()).fit(line)  # the session is as good as before


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "told"), [("raise", "ValueError: boom in round 2"), ("SIGKILL", "killed by SIGKILL")]
)
def test_a_rank_of_xgboost_that_ends_is_named_and_its_pages_go(
    line: DataFrame, fault: str, told: str, tmp_path: Path
) -> None:
    before = held()  # tests above have ended Spark's daemon: the next one listens elsewhere
    pages = tmp_path / "pages"
    boosting = XGBoostRegressor(
        features_col=["x"], label_col="y", external_memory=True, num_workers=2, callbacks=[Fault(fault, str(pages))]
    )
    with pytest.raises(RankFailed, match=rf"rank 1 of 2 failed on .*{told}"):
        boosting.fit(line)
    seen = pages.read_text().split()
    assert seen
    assert wait_until(lambda: not any(Path(page).exists() for page in seen), LEFT_S)
    assert_nothing_left(before)

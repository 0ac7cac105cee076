"""A fit whose result is large for Spark's rows: the limit is lowered, so that a small model takes the socket."""

from __future__ import annotations

import logging

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.gang import launch, result
from sparktrain.gang.delivery import ResultReceiver
from sparktrain.torch import TorchEstimator, TorchModel
from tests.integration.leftovers import held, wait_until
from tests.integration.nets import Line

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
LEFT_S = 5.0


@pytest.fixture(scope="module")
def line(spark: SparkSession) -> DataFrame:
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    return spark.range(1000).select(x, (2 * x + 1).cast("float").alias("y")).cache()


@pytest.fixture(scope="module")
def net() -> Line:
    return Line()


def fit(net: nn.Module, df: DataFrame) -> TorchModel:
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=64,
        verbose=0,
    ).fit(df)


@pytest.fixture(scope="module")
def by_rows(net: Line, line: DataFrame) -> TorchModel:
    return fit(net, line)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the results that came by the socket."""
    sizes: list[int] = []
    take = ResultReceiver.take

    def noting(self: ResultReceiver, rank: int, size: int) -> result.Result:
        sizes.append(size)
        return take(self, rank, size)

    monkeypatch.setattr(ResultReceiver, "take", noting)
    monkeypatch.setattr(result, "IN_ROWS_BYTES", 4)
    return sizes


def assert_same(one: TorchModel, other: TorchModel) -> None:
    for p, q in zip(one.getModel().parameters(), other.getModel().parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_large_result_comes_by_the_socket(net: Line, line: DataFrame, by_rows: TorchModel, taken: list[int]) -> None:
    before = held()
    model = fit(net, line)
    assert len(taken) == 1
    assert_same(model, by_rows)
    assert model.transform(line).count() == 1000
    with torch.no_grad():  # mapped from the file, and the user's own to change
        for p in model.getModel().parameters():
            p.add_(1)
    new = {one for one in held() - before if "port" in one}
    assert wait_until(lambda: not new & held(), LEFT_S), new


def test_a_small_result_opens_no_port(
    net: Line, line: DataFrame, by_rows: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ResultReceiver", None)
    assert_same(fit(net, line), by_rows)


def test_a_driver_that_executors_can_not_reach_gets_rows(
    net: Line, line: DataFrame, by_rows: TorchModel, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreachable(ResultReceiver):
        def __init__(self, host: str, bind: str) -> None:
            super().__init__(host, bind)
            self.close()

    monkeypatch.setattr(launch, "ResultReceiver", Unreachable)
    assert_same(fit(net, line), by_rows)
    assert not taken


def test_a_driver_that_can_not_listen_gets_rows(
    net: Line,
    line: DataFrame,
    by_rows: TorchModel,
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(host: str, bind: str) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(launch, "ResultReceiver", refuse)
    with caplog.at_level(logging.WARNING, logger="sparktrain"):
        assert_same(fit(net, line), by_rows)
    assert not taken
    assert "a large result comes back in Spark's rows: can't listen on" in caplog.text

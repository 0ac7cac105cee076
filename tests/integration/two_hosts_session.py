"""A fit over two hosts, in a process of its own: ``python -m tests.integration.two_hosts_session MASTER DRIVER``."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain import backends, current_gang, run
from sparktrain.torch import TorchEstimator
from sparktrain.xgboost import XGBoostRegressor
from tests.integration.nets import Line
from tests.integration.two_hosts import DRIVER, PORTS, WORKERS, firewall


def boost(df: DataFrame) -> None:
    """XGBoost's tracker and its own connections between the hosts."""
    model = XGBoostRegressor(features_col=["x"], label_col="y", num_workers=2, n_estimators=5, verbose=0).fit(df)
    assert len(model.history) == 5
    assert model.transform(df).count() == 1000


def native_sum(size: int) -> float:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.full((size,), float(dist.get_rank() + 1))
    dist.all_reduce(values)
    return float(values.mean())


def horovod_sum(size: int) -> float:
    import horovod.torch as hvd

    hvd.init()
    found = hvd.allreduce(torch.full((size,), float(hvd.rank() + 1)), op=hvd.Sum)
    return float(found.mean())


def mpi_sum(size: int) -> float:
    import numpy as np
    from mpi4py import MPI

    values = np.full(size, MPI.COMM_WORLD.Get_rank() + 1, np.float32)
    found = np.empty_like(values)
    MPI.COMM_WORLD.Allreduce(values, found)
    assert MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).Get_size() == 1, "MPI takes the two hosts for one"
    return float(found.mean())


SIZE = 5_000_000
SUMS = {"native": native_sum, "horovod": horovod_sum, "mpi": mpi_sum}


def traffic() -> int:
    """Bytes that the executors' hosts have sent, as their ends of the bridge count them."""
    names = [f"st-v{number}" for number in range(len(WORKERS))]
    return min(int(Path(f"/sys/class/net/{name}/statistics/rx_bytes").read_text()) for name in names)


def talk(backend: str, function: Callable[[int], float]) -> None:
    """The ranks are on two hosts, and what they add up passes between those."""

    def work() -> tuple[float, tuple[str, ...], int]:
        gang = current_gang()
        return function(SIZE), gang.hosts, gang.local_rank

    before = traffic()
    found = run(work, num_proc=2, backend=backend, verbose=0)
    assert [value for value, _, _ in found] == [1.5 * 2] * 2, found
    assert all(sorted(hosts) == sorted(WORKERS) and local == 0 for _, hosts, local in found), found
    sent = traffic() - before
    assert sent >= 4 * SIZE, f"{backend}: {sent:,} bytes"
    print(f"{backend}: each host sent at least {sent:,} bytes")


def main(master: str, driver: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", driver)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.port", str(PORTS[0]))
        .config("spark.driver.blockManager.port", str(PORTS[1]))
        .getOrCreate()
    )
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    df = spark.range(1000).select(x, (2 * x + 1).cast("float").alias("y"))
    boost(df)
    for backend, function in SUMS.items():
        if backends.load(backend).missing() is None:
            train(df, backend)
            talk(backend, function)
    train_behind_a_firewall(df)
    spark.stop()
    print("two hosts: all passed")


def train_behind_a_firewall(df: DataFrame) -> None:
    """Who can't reach the driver's port for progress trains all the same, and says so."""
    logger, notes = logging.getLogger("sparktrain"), io.StringIO()
    handler = logging.StreamHandler(notes)
    logger.addHandler(handler)
    with firewall():
        train(df, "native", verbose=1)
    logger.removeHandler(handler)
    assert f"the gang's progress was not shown: the driver at {DRIVER}:" in notes.getvalue(), notes.getvalue()
    assert "can't be reached" in notes.getvalue()


def train(df: DataFrame, backend: str, verbose: int = 0) -> None:
    """Two ranks end with the weights of one process."""
    net = Line()
    model = TorchEstimator(
        backend=backend,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=600,
        epochs=3,
        launch_timeout_s=60,
        verbose=verbose,
    ).fit(df)
    rows = df.collect()
    features, labels = (torch.tensor([[row[name]] for row in rows]) for name in ("x", "y"))
    reference = Line()
    reference.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(features), labels).backward()
        optimizer.step()
    for p, q in zip(model.getModel().parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)
    assert model.transform(df.repartition(8)).count() == 1000


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Spark's own scheduler with two executors, in a process of its own: ``cluster_session.py PART DIR``.

The executors of ``local-cluster`` are JVMs of their own with other working directories; a part is one session.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparktrain.errors import GangError
from sparktrain.gang.launch import launch
from sparktrain.gang.spec import GangSpec
from sparktrain.shards.tensors import KEY, ColumnSpec, TensorSpec
from sparktrain.torch import TorchEstimator
from sparktrain.xgboost import XGBoostRegressor
from tests.conftest import TEST_ID
from tests.gang import tiny_trainer
from tests.integration.leftovers import all_training, held, wait_until, workers
from tests.integration.nets import Faulty, Line

MASTER = "local-cluster[2,1,1024]"
GPU_IDS = ("4", "7")
ERROR_S, LEFT_S = 20.0, 5.0


def builder() -> SparkSession.Builder:
    return SparkSession.builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "1g")


def line(spark: SparkSession) -> DataFrame:
    x = (F.col("id") / 500 - 1).cast("float").alias("x")
    return spark.range(1000).select(x, (2 * x + 1).cast("float").alias("y"))


def estimator(net: nn.Module) -> TorchEstimator:
    return TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-3),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=100,
        verbose=0,
        launch_timeout_s=60,
    )


def gpus(directory: Path) -> None:
    """Spark hands each rank a GPU of its own, on a machine that has none."""
    script = directory / "gpus.sh"  # the first worker that asks has one GPU, the second the other
    script.write_text(
        f"""#!/bin/sh
        if mkdir {directory}/first 2>/dev/null; then id={GPU_IDS[0]}; else id={GPU_IDS[1]}; fi
        echo "{{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$id\\"]}}"
        """
    )
    script.chmod(0o755)
    spark = (
        builder()
        .master(MASTER)
        .config("spark.worker.resource.gpu.amount", "1")
        .config("spark.worker.resource.gpu.discoveryScript", str(script))
        .config("spark.executor.resource.gpu.amount", "1")
        .config("spark.task.resource.gpu.amount", "1")
        .getOrCreate()
    )
    y = TensorSpec("y", "label", (ColumnSpec("y", 0, "number"),), "float32", ())
    key = TensorSpec(KEY, "key", (ColumnSpec(KEY, 1, "number"),), "int64", ())
    spec = GangSpec(
        num_proc=2,
        trainer=f"{tiny_trainer.__name__}:device",
        payload={},
        payload_file=None,
        tensors=(y, key),
        backend="native",
        rendezvous_timeout_s=60.0,
        collective_timeout_s=60.0,
    )
    df = line(spark).select("y", F.monotonically_increasing_id()).repartition(2)
    outcome = launch(df, spec, partitioned=False, launch_timeout_s=60.0, progress_label=None)
    assert {info["visible"] for info in outcome.infos} == set(GPU_IDS), outcome.infos
    assert {info["device"] for info in outcome.infos} == {"cuda"}, outcome.infos

    def visible(labels: object, predictions: object) -> float:
        return float(os.environ["CUDA_VISIBLE_DEVICES"])

    boosted = XGBoostRegressor(features_col=["x"], label_col="y", device="cuda", num_workers=2, eval_metric=visible)
    model = boosted.setNEstimators(2).fit(line(spark))  # without a GPU XGBoost warns, and takes the CPU
    assert model.history[0]["visible"] == (4 + 7) / 2, model.history  # XGBoost gives the mean over ranks
    assert model.transform(line(spark)).count() == 1000
    spark.stop()


def submitted(directory: Path) -> None:
    """Code that ``spark-submit --py-files`` brought; master and file come from its command line."""
    spark = builder().getOrCreate()
    assert spark.sparkContext.master == MASTER
    fit_shipped(spark)
    spark.stop()


def added(directory: Path) -> None:
    """Code that a running session was given."""
    spark = builder().master(MASTER).getOrCreate()
    spark.sparkContext.addPyFile(str(directory / "shipped.zip"))
    fit_shipped(spark)
    spark.stop()


def connect(directory: Path) -> None:
    """Code that a Connect client sent to its own session on the server."""
    spark = builder().remote(MASTER).getOrCreate()
    archive = str(directory / "shipped.zip")
    sys.path.append(archive)  # the client's own; executors get it as an artifact
    spark.addArtifact(archive, pyfile=True)
    fit_shipped(spark)
    spark.stop()


def fit_shipped(spark: SparkSession) -> None:
    from shipped.nets import ShippedLine  # type: ignore[import-not-found]

    df = line(spark)
    model = estimator(ShippedLine()).fit(df)
    assert len(model.history) == 1
    assert model.transform(df).count() == 1000


def executor_killed(directory: Path) -> None:
    """An executor's JVM dies while its worker sits in a C call that holds the GIL."""
    spark = builder().master(MASTER).getOrCreate()
    df = line(spark)
    estimator(Line()).fit(df)
    assert wait_until(lambda: not workers(), LEFT_S), workers()
    before = python_held()
    killed: list[float] = []

    def kill() -> None:
        assert wait_until(lambda: len(workers()) == 4 and all_training(), 90)
        executors()[0].kill()
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(GangError) as caught:
        estimator(Faulty("c_call")).fit(df)
    waited_s = time.monotonic() - killed[0]
    print(f"the driver knew after {waited_s:.1f} s: {caught.value}")
    assert waited_s < ERROR_S
    assert "Spark lost executor" in str(caught.value), caught.value
    assert wait_until(lambda: not workers(), LEFT_S), workers()
    assert wait_until(lambda: not python_held() - before, LEFT_S), python_held() - before
    estimator(Line()).fit(df)  # on the executor that Spark started instead
    spark.stop()


def executors() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "environ", "cmdline"])  # None of what ends meanwhile
        if process.info["name"] == "java"
        and (process.info["environ"] or {}).get(TEST_ID) == os.environ[TEST_ID]
        and any("CoarseGrainedExecutorBackend" in word for word in process.info["cmdline"] or ())
    ]


def python_held() -> set[str]:
    """What is held by others than JVMs: Spark starts another executor with ports of its own."""
    jvms = {str(process.pid) for process in psutil.process_iter(["name"]) if process.info["name"] == "java"}
    return {one for one in held() if one.split()[0] not in jvms}


PARTS = {part.__name__: part for part in (gpus, submitted, added, connect, executor_killed)}

if __name__ == "__main__":
    try:
        PARTS[sys.argv[1]](Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc(file=sys.stdout)  # stderr is full of what Spark says of its executors at the end
        raise
    print(f"{sys.argv[1]}: all passed")

"""The native backend beside Horovod and MPI: sums between 2 ranks, the fits of `torch.fit`, and seconds to start.

    python -m benchmarks.backends.compare

*start*: a function that does nothing but meet its peers, from call to result. *sum*: one all-reduce of float32 in
memory, by what each backend brings (gloo, `horovod.torch`, mpi4py), the median of many within one gang. *fit*: the MLP
and the CNN of `benchmarks.torch`, from call to return, and their epochs alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pyspark.sql import SparkSession

from benchmarks import report
from benchmarks.torch.fit import WRITERS, make_estimator, start_spark
from benchmarks.torch.workloads import WORKLOADS
from sparktrain import backends, run

RANKS = 2
SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "100 MB": 100 << 20}
PACKAGES = ("sparktrain", "torch", "horovod", "mpi4py", "pyspark")


def meet(backend: str) -> None:
    """What each rank does to find the others."""
    if backend == "native":
        import torch.distributed as dist

        dist.init_process_group("gloo")
    elif backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
    else:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()


def sums(backend: str) -> dict[str, float]:
    """Median seconds of a sum, by its size."""
    import time
    from statistics import median

    meet(backend)
    found = {}
    for name, size in SIZES.items():
        values = torch.ones(size // 4)
        if backend == "native":
            import torch.distributed as dist

            def add(values: Any = values) -> None:
                dist.all_reduce(values)
        elif backend == "horovod":
            import horovod.torch as hvd

            def add(values: Any = values) -> None:
                hvd.allreduce_(values, op=hvd.Sum)
        else:
            from mpi4py import MPI

            def add(values: Any = values) -> None:
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values.numpy())

        times = []
        for _ in range(5 if size > 10 << 20 else 100):
            values.fill_(1.0)
            started = time.perf_counter()
            add()
            times.append(time.perf_counter() - started)
        found[name] = median(times)
    return found


def fit(backend: str, work: str, df: Any) -> tuple[float, float]:
    """Seconds of a fit, and of its epochs."""
    workload = WORKLOADS[work]
    estimator = make_estimator(work, workload.epochs, workload.batch_size).setParams(backend=backend)
    seconds, model = report.stopwatch(lambda: estimator.fit(df))
    return seconds, sum(epoch["seconds"] for epoch in model.history)


def measure(spark: SparkSession, frames: dict[str, Any], backend: str) -> dict[str, float]:
    """One round of a backend, in seconds."""
    settings: dict[str, Any] = {"num_proc": RANKS, "backend": backend, "verbose": 0, "spark": spark}
    started, _ = report.stopwatch(lambda: run(meet, (backend,), **settings))
    found = {"start": started}
    for size, seconds in run(sums, (backend,), **settings)[0].items():
        found[f"sum of {size}"] = seconds
    for work, df in frames.items():
        found[f"fit, {work}"], found[f"epochs, {work}"] = fit(backend, work, df)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=list(backends.AVAILABLE), choices=backends.AVAILABLE)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {backend: [] for backend in args.backends}
    with tempfile.TemporaryDirectory(prefix="sparktrain-benchmark-") as name:
        spark = start_spark()
        frames = {}
        for work, write in WRITERS.items():
            directory = Path(name, work)
            directory.mkdir()
            write(WORKLOADS[work].rows, directory)
            frames[work] = spark.read.parquet(str(directory / "rows.parquet")).repartition(RANKS).cache()
            frames[work].count()
        fit("native", "mlp", frames["mlp"])  # Spark's Python workers start
        for number in range(args.rounds):
            for backend in args.backends:
                found[backend].append(measure(spark, frames, backend))
                print(f"round {number + 1}, {backend}", file=sys.stderr)
        spark.stop()
    print("## Backends\n")
    print(f"{RANKS} ranks on one machine, Spark local[{RANKS}], medians of {args.rounds} rounds in turns.\n")
    print(report.environment(PACKAGES), end="\n\n")
    rows = []
    for what in found[args.backends[0]][0]:
        values = [median(one[what] for one in found[backend]) for backend in args.backends]
        scale, unit = (1000, "ms") if what.startswith("sum") else (1, "s")
        ratios = [f"{value / values[0]:.2f}" for value in values[1:]]
        rows.append([f"{what}, {unit}", *(f"{value * scale:.2f}" for value in values), *ratios])
    header = ["", *args.backends, *(f"{one} / {args.backends[0]}" for one in args.backends[1:])]
    print(report.table(header, rows))


if __name__ == "__main__":
    main()

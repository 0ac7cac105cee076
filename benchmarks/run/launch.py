"""From call to result: a function of two processes that meet over gloo, by `sparktrain.run` and `TorchDistributor`.

    python -m benchmarks.run.launch

Each way has Spark sessions of its own, in turns, each in a fresh process: the first call in a session is *cold*, those
after it are *warm*. The function initialises the process group, adds up a tensor and returns it. The session's start
and the imports on the driver are not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import report

RANKS = 2
WAYS = ("run", "TorchDistributor")
PACKAGES = ("sparktrain", "torch", "pyspark")


def add_up() -> float:
    """What each process does."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(values)
    dist.destroy_process_group()
    return float(values.sum())


def caller_of(way: str) -> Callable[[], Any]:
    if way == "run":
        from sparktrain import run

        return lambda: run(add_up, num_proc=RANKS, verbose=0)[0]
    from pyspark.ml.torch.distributor import TorchDistributor

    return lambda: TorchDistributor(num_processes=RANKS, local_mode=False, use_gpu=False).run(add_up)


def session(way: str, calls: int) -> None:
    """In a process of its own: the seconds of each call, as a line of JSON."""
    builder = SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    call, seconds = caller_of(way), []
    for _ in range(calls):
        taken, found = report.stopwatch(call)
        if found != 1000.0 * sum(range(1, RANKS + 1)):
            raise SystemExit(f"{way} gave {found}")
        seconds.append(taken)
    spark.stop()
    print(json.dumps(seconds))


def timings(way: str, calls: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.run.launch", "--session", way, "--calls", str(calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="sessions of each way")
    parser.add_argument("--calls", type=int, default=4, help="in a session")
    parser.add_argument("--session", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.session:
        session(args.session, args.calls)
        return
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            found[way].append(timings(way, args.calls))
    ours, theirs = (found[way] for way in WAYS)
    cold = [[one[0] for one in side] for side in (ours, theirs)]
    warm = [[median(one[1:]) for one in side] for side in (ours, theirs)]
    print("## run: launch\n")
    print(
        f"A function of {RANKS} processes over gloo, from call to result. Spark local[{RANKS}], {args.rounds} sessions"
    )
    print(f"of each way in turns, {args.calls} calls in each: the first is cold, of the others the median is taken.\n")
    print(report.environment(PACKAGES), end="\n\n")
    rows = [
        [f"{way}, {name}", *(f"{value:.2f}" for value in (median(seconds), min(seconds), max(seconds)))]
        for name, pair in (("cold", cold), ("warm", warm))
        for way, seconds in zip(WAYS, pair, strict=True)
    ]
    print(report.table(["", "median s", "min s", "max s"], rows), end="\n\n")
    ratios = [
        report.ratio_row("run / TorchDistributor, cold", *cold),
        report.ratio_row("run / TorchDistributor, warm", *warm),
    ]
    print(report.table(["ratio (below 1: sparktrain is faster)", "median", "min", "max"], ratios))


if __name__ == "__main__":
    main()

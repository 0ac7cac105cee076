"""What every benchmark prints: where it ran, its timings and their ratios, as Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any


def stopwatch(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` took, and what it returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def java_version() -> str:
    """``17.0.15``, of the Java that Spark finds."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return shown.split('"')[1]


def usable_cores() -> int:
    """Cores that this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(packages: Sequence[str]) -> str:
    """Date, machine and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return table(
        ["", ""],
        [
            ["date", date.today().isoformat()],
            ["machine", f"{usable_cores()} cores, {cpu_model()}, {platform.system()} {platform.machine()}"],
            ["versions", f"Python {platform.python_version()}, Java {java_version()}, {versions}"],
        ],
    )


def timing_row(name: str, seconds: Sequence[float], *more: str) -> list[str]:
    """A row of name, median, minimum, maximum, and what else is given."""
    return [name, *(f"{value:.2f}" for value in (median(seconds), min(seconds), max(seconds))), *more]


def ratio_row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """A row of the ratios of runs of the same round: median, minimum, maximum. Below 1: ours was faster."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return timing_row(name, ratios)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Cores and GPUs of a rank: pure functions from what Spark assigned to what the worker's env says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPARK_SECRETS = ("PYTHON_WORKER_FACTORY", "_SPARK_AUTH_SECRET", "SPARK_AUTH_SOCKET")


def visible_devices(assigned: Sequence[str], inherited: str | None) -> str | None:
    """``CUDA_VISIBLE_DEVICES`` for a worker whose task was assigned GPU addresses by Spark.

    Parameters
    ----------
    assigned : sequence of str
        The task's GPU addresses, in Spark's order; one may hold several ids (``"2,3"``). Empty: Spark
        schedules no GPUs.
    inherited : str or None
        The variable as the executor has it; without an assignment it stays in force.

    Returns
    -------
    str or None
        None: leave the variable unset.

    Notes
    -----
    Spark's addresses are ids of physical devices. An executor that already hides some (its own
    ``CUDA_VISIBLE_DEVICES``) does not renumber them for Spark, so the assignment replaces the variable.
    """
    ids = [part.strip() for address in assigned for part in address.split(",") if part.strip()]
    return ",".join(ids) if ids else inherited


def device_ordinal(assigned: Sequence[str], visible: str | None) -> int | None:
    """The number under which this process knows the first of its task's GPUs.

    Parameters
    ----------
    assigned : sequence of str
        The task's GPU addresses as Spark tells them; one may hold several ids (``"2,3"``).
    visible : str or None
        ``CUDA_VISIBLE_DEVICES`` of this process: the GPUs it sees, numbered from 0 in that order.

    Returns
    -------
    int or None
        None: none is assigned, or none that this process sees.
    """
    ids = [part.strip() for address in assigned for part in address.split(",") if part.strip()]
    if not ids:
        return None
    seen = [part.strip() for part in visible.split(",") if part.strip()] if visible is not None else None
    if seen is not None and ids[0] in seen:
        return seen.index(ids[0])
    if seen is None and ids[0].isdigit():
        return int(ids[0])
    return None


def worker_threads(task_cpus: int, inherited: str | None) -> str:
    """``OMP_NUM_THREADS`` for a worker: the cores Spark gave its task."""
    return str(max(task_cpus, 1)) if task_cpus else inherited or "1"


def worker_environment(
    environment: Mapping[str, str], *, gpus: Sequence[str], task_cpus: int, python_path: str
) -> dict[str, str]:
    """The worker's environment: the task's own, with cores, GPUs and import path, without Spark's secrets."""
    env = {key: value for key, value in environment.items() if not key.startswith(SPARK_SECRETS)}
    env["OMP_NUM_THREADS"] = worker_threads(task_cpus, environment.get("OMP_NUM_THREADS"))
    env["PYTHONPATH"] = python_path
    env["PYTHONUNBUFFERED"] = "1"
    devices = visible_devices(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    if devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = devices
    return env

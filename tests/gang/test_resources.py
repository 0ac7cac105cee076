"""What Spark assigned to a task, as its worker's environment says it."""

import pytest

from sparktrain.gang.resources import visible_devices, worker_environment, worker_threads


@pytest.mark.parametrize(
    ("assigned", "inherited", "visible"),
    [
        ((), None, None),
        ((), "0,1", "0,1"),
        (("2",), None, "2"),
        (("2",), "0,1", "2"),
        (("3", "1"), None, "3,1"),
        (("2,3",), None, "2,3"),
        ((" 2", "", "5 "), None, "2,5"),
        (("GPU-1f2e", "MIG-77"), "0", "GPU-1f2e,MIG-77"),
    ],
)
def test_visible_devices(assigned: tuple[str, ...], inherited: str | None, visible: str | None) -> None:
    assert visible_devices(assigned, inherited) == visible


@pytest.mark.parametrize(
    ("task_cpus", "inherited", "threads"),
    [(1, None, "1"), (4, None, "4"), (2, "16", "2"), (0, "3", "3"), (0, None, "1")],
)
def test_threads_are_the_task_s_cores(task_cpus: int, inherited: str | None, threads: str) -> None:
    assert worker_threads(task_cpus, inherited) == threads


def test_the_worker_s_environment() -> None:
    inherited = {
        "HOME": "/home/spark",
        "OMP_NUM_THREADS": "64",
        "PYTHONPATH": "/old",
        "PYTHON_WORKER_FACTORY_PORT": "4040",
        "PYTHON_WORKER_FACTORY_SECRET": "hush",
    }
    before = dict(inherited)
    assert worker_environment(inherited, gpus=("1",), task_cpus=2, python_path="/a:/b") == {
        "HOME": "/home/spark",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": "/a:/b",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert inherited == before


def test_without_gpus_the_variable_is_left_alone() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment({}, gpus=(), task_cpus=1, python_path="")
    hidden = worker_environment({"CUDA_VISIBLE_DEVICES": ""}, gpus=(), task_cpus=1, python_path="")
    assert hidden["CUDA_VISIBLE_DEVICES"] == ""

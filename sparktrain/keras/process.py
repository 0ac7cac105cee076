"""Spark's Python worker: which process computes with which Keras backend.

Spark's Python workers are reused by tasks, and a process keeps the backend with which it has imported Keras. So a
worker computes itself with the first backend (and on the first GPU) that it is asked for, and has a child process for
every other. Spark ends workers with SIGKILL: a child watches for the end of its parent itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import IO, Any, ParamSpec, TypeVar

from sparktrain.gang.resources import device_ordinal
from sparktrain.gpus import free_slot

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Place:
    """Where to compute.

    Parameters
    ----------
    backend : str
        ``tensorflow``, ``jax`` or ``torch``.
    gpus : tuple of str
        The GPUs that Spark assigned to the task; empty: the CPU.
    limit : int
        How many processes of this host may use one GPU; further ones compute on the CPU.
    """

    backend: str
    gpus: tuple[str, ...] = ()
    limit: int = 0


_here: Place | None = None
_slot: IO[bytes] | None = None
_children: dict[Place, ProcessPoolExecutor] = {}


def run(place: Place, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` where Keras has this backend: in this process or in a child of it."""
    if is_here(place):
        return function(*args, **kwargs)
    if place not in _children:
        context = multiprocessing.get_context("spawn")
        _children[place] = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(place,))
    try:
        return _children[place].submit(function, *args, **kwargs).result()
    except BrokenProcessPool as error:
        del _children[place]  # the task's next attempt gets a new one
        error.add_note(
            f"the process that computes with Keras's backend {place.backend!r} has ended; was it out of memory? Its "
            "last words are in the executor's stderr"
        )
        raise


def is_here(place: Place) -> bool:
    """Whether this process computes there; the first place that it is asked for becomes its own."""
    if "keras" not in sys.modules:
        prepare(place)
    if _here is not None:
        return place == _here
    import keras  # the user's code was faster

    return bool(keras.backend.backend() == place.backend) and not place.gpus


def prepare(place: Place) -> None:
    """Import Keras with this backend, as many threads as ``OMP_NUM_THREADS`` says, and the place's GPU or none."""
    global _here
    os.environ["KERAS_BACKEND"] = place.backend
    threads = os.environ.get("OMP_NUM_THREADS", "")
    {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[place.backend](
        int(threads) if threads.isdigit() else 0, _seat(place)
    )
    import keras  # noqa: F401 - now, with this environment

    _here = place


def _seat(place: Place) -> int | None:
    """The number of the GPU to use, held until this process ends; None: the CPU."""
    global _slot
    ordinal = device_ordinal(place.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if ordinal is not None:
        _slot = free_slot(place.gpus[0].partition(",")[0].strip(), place.limit)
    return None if _slot is None else ordinal


def _tensorflow(threads: int, gpu: int | None) -> None:
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # the user's code has computed with it already
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        found = tf.config.list_physical_devices("GPU")
        used = found[gpu : gpu + 1] if gpu is not None else []
        tf.config.set_visible_devices(used, "GPU")
        for device in used:
            tf.config.experimental.set_memory_growth(device, True)


def _jax(threads: int, gpu: int | None) -> None:
    if threads:
        os.environ["PJRT_NPROC"] = os.environ["NPROC"] = str(threads)  # what XLA's CPU client reads, old and new
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    config: Any = jax.config

    if gpu is None:
        config.update("jax_platforms", "cpu")
    else:
        config.update("jax_cuda_visible_devices", str(gpu))


def _torch(threads: int, gpu: int | None) -> None:
    os.environ["KERAS_TORCH_DEVICE"] = "cpu" if gpu is None else f"cuda:{gpu}"  # torch reads OMP_NUM_THREADS itself


def _begin(place: Place) -> None:
    """First in a child."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare(place)


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)

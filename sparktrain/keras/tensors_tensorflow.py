"""`Lockstep`'s operations on TensorFlow tensors, inside and outside of graphs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

Array = np.ndarray[Any, Any]


class TensorFlowTensors:
    """All but the sum itself."""

    def sum(self, vector: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
        raise NotImplementedError

    def differentiable_sum(self, vector: Any, exchange: Callable[[Any], Any]) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def summed(values: Any) -> Any:
            return exchange(values), exchange

        return summed(vector)

    def rows(self, data: Any) -> Any:
        first = next(one for one in tree.flatten(data) if one is not None)
        return tf.cast(tf.shape(first)[0], tf.float32)

    def choose(self, rows: Any, work: Callable[[], Any], idle: Callable[[], Any]) -> Any:
        return tf.cond(rows > 0, lambda: tree.map_structure(tf.convert_to_tensor, work()), idle)

    def blank(self, logs: Any) -> Any:
        return tree.map_structure(lambda one: tf.zeros(one.shape, one.dtype), logs)

    def dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)


class HostTensors(TensorFlowTensors):
    """Gradients in memory pass `tf.numpy_function` to the other ranks.

    Parameters
    ----------
    add_up : callable
        Gives the sum of an array over all ranks; it may change the array.
    """

    def __init__(self, add_up: Callable[[Array], Array]) -> None:
        self._add_up = add_up

    def sum(self, vector: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
        def exchanged(values: Array) -> Array:
            own = np.array(values)
            before(own)
            own = self._add_up(own)
            after(own)
            return own

        vector = tf.convert_to_tensor(vector)
        summed = tf.numpy_function(exchanged, [vector], vector.dtype)
        summed.set_shape(vector.shape)
        return summed


def limit(*, on_gpu: bool) -> None:
    """As many threads that compute as the task has cores; on a GPU memory as it is needed, without one none of the
    host's."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads + 3)  # one waits for the peers, one for the next batch
    if not on_gpu:
        tf.config.set_visible_devices([], "GPU")
    for device in tf.config.get_visible_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)

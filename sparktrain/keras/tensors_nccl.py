"""`Lockstep`'s operations on TensorFlow tensors of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import torch

from sparktrain.keras.tensors_tensorflow import TensorFlowTensors
from sparktrain.torch.collective import Collective


class DeviceTensors(TensorFlowTensors):
    """Gradients go by DLPack to nccl, and never leave the GPU.

    In memory that road took 5 to 6.6 ms for a step of an MLP 20-64-1, and `HostTensors`' 3.2.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def sum(self, vector: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
        def exchanged(values: Any) -> Any:
            own = torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(values)).clone()
            before(own)
            self._collective.sum(own)
            after(own)
            return tf.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(own))  # type: ignore[attr-defined]

        vector = tf.convert_to_tensor(vector)
        summed = tf.py_function(exchanged, [vector], vector.dtype)
        summed.set_shape(vector.shape)
        return summed

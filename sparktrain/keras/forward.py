"""The forward passes of a Keras model over the rows of an Arrow batch, in a process that has its backend.

Keras is imported when a model is loaded, not before: see `sparktrain.keras.process`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparktrain.arguments import Arguments, TransformBatch, transformed
from sparktrain.errors import DataError
from sparktrain.gang.failure import MISSING_MODULE
from sparktrain.shards.arrow import Array
from sparktrain.shards.ragged import Ragged

CACHED_MODELS = 4

Call = Callable[[list[Array], "tuple[str, ...] | None"], Any]


@dataclass(frozen=True)
class Loaded:
    """A model in this process.

    Parameters
    ----------
    call : callable
        Inputs and their names to outputs.
    fixed : bool
        Whether each batch size is compiled anew.
    """

    call: Call
    fixed: bool
    transform_batch: TransformBatch | None


_models: OrderedDict[str, Loaded] = OrderedDict()


@dataclass(frozen=True)
class Forward:
    """A model's outputs for any number of rows.

    Parameters
    ----------
    path : str
        The file with model, transform_batch and custom objects.
    batch_size : int
        Rows of one pass.
    shapes : tuple of tuple of int
        Of one row of each output.
    arguments : tuple of str or None
        As in `Arguments.names`.
    output_names : tuple of str or None
        The keys of a dict of outputs, in the order of `shapes`.
    """

    path: str
    batch_size: int
    shapes: tuple[tuple[int, ...], ...]
    arguments: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None

    def __call__(self, inputs: list[Array | Ragged]) -> list[Array]:
        loaded = _loaded(self.path)
        parts = []
        for start in range(0, len(inputs[0]), self.batch_size):
            rows = _rows(inputs, start, start + self.batch_size)
            count = len(rows[0])
            batch, _ = transformed(loaded.transform_batch, Arguments(rows, self.arguments), None, training=False)
            size = _compiled_size(count, self.batch_size) if loaded.fixed else count
            outputs = self._outputs(loaded.call([_filled(np.asarray(one), size) for one in batch.values], batch.names))
            self._check_shapes(outputs, size)
            parts.append([output[:count] for output in outputs])
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _outputs(self, result: Any) -> list[Array]:
        import keras

        from sparktrain.keras.signature import listed

        return [keras.ops.convert_to_numpy(one) for one in listed(result, self.output_names)]

    def _check_shapes(self, outputs: list[Array], rows: int) -> None:
        if len(outputs) != len(self.shapes):
            raise DataError(f"the model gives {len(outputs)} outputs here, and {len(self.shapes)} elsewhere")
        if any(output.ndim == 0 or len(output) != rows for output in outputs):
            shapes = ", ".join(str(output.shape) for output in outputs)
            raise DataError(f"the model must give a row for each of a batch's {rows} rows, and gives shape {shapes}")
        for output, shape in zip(outputs, self.shapes, strict=True):
            if output.shape[1:] != shape:
                raise DataError(
                    f"the model gives rows of shape {output.shape[1:]} here, and of shape {shape} elsewhere; where "
                    "that is the length of padded rows, use pad=n instead of pad='longest'"
                )


def _compiled_size(rows: int, batch_size: int) -> int:
    """Few sizes for all batches, since each is compiled: the next power of two."""
    return min(batch_size, 1 << (rows - 1).bit_length())


def _filled(values: Array, size: int) -> Array:
    """Filled up to `size` rows with copies of the last one."""
    if len(values) >= size:
        return values
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])


def _rows(inputs: list[Array | Ragged], start: int, stop: int) -> list[Array]:
    """Rows of each input, a padded one's mask behind it; arrays that a transform_batch may write to."""
    rows: list[Array] = []
    for one in inputs:
        if isinstance(one, Ragged):
            rows += one.take(np.arange(start, min(stop, len(one))))
        else:
            part = one[start:stop]
            rows.append(part if part.flags.writeable else part.copy())
    return rows


def _loaded(path: str) -> Loaded:
    if path not in _models:
        while len(_models) >= CACHED_MODELS:
            _models.popitem(last=False)
        _models[path] = _load(path)
    _models.move_to_end(path)
    return _models[path]


def _load(path: str) -> Loaded:
    import keras

    from sparktrain.keras import archive
    from sparktrain.keras.signature import structured

    try:
        net, transform_batch, custom_objects = archive.loads(Path(path).read_bytes())
    except ModuleNotFoundError as error:
        error.add_note(MISSING_MODULE)
        raise
    backend = keras.backend.backend()
    run = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[backend](net)

    def call(values: list[Array], names: tuple[str, ...] | None) -> Any:
        with keras.saving.custom_object_scope(custom_objects):
            return run(structured(net, values, names))

    return Loaded(call, backend != "torch", transform_batch)


def _tensorflow(net: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    run: Callable[[Any], Any] = tf.function(lambda given: net(given, training=False), reduce_retracing=True)
    return run


def _jax(net: Any) -> Callable[[Any], Any]:
    import jax
    import keras

    variables = net.variables

    @jax.jit
    def run(values: list[Any], given: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return net(given, training=False)

    return partial(run, [one.value for one in variables])


def _torch(net: Any) -> Callable[[Any], Any]:
    import torch

    net.eval()

    def run(given: Any) -> Any:
        with torch.inference_mode():
            return net(given, training=False)

    return run

"""Batch inference in Spark's Python worker: the model is loaded once per process, weights mapped from disk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from sparktrain.arguments import Arguments, TransformBatch, transformed
from sparktrain.errors import DataError
from sparktrain.gang.failure import MISSING_MODULE
from sparktrain.gpus import task_gpus
from sparktrain.shards.arrow import Array
from sparktrain.shards.outputs import list_column, vector_column
from sparktrain.shards.ragged import Ragged
from sparktrain.torch import bundle
from sparktrain.torch.loss import as_outputs
from sparktrain.torch.placement import Seat, take_seat

CACHED_MODELS = 4


@dataclass(frozen=True)
class Loaded:
    """A model in this process, where it sits."""

    net: nn.Module
    transform_batch: TransformBatch | None
    seat: Seat


_models: OrderedDict[tuple[str, bytes, tuple[str, ...]], Loaded] = OrderedDict()


@dataclass(frozen=True)
class TorchPredictor:
    """A module's outputs as Arrow columns.

    Parameters
    ----------
    structure : bytes
        The module and its transform_batch, without tensors.
    weights_file : str
        Name of the Spark file with the tensors.
    prediction_type, outputs, threshold
        As the Params of `TorchModel`.
    batch_size : int
        Rows per forward pass.
    models_per_gpu : int
        Copies of models on one GPU, at most.
    output_shapes : tuple of tuple of int
        Each output's shape of one row.
    arguments : tuple of str or None
        As in `Arguments.names`.
    """

    structure: bytes
    weights_file: str
    prediction_type: Literal["raw", "regression", "classification"]
    outputs: Literal["logits", "probabilities"]
    threshold: float
    batch_size: int
    models_per_gpu: int
    output_shapes: tuple[tuple[int, ...], ...]
    arguments: tuple[str, ...] | None = None

    def __call__(self, inputs: list[Array | Ragged]) -> list[pa.Array]:
        results = self._forward(inputs)
        if self.prediction_type == "raw":
            shapes = self.output_shapes
            return [raw_column(result, shape) for result, shape in zip(results, shapes, strict=True)]
        if self.prediction_type == "regression":
            values = results[0].double().reshape(-1)
            if len(values) != len(inputs[0]):
                raise DataError(f"prediction_type='regression' needs one value a row, got {_shape(results[0])}")
            return [pa.array(_numpy(values))]
        if results[0].ndim > 2:
            raise DataError(f"prediction_type='classification' needs (batch, classes), got {_shape(results[0])}")
        return self._classes(results[0])

    def _forward(self, inputs: list[Array | Ragged]) -> list[Tensor]:
        loaded = self._loaded()
        sources = [one if isinstance(one, Ragged) else torch.from_numpy(_writable(one)) for one in inputs]
        parts = []
        with torch.inference_mode():
            for start in range(0, len(sources[0]), self.batch_size):
                rows = _rows(sources, start, start + self.batch_size)
                given = Arguments([_placed(tensor, loaded.seat.device) for tensor in rows], self.arguments)
                batch, _ = transformed(loaded.transform_batch, given, None, training=False)
                outputs = as_outputs(batch.call(loaded.net), labels=0)
                self._check_shapes(outputs, len(rows[0]))
                parts.append([output.cpu() for output in outputs])
            return [torch.cat(outputs) for outputs in zip(*parts, strict=True)]

    def _check_shapes(self, outputs: list[Tensor], rows: int) -> None:
        expected = len(self.output_shapes) or 1
        if len(outputs) != expected:
            kind = f"prediction_type={self.prediction_type!r}"
            raise DataError(f"the model gives {len(outputs)} outputs, and {kind} reads {expected}; use 'raw'")
        if any(output.ndim == 0 or len(output) != rows for output in outputs):
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
            raise DataError(f"the model must give a row for each of a batch's {rows} rows, and gives shape {shapes}")
        for output, shape in zip(outputs, self.output_shapes, strict=False):
            found = tuple(output.shape[1:])
            if found != shape:
                raise DataError(
                    f"the model gives rows of shape {found} here, and of shape {shape} elsewhere; where that is the "
                    "length of padded rows, use pad=n instead of pad='longest'"
                )

    def _loaded(self) -> Loaded:
        gpus = task_gpus() if self.models_per_gpu else ()
        key = (self.weights_file, self.structure, gpus)
        if key not in _models:
            while len(_models) >= CACHED_MODELS:
                _drop(next(iter(_models)))
            _models[key] = self._load(gpus)
        _models.move_to_end(key)
        return _models[key]

    def _load(self, gpus: tuple[str, ...]) -> Loaded:
        from pyspark import SparkFiles

        tensors = bundle.tensors_from_file(SparkFiles.get(self.weights_file))
        try:
            net, transform_batch = bundle.load(self.structure, tensors)
        except ModuleNotFoundError as error:
            error.add_note(MISSING_MODULE)
            raise
        seat = take_seat(gpus, self.models_per_gpu)
        while gpus and seat.device.type == "cpu" and (own := [k for k, one in _models.items() if one.seat.lock]):
            _drop(own[0])  # rather this model on the GPU than an earlier one of this process
            seat = take_seat(gpus, self.models_per_gpu)
        return Loaded(net.eval().to(seat.device), transform_batch, seat)

    def _classes(self, output: Tensor) -> list[pa.Array]:
        raw, probability, prediction = classify(output, self.outputs, self.threshold)
        return [vector_column(_numpy(raw)), vector_column(_numpy(probability)), pa.array(_numpy(prediction))]


def classify(output: Tensor, kind: str, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Raw scores, probabilities and predicted class of each row, as Spark ML defines them.

    Parameters
    ----------
    output : Tensor, shape (batch, classes), or (batch,) or (batch, 1): the score of class 1
    kind : str
        ``"logits"`` or ``"probabilities"``.
    threshold : float
        For one score a row: class 1 where its probability is above.

    Returns
    -------
    rawPrediction, probability : Tensor, shape (batch, classes), float64
    prediction : Tensor, shape (batch,), float64
    """
    scores = output.double()
    if scores.ndim == 1 or scores.shape[1] == 1:
        score = scores.reshape(-1)
        logit = score if kind == "logits" else torch.logit(score)
        positive = torch.sigmoid(score) if kind == "logits" else score
        raw = torch.stack([-logit, logit], dim=1)
        probability = torch.stack([1 - positive, positive], dim=1)
        return raw, probability, (positive > threshold).double()
    if kind == "logits":
        return scores, torch.softmax(scores, dim=1), scores.argmax(dim=1).double()
    return torch.log(scores), scores, scores.argmax(dim=1).double()


def raw_column(output: Tensor, shape: tuple[int, ...]) -> pa.Array:
    """An output as a column: scalars for rows of shape () or (1,), else lists as deep as the shape."""
    if output.dtype in (torch.float16, torch.bfloat16):
        output = output.float()
    if output.dtype == torch.uint8:
        output = output.short()
    values = _numpy(output)
    return list_column(values.reshape(-1) if shape == (1,) else values)


def _drop(key: tuple[str, bytes, tuple[str, ...]]) -> None:
    """Forget a model, and give its place on the GPU back."""
    seat = _models.pop(key).seat
    seat.leave()


def _rows(sources: list[Tensor | Ragged], start: int, stop: int) -> list[Tensor]:
    """Rows of each input, a padded one's mask behind it."""
    rows: list[Tensor] = []
    for one in sources:
        if isinstance(one, Ragged):
            rows += [torch.from_numpy(part) for part in one.take(np.arange(start, min(stop, len(one))))]
        else:
            rows.append(one[start:stop])
    return rows


def _placed(rows: Tensor, device: torch.device) -> Tensor:
    return rows if device.type == "cpu" else rows.pin_memory().to(device, non_blocking=True)


def _shape(output: Tensor) -> str:
    return f"an output of shape {tuple(output.shape)}"


def _numpy(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


def _writable(values: Array) -> Array:
    """Arrow's buffers are read-only; torch wants memory that a model may write to."""
    return values if values.flags.writeable else values.copy()

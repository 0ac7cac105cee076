"""Batch inference in Spark's Python worker: a Keras model's outputs as Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from sparktrain.gpus import task_gpus
from sparktrain.keras import process
from sparktrain.keras.forward import Forward
from sparktrain.shards.arrow import Array
from sparktrain.shards.outputs import classify, raw_column, vector_column
from sparktrain.shards.ragged import Ragged


@dataclass(frozen=True)
class KerasPredictor:
    """A Keras model's outputs as Arrow columns.

    Parameters
    ----------
    model_file : str
        Name of the Spark file with model, transform_batch and custom objects.
    backend : str
        Keras's, with which to compute.
    prediction_type, threshold
        As the Params of `KerasModel`.
    outputs : str or None
        For ``prediction_type="classification"``: what the output is.
    batch_size : int
        Rows per forward pass.
    models_per_gpu : int
        Processes that compute on one GPU, at most.
    columns : tuple of (str, tuple of int)
        Each output's dtype and shape of one row.
    arguments, output_names : tuple of str or None
        As in `Forward`.
    """

    model_file: str
    backend: str
    prediction_type: Literal["raw", "regression", "classification"]
    outputs: Literal["logits", "probabilities"] | None
    threshold: float
    batch_size: int
    models_per_gpu: int
    columns: tuple[tuple[str, tuple[int, ...]], ...]
    arguments: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None

    def __call__(self, inputs: list[Array | Ragged]) -> list[pa.Array]:
        results = self._forward(inputs)
        if self.prediction_type == "raw":
            pairs = zip(results, self.columns, strict=True)
            return [raw_column(result, shape, dtype) for result, (dtype, shape) in pairs]
        if self.prediction_type == "regression":
            return [pa.array(results[0].reshape(-1).astype(np.float64))]
        assert self.outputs is not None
        raw, probability, prediction = classify(results[0], self.outputs, self.threshold)
        return [vector_column(raw), vector_column(probability), pa.array(prediction)]

    def _forward(self, inputs: list[Array | Ragged]) -> list[Array]:
        from pyspark import SparkFiles

        gpus = task_gpus() if self.models_per_gpu else ()
        place = process.Place(self.backend, gpus, self.models_per_gpu if gpus else 0)
        shapes = tuple(shape for _, shape in self.columns)
        path = SparkFiles.get(self.model_file)
        return process.run(place, Forward(path, self.batch_size, shapes, self.arguments, self.output_names), inputs)

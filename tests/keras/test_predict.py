"""A Keras model's outputs as Spark's columns; each backend in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from sparktrain.keras import archive, forward, process
from sparktrain.keras.forward import Forward
from sparktrain.keras.predict import KerasPredictor
from sparktrain.keras.signature import outputs_kind
from sparktrain.shards.outputs import classify, raw_column
from sparktrain.torch.predict import classify as torch_classify
from tests.keras import nets

BACKENDS = ("tensorflow", "jax", "torch")
ROWS = np.random.default_rng(0).random((5, 4), dtype=np.float32)


def run_python(*arguments: str) -> str:
    """Runs a file of these tests in a process that has not imported Keras."""
    warnings = [
        "-W",
        "error",
        "-W",
        "ignore:__array__ implementation:DeprecationWarning",
    ]  # as in pyproject.toml
    done = subprocess.run([sys.executable, *warnings, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("backend", BACKENDS)
def test_predictions_are_those_of_the_model(backend: str) -> None:
    assert run_python("-m", "tests.keras.forward_case", backend) == "ok"


TWO_BACKENDS = """
import sys
import numpy as np
from sparktrain.keras import process
from sparktrain.keras.forward import Forward
forward = Forward(sys.argv[1], 4, ((2,),))
rows = np.ones((5, 4), "float32")
if __name__ == "__main__":
    here = process.run(process.Place("torch"), forward, [rows])
    there = process.run(process.Place("jax"), forward, [rows])
    np.testing.assert_allclose(here, there, atol=1e-5)
    again = process.run(process.Place("jax"), forward, [rows])
    print(len(process._children), flush=True)
    sys.stdin.read()
"""


def test_another_backend_computes_in_a_child_that_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(archive.dumps((nets.dense(2), None, {})))
    (tmp_path / "two.py").write_text(TWO_BACKENDS)
    command = [sys.executable, str(tmp_path / "two.py"), str(tmp_path / "model")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "1\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert children
        os.kill(parent.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_a_model_is_loaded_once_and_only_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    load = archive.loads
    monkeypatch.setattr(archive, "loads", lambda data: loads.append(1) or load(data))
    monkeypatch.setattr(forward, "_models", type(forward._models)())
    runs = []
    for outputs in range(1, forward.CACHED_MODELS + 2):
        path = tmp_path / str(outputs)
        path.write_bytes(archive.dumps((nets.dense(outputs), None, {})))
        runs.append(Forward(str(path), 2, ((outputs,),)))
    first, second, *others = runs
    for one in (first, first, second, *others[:-1], first, others[-1], first):
        one([ROWS])
    assert (len(loads), len(forward._models)) == (forward.CACHED_MODELS + 1, forward.CACHED_MODELS)
    second([ROWS])
    assert len(loads) == forward.CACHED_MODELS + 2, "the one longest unused was dropped"


def test_columns_by_prediction_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkFiles

    net = nets.dense(1, "sigmoid")
    (tmp_path / "model").write_bytes(archive.dumps((net, None, {})))
    monkeypatch.setattr(SparkFiles, "get", lambda name: str(tmp_path / name))
    expected = net.predict(ROWS, verbose=0)[:, 0]

    def columns(kind: str) -> list[pa.Array]:
        backend = keras.backend.backend()
        columns = (("float32", (1,)),)
        return KerasPredictor("model", backend, kind, "probabilities", 0.4, 2, 4, columns)([ROWS])  # type: ignore[arg-type]

    (raw,), (value,) = columns("raw"), columns("regression")
    assert (raw.type, value.type) == (pa.float32(), pa.float64())
    np.testing.assert_allclose(raw.to_pylist(), expected, atol=1e-6)
    np.testing.assert_allclose(value.to_pylist(), expected, atol=1e-6)
    scores, probability, prediction = columns("classification")
    np.testing.assert_allclose([row["values"][1] for row in probability.to_pylist()], expected, atol=1e-6)
    logits = np.log(expected / (1 - expected))
    np.testing.assert_allclose([row["values"][1] for row in scores.to_pylist()], logits, atol=1e-5)
    assert prediction.to_pylist() == (expected > 0.4).astype(float).tolist()


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 3)])
def test_classes_are_told_as_of_a_pytorch_model(kind: str, shape: tuple[int, ...]) -> None:
    output = np.array([0.02, 0.38, 0.6, 1.0, 0.0, 0.5], "float32").reshape(shape) * (50 if kind == "logits" else 1)
    for found, wanted in zip(classify(output, kind, 0.5), torch_classify(torch.tensor(output), kind, 0.5), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "arrow"),
    [
        ("float16", pa.float32()),
        ("bfloat16", pa.float32()),
        ("int64", pa.int64()),
        ("uint8", pa.int16()),
        ("bool", pa.bool_()),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_raw_columns_have_a_type_that_spark_has(dtype: str, arrow: pa.DataType, shape: tuple[int, ...]) -> None:
    given = "float32" if dtype == "bfloat16" else "int32" if dtype == "int64" else dtype  # as other backends give it
    values = np.ones((4, *shape), given)
    column = raw_column(values, shape, dtype)
    assert column.to_pylist() == (values.reshape(4) if shape == (1,) else values).tolist()
    kind = column.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    assert kind == arrow


def functional(activation: str, *more: keras.layers.Layer) -> keras.Model:
    inputs = outputs = keras.Input((4,))
    for layer in (keras.layers.Dense(2, activation=activation), *more):
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize(
    ("net", "loss", "kind"),
    [
        (nets.dense(3, "softmax"), None, "probabilities"),
        (functional("sigmoid", keras.layers.Reshape((2, 1)), keras.layers.Flatten()), None, "probabilities"),
        (functional("relu", keras.layers.Softmax()), None, "probabilities"),
        (functional("linear", keras.layers.Activation("sigmoid")), None, "probabilities"),
        (keras.Sequential([functional("softmax")]), None, "probabilities"),
        (nets.dense(3), None, None),
        (nets.dense(3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), "logits"),
        (nets.dense(3), [keras.losses.BinaryCrossentropy(from_logits=True)], "logits"),
        (nets.dense(3), "binary_crossentropy", "probabilities"),
        (nets.dense(3), "mse", None),
        (nets.Pair(3), None, None),
        (nets.Pair(3), keras.losses.BinaryCrossentropy(), "probabilities"),
    ],
)
def test_what_an_output_is(net: keras.Model, loss: object, kind: str | None) -> None:
    assert outputs_kind(net, loss) == kind
    if loss is not None:
        net.compile("sgd", loss)
        assert outputs_kind(net) == kind


def test_a_process_that_has_keras_already_computes_with_its_backend() -> None:
    own = keras.backend.backend()
    assert process.is_here(process.Place(own))
    assert not process.is_here(process.Place(next(one for one in BACKENDS if one != own)))
    assert not process.is_here(process.Place(own, ("0",), 4))

"""Run with a Keras backend's name: what the predictor gives must be what ``Model.predict`` gives."""

# ruff: noqa: E402 - Keras is imported once the process has its backend

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from sparktrain.keras import forward, process
from sparktrain.keras.forward import Forward

BACKEND = sys.argv[1]
assert "keras" not in sys.modules
assert process.run(process.Place(BACKEND), os.getpid) == os.getpid()

import keras

from sparktrain.keras import archive
from sparktrain.keras.signature import listed, output_names
from tests.keras import nets

ROWS = np.random.default_rng(0).random((53, 4), dtype=np.float32)
ITEMS, CONTEXT = np.arange(53) % 10, ROWS[:, :3]
DIRECTORY = tempfile.mkdtemp()


def double(inputs: Any, labels: Any, training: bool) -> Any:
    assert labels is None
    assert not training
    inputs *= 2
    return inputs, labels


def check(name: str, net: keras.Model, inputs: list[Any], given: Any, transform: Any = None, **settings: Any) -> None:
    expected = net.predict(given, verbose=0, batch_size=53)
    names = output_names(net, expected)
    outputs = listed(expected, names)
    path = os.path.join(DIRECTORY, name)
    with open(path, "wb") as file:
        file.write(archive.dumps((net, transform, {})))
    run = Forward(path, 16, tuple(one.shape[1:] for one in outputs), output_names=names, **settings)
    for rows in (53, 50, 18, 17, 1):
        found = run([one[:rows] for one in inputs])
        for output, wanted in zip(found, outputs, strict=True):
            np.testing.assert_allclose(output, wanted[:rows], atol=1e-5, err_msg=f"{name}, {rows} rows")


assert keras.backend.backend() == BACKEND
read_only = ROWS.copy()
read_only.flags.writeable = False
check("plain", nets.dense(2), [read_only], ROWS)
check("transformed", nets.dense(1), [read_only], ROWS * 2, double)
check("by position", nets.towers(), [ITEMS, CONTEXT], [ITEMS, CONTEXT])
by_name = {"context": CONTEXT, "item": ITEMS}
check("by name", nets.towers(), [CONTEXT, ITEMS], [ITEMS, CONTEXT], arguments=("context", "item"))
check("dicts", nets.towers("dict"), [CONTEXT, ITEMS], by_name, arguments=("context", "item"))
assert len(forward._models) == forward.CACHED_MODELS

pair = nets.Pair(3)
pair(ROWS)
check("subclass", pair, [ROWS], ROWS)

if BACKEND != "torch":
    path = os.path.join(DIRECTORY, "traced")
    with open(path, "wb") as file:
        file.write(archive.dumps((keras.Sequential([keras.Input((4,)), nets.Traced()]), None, {})))
    run = Forward(path, 16, ((4,),))
    run([ROWS])  # batches of 16 and 5 rows
    traces = nets.Traced.traces
    for rows in (48, 16, 11, 9, 7, 6):
        run([ROWS[:rows]])
    assert nets.Traced.traces == traces, "compiled anew for another number of rows"
print("ok")

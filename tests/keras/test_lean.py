"""A worker imports Keras without what training does not use, and all of it is there for whoever asks later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BACKENDS = {"tensorflow": {"torch", "jax"}, "jax": {"torch", "tensorflow"}, "torch": {"tensorflow", "jax"}}
SCRIPT = """
import importlib, sys
import sparktrain.keras.on_{backend}
unused = {unused!r} | {{"matplotlib", "pandas", "sklearn", "scipy.stats"}}
print(sorted(unused & set(sys.modules)))
import keras, numpy as np
images = np.zeros((4, 8, 8, 3))
keras.visualization.plot_image_gallery(images, rows=2, cols=2, value_range=(0, 1), path={path!r})  # of Matplotlib
from sklearn.base import BaseEstimator
import jax, matplotlib.pyplot
print(keras.backend.backend(), BaseEstimator.__name__, jax.numpy.ones(2).sum(), callable(matplotlib.pyplot.plot))
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
print(model.predict(np.ones((3, 2)), verbose=0).tolist())
import pandas
frame = pandas.DataFrame({{"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}})
print(model.predict(frame, verbose=0).tolist())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_training_does_not_use_is_imported_by_who_uses_it(backend: str, tmp_path: Path) -> None:
    script = SCRIPT.format(backend=backend, unused=BACKENDS[backend], path=f"{tmp_path}/gallery.png")
    env = {**os.environ, "MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "[]",
        f"{backend} BaseEstimator 2.0 True",
        "[[2.0], [2.0], [2.0]]",
        "[[5.0], [7.0], [9.0]]",
    ], done.stderr[-2000:]

"""Saved Keras objects: what loading admits, and weights that every backend reads."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from sparktrain.errors import PersistenceError
from sparktrain.keras import archive, files
from sparktrain.keras.held import KerasValue
from sparktrain.keras.model import KerasModel
from sparktrain.keras.skeleton import skeleton_of
from sparktrain.persistence import RestrictedUnpickler, Saved, Unpickler
from tests.keras import nets
from tests.keras.test_predict import run_python

ROWS = np.random.default_rng(0).random((5, 4), dtype=np.float32)


def restricted(*allow: str) -> Unpickler:
    return lambda file: RestrictedUnpickler(file, allow, files.admits)


def trip(value: Any, *allow: str) -> Any:
    return files.restored(archive.dumps(value), restricted(*allow))


def from_main() -> type[keras.layers.Layer]:
    """A layer class as one made in a notebook: it can't be imported."""
    return type("Notebook", (keras.layers.Layer,), {"__module__": "__main__", "call": lambda self, rows: rows})


def test_keras_s_own_objects_are_admitted() -> None:
    net = nets.towers()
    given = {"item": np.arange(5), "context": ROWS[:, :3]}
    again, loss, optimizer, callbacks, function = trip(
        (
            net,
            keras.losses.BinaryCrossentropy(from_logits=True),
            keras.optimizers.Adam(0.25),
            [keras.callbacks.EarlyStopping("loss", patience=2), keras.callbacks.ReduceLROnPlateau()],
            keras.losses.mean_squared_error,
        )
    )
    for found, wanted in zip(again.predict(given, verbose=0), net.predict(given, verbose=0), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert loss.from_logits
    assert float(optimizer.learning_rate) == 0.25
    assert [callbacks[0].patience, type(callbacks[1])] == [2, keras.callbacks.ReduceLROnPlateau]
    assert function is keras.losses.mean_squared_error


def test_a_user_s_class_is_admitted_when_allowed() -> None:
    net = keras.Sequential([keras.Input((4,)), nets.Plus(0.5)])
    with pytest.raises(PersistenceError, match=r"uses tests.keras.nets.Plus.*load\(path, allow=\('tests',\)\)"):
        trip(net)
    np.testing.assert_allclose(trip(net, "tests").predict(ROWS, verbose=0), ROWS + 0.5, atol=1e-6)


def test_values_of_a_grid() -> None:
    net = nets.dense(2)
    for value in (net, {"optimizer": keras.optimizers.SGD(0.5)}, nets.dense):
        saved = KerasValue(value)._saved_objects()
        again = KerasValue()
        again._restore_objects(Saved(saved.structure, "", {}), restricted("tests"))
        if value is net:
            np.testing.assert_allclose(again.value.predict(ROWS, verbose=0), net.predict(ROWS, verbose=0), atol=1e-6)
        elif isinstance(value, dict):
            assert float(again.value["optimizer"].learning_rate) == 0.5
        else:
            assert again.value is value


def test_code_by_value_needs_trust() -> None:
    notebook = keras.Sequential([keras.Input((4,)), from_main()()])
    with pytest.raises(PersistenceError, match=r"holds code by value.*load\(path, trust=True\)"):
        trip(notebook)
    function = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda rows: rows * 2)])
    with pytest.raises(PersistenceError, match=r"a Python lambda.*load\(path, trust=True\)"):
        trip(function)
    for net, factor in ((notebook, 1), (function, 2)):
        again = files.restored(archive.dumps(net), pickle.Unpickler)
        np.testing.assert_allclose(again.predict(ROWS, verbose=0), ROWS * factor, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("keras.src.saving.saving_api", "load_model"),
        ("keras.src.losses.losses", "ops.convert_to_numpy"),
        ("keras.src.losses.losses", "serialize_keras_object"),
        ("keras.src.utils.file_utils", "get_file"),
        ("keras.src.callbacks.lambda_callback", "LambdaCallback"),
        ("sparktrain.keras.archive", "loads"),
        ("sparktrain.keras.files", "write_weights"),
    ],
)
def test_names_that_no_file_may_reach(module: str, name: str) -> None:
    with pytest.raises(PersistenceError):
        RestrictedUnpickler(io.BytesIO(), (), files.admits).find_class(module, name)


def test_a_config_is_no_way_to_import_a_module(tmp_path: Path) -> None:
    (tmp_path / "intruder.py").write_text("raise SystemExit('imported')")
    skeleton = skeleton_of(nets.dense(1))
    assert skeleton.config is not None
    skeleton.config["config"]["layers"][-1].update(module="intruder", class_name="Run", registered_name="Run")
    with pytest.raises(ValueError, match=r"a config names intruder.Run, which the file does not bring"):
        archive._Restore(True)(("layer", 0, skeleton, None, {}, None))


def saved(directory: Path) -> list[str]:
    """Models of all kinds, their predictions beside them."""
    models: dict[str, Callable[[], keras.Model]] = {
        "functional": lambda: nets.dense(2),
        "sequential": lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()]),
        "subclass": lambda: nets.Pair(3),
    }
    for name, make in models.items():
        net = make()
        net(ROWS)
        net.compile("sgd", "mse")
        (directory / f"{name}.pkl").write_bytes(archive.dumps(net, weights=False))
        files.write_weights(net, str(directory / f"{name}.keras"))
        found = net.predict(ROWS, verbose=0)
        np.save(directory / f"{name}.npy", found["value"] if isinstance(found, dict) else found)
    return list(models)


LOAD = """
import sys
import numpy as np
from sparktrain.keras import files
from tests.keras.test_files import ROWS, restricted
directory, *names = sys.argv[1:]
for name in names:
    net = files.restored(open(f"{directory}/{name}.pkl", "rb").read(), restricted("tests"))
    files.read_weights(net, f"{directory}/{name}.keras")
    found = net.predict(ROWS, verbose=0)
    found = found["value"] if isinstance(found, dict) else found
    np.testing.assert_allclose(found, np.load(f"{directory}/{name}.npy"), atol=1e-5)
import keras
print(keras.backend.backend())
"""


def test_weights_are_read_by_another_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = saved(tmp_path)
    assert (tmp_path / "functional.keras").read_bytes().startswith(b"PK")
    assert (tmp_path / "subclass.keras").read_bytes()[1:4] == b"HDF", "Keras can't save it whole"
    for backend in ("jax", "tensorflow"):
        monkeypatch.setenv("KERAS_BACKEND", backend)
        assert run_python("-c", LOAD, str(tmp_path), *names) == backend


def test_what_a_fit_has_learned_comes_back(tmp_path: Path) -> None:
    net = nets.Pair(3)
    net(ROWS)
    outputs = (("float32", (3,)), ("float32", (1,)))
    model = KerasModel(model=net, feature_cols=["x"])
    model._fitted([{"loss": 1.0}], ((4,),), outputs, ("h", "v"), ("hidden", "value"), "logits")
    saved = model._saved_objects()
    saved.write_tensors(str(tmp_path / "model.keras"))
    loaded = KerasModel()
    extra = json.loads(json.dumps(saved.extra))
    loaded._restore_objects(Saved(saved.structure, str(tmp_path / "model.keras"), extra), restricted("tests"))
    for name in ("history", "_input_shapes", "_outputs", "_labels", "_output_keys", "_kind"):
        assert getattr(loaded, name) == getattr(model, name), name
    assert [field.name for field in loaded._output_fields()] == ["prediction_h", "prediction_v"]
    np.testing.assert_allclose(loaded.keras()(ROWS)["value"].detach(), net(ROWS)["value"].detach(), atol=1e-6)


def test_weights_of_another_model(tmp_path: Path) -> None:
    files.write_weights(nets.dense(2), str(tmp_path / "model.keras"))
    with pytest.raises(PersistenceError, match="doesn't hold the weights of the saved model"):
        files.read_weights(nets.dense(3), str(tmp_path / "model.keras"))
    with pytest.raises(PersistenceError, match="no weights to save before it is built"):
        files.write_weights(keras.Sequential([keras.layers.Dense(1)]), str(tmp_path / "unbuilt.keras"))

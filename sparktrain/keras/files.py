"""Keras objects in files: structures that are read without running code, and the weights in Keras's own format."""

from __future__ import annotations

import importlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import keras

from sparktrain import persistence
from sparktrain.errors import PersistenceError
from sparktrain.keras import archive

WEIGHTS = "model.keras"

_ADMITTED = {
    "sparktrain.keras.skeleton": {"Skeleton", "_Weight"},
    "ml_dtypes": {"bfloat16"},
    "keras.src.callbacks.early_stopping": {"EarlyStopping"},
    "keras.src.callbacks.learning_rate_scheduler": {"LearningRateScheduler"},
    "keras.src.callbacks.reduce_lr_on_plateau": {"ReduceLROnPlateau"},
    "keras.src.callbacks.terminate_on_nan": {"TerminateOnNaN"},
}
_FUNCTIONS = ("keras.src.activations.", "keras.src.losses.", "keras.src.metrics.")


def admits(module: str, name: str) -> bool:
    """What Keras's structures need beside containers and arrays: its callbacks and functions, configs of models."""
    if name in _ADMITTED.get(module, ()):
        return True
    if "." in name or name.startswith("_") or not module.startswith(_FUNCTIONS):
        return False
    found = getattr(importlib.import_module(module), name, None)
    return callable(found) and getattr(found, "__module__", None) == module  # not a helper it imports


def restored(structure: bytes, unpickler: persistence.Unpickler) -> Any:
    """What `archive.dumps` was given.

    Raises
    ------
    PersistenceError
        Where it needs code that was not allowed, or can't be made anew.
    """
    trusted = persistence.trusts(unpickler)
    try:
        return archive.loads(structure, None if trusted else unpickler, safe_mode=not trusted)
    except ModuleNotFoundError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        if "unsafe" in str(error) or "safe_mode" in str(error):
            raise PersistenceError(
                "the saved model holds a Python lambda, code that loading does not run by itself. If you trust this "
                f"file, load(path, trust=True) or set {persistence.TRUST}=true; better, put a function or a Layer "
                "of a module in its place"
            ) from error
        raise PersistenceError(f"Keras can't make the saved model anew: {error}") from error


def write_weights(model: keras.Model, path: str) -> None:
    """Write Keras's own archive of a model; of a class that Keras can't save, the weights alone (HDF5).

    Raises
    ------
    PersistenceError
        Where the model has no weights yet.
    """
    if not model.built:
        raise PersistenceError(f"model {model.name!r} has no weights to save before it is built: call it on a batch")
    try:
        keras.saving.save_model(model, path)
    except Exception:  # whatever a class's own get_config raises
        named = f"{path}.weights.h5"
        model.save_weights(named)
        os.replace(named, path)


def read_weights(model: keras.Model, path: str) -> None:
    """Put the weights that `write_weights` wrote into a model of the same structure.

    Raises
    ------
    PersistenceError
        Where they are another model's.
    """
    named = f"{path}.weights.h5"
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as whole, whole.open("model.weights.h5") as weights, open(named, "wb") as file:
                shutil.copyfileobj(weights, file)
        else:
            os.link(path, named)
        model.load_weights(named)
    except (ValueError, KeyError, OSError) as error:
        raise PersistenceError(f"{WEIGHTS} doesn't hold the weights of the saved model: {error}") from error
    finally:
        Path(named).unlink(missing_ok=True)

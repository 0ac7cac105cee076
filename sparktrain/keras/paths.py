"""Where Keras's callbacks write: relative paths go from the run's directory."""

from __future__ import annotations

import os
from typing import Any

import keras

from sparktrain.store.folder import Folder

_PATHS = {
    "ModelCheckpoint": ("filepath",),
    "BackupAndRestore": (
        "backup_dir",
        "_weights_path",
        "_training_metadata_path",
        "_prev_weights_path",
        "_prev_training_metadata_path",
    ),
    "TensorBoard": ("log_dir",),
    "CSVLogger": ("filename",),
}
"""Attributes of each that hold a path, the given one first."""


def put_into(folder: Folder, callbacks: list[keras.callbacks.Callback], *, writes: bool) -> None:
    """Have callbacks write below the folder where they were given relative paths; fetch a backup from its store.

    Parameters
    ----------
    folder : Folder
    callbacks : list of Callback
    writes : bool
        Whether they do write on this rank.
    """
    for callback in callbacks:
        for name, attributes in _PATHS.items():
            if not isinstance(callback, getattr(keras.callbacks, name)):
                continue
            given = os.fspath(getattr(callback, attributes[0]))
            if os.path.isabs(given) or "://" in given:
                continue
            if name == "BackupAndRestore" and (writes or keras.backend.backend() == "jax"):  # see `of_rank`
                folder.pull(given)
            for attribute in attributes:
                setattr(callback, attribute, os.path.join(folder.path, os.fspath(getattr(callback, attribute))))
            if writes:
                os.makedirs(os.path.dirname(os.path.join(folder.path, given)), exist_ok=True)


class Upload(keras.callbacks.Callback):  # type: ignore[misc]
    """After those that write: what they have written goes to the store after each epoch."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._folder.push()

    def on_train_end(self, logs: Any = None) -> None:
        self._folder.push()

"""Values of a grid over a `KerasEstimator`'s model, optimizer, loss, metrics, callbacks or transform_batch."""

from __future__ import annotations

from sparktrain import persistence
from sparktrain.held import HeldValue
from sparktrain.keras import archive, files


class KerasValue(HeldValue):
    """A Keras object, callable, or collection of them; a model with its weights."""

    weights_file = ""
    _admits = staticmethod(files.admits)

    def _saved_objects(self) -> persistence.ToSave:
        return persistence.ToSave(archive.dumps(self.value, compiled=True), persistence.nothing, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        self.value = files.restored(saved.structure, unpickler)

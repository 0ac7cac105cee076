"""Values of a grid over a `TorchEstimator`'s model, optimizer, loss, metrics, scheduler or transform_batch."""

from __future__ import annotations

from torch import nn

from sparktrain.held import HeldValue
from sparktrain.persistence import Saved, ToSave, Unpickler
from sparktrain.torch import bundle


class TorchValue(HeldValue):
    """A module, callable, or collection of them, saved in the two parts that a `TorchModel` is saved in.

    Each value is saved by itself. An optimizer that is bound to a model therefore comes back bound to a copy
    of it, which ``fit`` refuses; a callable such as ``partial(torch.optim.SGD, lr=0.1)`` has no such tie.
    """

    def _saved_objects(self) -> ToSave:
        packed = bundle.dump(self.value, self.value if isinstance(self.value, nn.Module) else None, share=True)
        return ToSave(packed.structure, packed.write_tensors, {})

    def _restore_objects(self, saved: Saved, unpickler: Unpickler) -> None:
        self.value = bundle.load(saved.structure, bundle.tensors_from_file(saved.tensors_file), unpickler)

"""XGBoost's and the user's objects as what can be saved: values of a grid, objectives, metrics, callbacks, boosters."""

from __future__ import annotations

from typing import Any

import cloudpickle
import xgboost as xgb

from sparktrain import persistence
from sparktrain.held import HeldValue

BOOSTER = "sparktrain.booster"


def packed(value: Any) -> Any:
    """A booster as its native bytes, so that reading it back runs no code; any other value as it is."""
    return {BOOSTER: bytes(value.save_raw("ubj"))} if isinstance(value, xgb.Booster) else value


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    if not isinstance(value, dict) or BOOSTER not in value:
        return value
    booster = xgb.Booster()
    booster.load_model(bytearray(value[BOOSTER]))
    return booster


class BoosterValue(HeldValue):
    """A value of a grid over objective, eval_metric, callbacks or xgb_model."""

    weights_file = ""

    def _saved_objects(self) -> persistence.ToSave:
        return persistence.ToSave(cloudpickle.dumps(packed(self.value)), persistence.nothing, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        self.value = unpacked(persistence.unpickled(saved.structure, unpickler))

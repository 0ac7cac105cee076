"""XGBoost's and the user's objects as what can be saved: values of a grid, objectives, metrics, callbacks, boosters."""

from __future__ import annotations

from typing import Any

import cloudpickle
import xgboost as xgb

from sparktrain import persistence
from sparktrain.held import HeldValue
from sparktrain.xgboost import boosters

BOOSTER = "sparktrain.booster"


def packed(value: Any) -> Any:
    """A booster as its native bytes, so that reading it back runs no code; any other value as it is."""
    return {BOOSTER: bytes(value.save_raw("ubj"))} if isinstance(value, xgb.Booster) else value


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    return boosters.of_bytes(value[BOOSTER]) if isinstance(value, dict) and BOOSTER in value else value


class BoosterValue(HeldValue):
    """A value of a grid over objective, eval_metric, callbacks or xgb_model."""

    weights_file = ""

    def _saved_objects(self) -> persistence.ToSave:
        return persistence.ToSave(cloudpickle.dumps(packed(self.value)), persistence.nothing, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        self.value = unpacked(persistence.unpickled(saved.structure, unpickler))

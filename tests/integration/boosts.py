"""Callbacks of XGBoost that executors import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import xgboost as xgb
from xgboost import collective

from sparktrain.shards.disk import local_directory


class DiesOnce(xgb.callback.TrainingCallback):
    """Rank 1 is killed after its second round, where the file is not there yet."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 1 and collective.get_rank() == 1 and not os.path.exists(self._mark):
            Path(self._mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False


class Fault(xgb.callback.TrainingCallback):
    """Rank 1 ends after its second round: by an exception, or by a signal of that name."""

    def __init__(self, kind: str, pages: str = "") -> None:
        super().__init__()
        self._kind, self._pages = kind, pages

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 1 and collective.get_rank() == 1:
            if self._pages:  # what lies on disk meanwhile, for the test to see
                found = [path for path in Path(local_directory()).glob("sparktrain-*/*") if path.is_file()]
                Path(self._pages).write_text("\n".join(map(str, found)))
            if self._kind == "raise":
                raise ValueError("boom in round 2")
            os.kill(os.getpid(), getattr(signal, self._kind))
        return False

"""A fit's run, as the driver sees it: its place in the store, and what each launch of its gang is told of it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparktrain.errors import ParamError
from sparktrain.store import run as record
from sparktrain.store.checkpoints import Checkpoints, CheckpointSpec
from sparktrain.store.params import HasCheckpoints
from sparktrain.store.store import Store, new_run_id

logger = logging.getLogger(__name__)
DEFAULT_RESTARTS = 2
"""Where there are checkpoints to start from."""


@dataclass(frozen=True)
class Run:
    """What a fit keeps, and how often its gang is launched again.

    Parameters
    ----------
    max_restarts : int
    checkpoints : CheckpointSpec or None
        None: nothing is kept.
    """

    max_restarts: int = 0
    checkpoints: CheckpointSpec | None = None

    def told(self, attempt: int) -> dict[str, Any]:
        """For the trainer's payload, at this launch (counted from 0)."""
        if self.checkpoints is None:
            return {}
        token = uuid.uuid4().hex
        record.claim(self.checkpoints.run_url, token)
        return {"checkpoints": replace(self.checkpoints, attempt=token, resume=self.checkpoints.resume or attempt > 0)}

    def reached(self) -> str:
        """Names the newest checkpoint; empty: there is none."""
        if self.checkpoints is None:
            return ""
        found = Checkpoints(self.checkpoints.run_url).positions()
        return str(found[0]) if found else ""


def begin(estimator: HasCheckpoints, restarts: int | None, identity: Mapping[str, Any]) -> Run:
    """Begin the run that an estimator's Params tell of, or go on with it.

    Parameters
    ----------
    estimator : HasCheckpoints
    restarts : int or None
        ``max_restarts``.
    identity : mapping
        What must be the same for a run to be continued.

    Raises
    ------
    ParamError
        Where there is nothing to go on with, or it is another's.
    """
    value = estimator._value
    url = value(estimator.store)
    if url is None:
        if value(estimator.resume):
            raise ParamError("resume=True: there is no store to resume from; give store=")
        return Run(restarts or 0)
    store, what = Store(url), type(estimator).__name__
    run_id = value(estimator.runId)
    if run_id is None:
        run_id = record.newest(store, what, identity) if value(estimator.resume) else new_run_id()
    resumes = record.begin(store, run_id, what, identity)
    run_url = store.get_run_path(run_id)
    logger.info("%s run %s at %s", "goes on with" if resumes else "begins", run_id, run_url)
    return Run(
        DEFAULT_RESTARTS if restarts is None else restarts,
        CheckpointSpec(
            run_url,
            attempt="",
            every_n_epochs=value(estimator.checkpointEveryNEpochs),
            every_n_steps=value(estimator.checkpointEveryNSteps),
            every_n_minutes=value(estimator.checkpointEveryNMinutes),
            keep_last=value(estimator.keepLast),
            keep_best=value(estimator.keepBest),
            resume=resumes,
        ),
    )

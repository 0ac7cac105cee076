"""The Params of fits that keep something."""

from __future__ import annotations

import os
from typing import Any

from sparktrain import params
from sparktrain.params import GangParam, KeywordParams
from sparktrain.store.store import Store, check_run_id


def _store(value: Any) -> str:
    if isinstance(value, Store):
        return value.url
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ValueError("a path, a URL such as 's3://bucket/runs', or a sparktrain.store.Store")
    try:
        return Store(value).url
    except ValueError as error:
        raise ValueError(f"a path, or a URL of a file system that fsspec knows ({error})") from error


def _run_id(value: Any) -> str:
    return check_run_id(params.string(value))


class HasStore(KeywordParams):
    """Where a fit keeps what it writes."""

    store = GangParam(
        "store",
        "Where runs are kept: a path, a URL of a file system that fsspec knows, or a sparktrain.store.Store. Relative "
        "paths of callbacks go from the run's directory there; without a store from the driver's working directory.",
        _store,
        None,
    )
    runId = GangParam(
        "run_id",
        "The run's name, its directory in the store. By default one that says when the fit began.",
        _run_id,
        None,
    )


class HasCheckpoints(HasStore):
    """How often a fit writes down where it is, and which of that it keeps."""

    resume = GangParam(
        "resume",
        "True: go on with the newest run in the store of the same model and columns, finished or not. A run_id that is "
        "in the store already is gone on with in any case.",
        params.boolean,
        False,
    )
    checkpointEveryNEpochs = GangParam(
        "checkpoint_every_n_epochs",
        "With a store: epochs from one checkpoint to the next. The last epoch has one.",
        params.integer(1),
        1,
    )
    checkpointEveryNSteps = GangParam(
        "checkpoint_every_n_steps",
        "Steps, counted from the fit's beginning, after which one is written within an epoch. None: at epochs' ends.",
        params.integer(1),
        None,
    )
    checkpointEveryNMinutes = GangParam(
        "checkpoint_every_n_minutes",
        "Minutes after which one is written within an epoch. None: at epochs' ends.",
        params.number(above=0),
        None,
    )
    keepLast = GangParam("keep_last", "How many of the newest checkpoints are kept.", params.integer(1), 2)
    keepBest = GangParam(
        "keep_best",
        "A key of history, such as 'val_loss': the checkpoint where it was least is kept as well.",
        params.string,
        None,
    )

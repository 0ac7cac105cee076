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
    return Store(value).url


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

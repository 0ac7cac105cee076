"""A run's record in the store: what it trains, so that only the same is ever continued."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem

from sparktrain.errors import ParamError
from sparktrain.store.store import Store, filesystem_of

logger = logging.getLogger(__name__)
RECORD, CLAIM = "run.json", "attempt"


def begin(store: Store, run_id: str, what: str, identity: Mapping[str, Any]) -> bool:
    """Make a run's directory and record, or find that they are there: whether the run had begun before.

    Parameters
    ----------
    store : Store
    run_id : str
    what : str
        The estimator's class.
    identity : mapping
        Plain values by what they are called: what must be the same for the run to be continued.

    Raises
    ------
    ParamError
        Where the run is another one's.
    """
    told = {"estimator": what, **json.loads(json.dumps(identity))}
    url = f"{store.get_run_path(run_id)}/{RECORD}"
    try:
        filesystem, path = filesystem_of(url)
        found = _read(filesystem, path)
        if found is None:
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            began = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
            filesystem.pipe_file(path, json.dumps({"began": began, **told}, indent=1).encode())
            return False
    except OSError as error:
        raise ParamError(f"store: {url} can't be written or read: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ParamError(f"run_id={run_id!r}: {url} is damaged: {error}. Take another run_id") from error
    for name, value in told.items():
        if found.get(name) != value:
            raise ParamError(
                f"run_id={run_id!r}: that run can't be continued, its {name} differs: {_short(found.get(name))} there, "
                f"{_short(value)} now. Take another run_id"
            )
    return True


def newest(store: Store, what: str, identity: Mapping[str, Any]) -> str:
    """The run that began last among those that can be continued.

    Raises
    ------
    ParamError
        Where there is none.
    """
    filesystem, root = filesystem_of(store.url)
    told = {"estimator": what, **json.loads(json.dumps(identity))}
    filesystem.invalidate_cache()
    found = []
    for path in filesystem.glob(f"{root}/*/{RECORD}"):
        try:
            record = _read(filesystem, path) or {}
        except ValueError:
            logger.warning("passed over a run: %s is damaged", path)
            continue
        if all(record.get(name) == value for name, value in told.items()):
            found.append((record["began"], path.split("/")[-2]))
    if not found:
        raise ParamError(f"resume=True: {store.url} has no run of this {what}, model and columns; leave it False")
    return str(max(found)[1])


def _read(filesystem: AbstractFileSystem, path: str) -> dict[str, Any] | None:
    """A run's record; None: there is none. Raises ValueError where it is damaged."""
    try:
        found = json.loads(filesystem.cat_file(path))
    except FileNotFoundError:
        return None
    if not isinstance(found, dict) or "began" not in found:
        raise ValueError("it is no record of a run")
    return found


class TakenOver(Exception):
    """Another fit writes in the run's directory now."""


def claim(run_url: str, attempt: str) -> None:
    """Only this launch of the run's gang may write checkpoints from now on."""
    filesystem, path = filesystem_of(f"{run_url}/{CLAIM}")
    filesystem.pipe_file(path, attempt.encode())


def check_claim(run_url: str, attempt: str) -> None:
    """Raises `TakenOver` where another launch has claimed the run since."""
    filesystem, path = filesystem_of(f"{run_url}/{CLAIM}")
    try:
        found = filesystem.cat_file(path)
    except FileNotFoundError:
        return
    if found != attempt.encode():
        raise TakenOver(f"another fit has gone on with the run at {run_url} meanwhile; give each its own run_id")


def check_seen(run_url: str, where: str) -> None:
    """A rank's host sees what the driver has written.

    Raises
    ------
    ParamError
        Where it does not: the store is a disk of the driver's own.
    """
    filesystem, path = filesystem_of(f"{run_url}/{RECORD}")
    if not filesystem.exists(path):
        raise ParamError(
            f"store: {where} does not see the run that the driver has begun at {run_url}; take a path on a disk that "
            "all hosts share, or an object store"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"

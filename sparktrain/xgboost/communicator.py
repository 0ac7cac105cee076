"""XGBoost's collective for a gang: rank 0 runs its tracker, and tells the others where, on the gang's endpoint."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from xgboost import collective
from xgboost.tracker import RabitTracker

from sparktrain.gang import announce
from sparktrain.gang.spec import Gang
from sparktrain.shards.arrow import Array


@contextlib.contextmanager
def join(gang: Gang, listen_fd: int | None, *, retries: int | None = None) -> Iterator[None]:
    """Be one rank of `xgboost.collective`; a gang of one has none to talk to.

    Parameters
    ----------
    gang : Gang
    listen_fd : int or None
        On rank 0 the socket its task listens on: the tracker's own port is not known before it runs, and it
        must meet no connection but those of its workers.
    retries : int or None
        How often a connection is tried; None: XGBoost's default.
    """
    if gang.world_size == 1:
        yield
        return
    tracker = None
    timeout_s = max(int(gang.collective_timeout_s), 1)
    if gang.rank == 0:
        assert listen_fd is not None
        host = announce.address_of(gang.endpoint[0])
        tracker = RabitTracker(n_workers=gang.world_size, host_ip=host, sortby="task", timeout=timeout_s)
        tracker.start()
        arguments = tracker.worker_args()
        announce.tell(listen_fd, arguments)
    else:
        arguments = announce.ask(gang.endpoint, timeout_s)
    own: dict[str, Any] = {"dmlc_task_id": f"{gang.rank:08d}", "dmlc_timeout": timeout_s}
    if retries is not None:
        own["dmlc_retry"] = retries
    with ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints which task has which rank
            stack.enter_context(collective.CommunicatorContext(**arguments, **own))
        assert collective.get_rank() == gang.rank, "the tracker sorts by task id"
        yield
    if tracker is not None:  # the others still say goodbye to it, and this process ends with the block
        tracker.wait_for(timeout_s)


def gathered(value: Any) -> list[Any]:
    """Every rank's value (anything that can be pickled), in rank order."""
    if not collective.is_distributed():
        return [value]
    return [collective.broadcast(value, root) for root in range(collective.get_world_size())]


def joined(rows: Array) -> Array:
    """The rows of all ranks in rank order, shape (rows of all ranks, …), on every rank.

    Sums of zeros and one rank's values, which are exact. The shape of a row is that of ranks with rows: what XGBoost
    gives for none, of several classes or targets too, has one dimension.
    """
    if not collective.is_distributed():
        return rows
    shapes = gathered(rows.shape)
    counts = [shape[0] for shape in shapes]
    start = sum(counts[: collective.get_rank()])
    of_row = next((shape[1:] for shape in shapes if shape[0]), ())
    everyone = np.zeros((sum(counts), *of_row), rows.dtype)
    everyone[start : start + len(rows)] = rows.reshape(-1, *of_row)
    return collective.allreduce(everyone, collective.Op.SUM).reshape(everyone.shape)  # it gives them flat


def summed(values: Array) -> Array:
    """The sum over all ranks."""
    return collective.allreduce(values, collective.Op.SUM) if collective.is_distributed() else values


def any_rank(value: bool) -> bool:
    """Whether it is true on any rank."""
    if not collective.is_distributed():
        return value
    return bool(collective.allreduce(np.array([int(value)], np.int32), collective.Op.MAX)[0])

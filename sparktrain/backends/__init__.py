"""How N worker processes become one gang: a backend knows processes and addresses, no framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from sparktrain.backends.companion import Companion
from sparktrain.errors import ParamError
from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets  # with it comes pyarrow, which the worker leaves to its trainer

AVAILABLE = ("native", "horovod", "mpi")


class Backend(Protocol):
    """The seam each backend fills."""

    def missing(self) -> str | None:
        """What this Python lacks for it, and how to get it; None: nothing."""

    def companion(self, address: str, log: Callable[[str], None], environment: Mapping[str, str]) -> Companion:
        """What runs beside a worker in its task.

        Parameters
        ----------
        address : str
            This host, as Spark knows it.
        log : callable
            Takes lines for the rank's log.
        environment : mapping
            The worker's.
        """

    def prepare(self, gang: Gang) -> None:
        """Called once in each worker, after the rendezvous and before its trainer."""

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """What a function of the user's is to find in the environment, so that frameworks meet by themselves.

        All ranks call this together.
        """

    def leave(self) -> None:
        """Called once in each worker, when the trainers of all ranks are done."""


def load(name: str) -> Backend:
    """The backend of that name.

    Raises
    ------
    ParamError
        Where there is none.
    """
    if name not in AVAILABLE:
        raise ParamError(f"backend: expected one of {', '.join(map(repr, AVAILABLE))}, got {name!r}")
    backend: Backend = importlib.import_module(f"sparktrain.backends.{name}").BACKEND
    return backend

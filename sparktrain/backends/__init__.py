"""How N worker processes become one gang: a backend knows processes and addresses, no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from sparktrain.errors import ParamError
from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets

AVAILABLE = ("native", "horovod")


class Backend(Protocol):
    """The seam each backend fills."""

    def missing(self) -> str | None:
        """What this Python lacks for it, and how to get it; None: nothing."""

    def prepare(self, gang: Gang) -> None:
        """Called once in each worker, after the rendezvous and before its trainer."""

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """What a function of the user's is to find in the environment, so that frameworks meet by themselves.

        All ranks call this together.
        """


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

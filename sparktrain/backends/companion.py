"""What a backend runs beside a worker, in the task that has started it; most run nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparktrain.gang.spec import Gang


class Companion(Protocol):
    """One task's part; made before the ranks meet."""

    def tells(self) -> str:
        """What the other tasks are to know of it."""

    def start(self, gang: Gang, told: Sequence[str]) -> None:
        """The ranks have met: `told` is what each one's `tells` has said, in rank order."""

    def environment(self, timeout_s: float) -> Mapping[str, str]:
        """Of the worker, before it is given its job.

        Raises
        ------
        GangTimeout
            Where it is not known in time.
        """

    def check(self) -> None:
        """Raises where what the worker needs has ended; called about once a second."""

    def finish(self) -> None:
        """This rank's worker is done: wait until all is over."""

    def close(self) -> None:
        """End what is left."""


class Alone:
    """The worker needs nothing beside it."""

    def tells(self) -> str:
        return ""

    def start(self, gang: Gang, told: Sequence[str]) -> None:
        return

    def environment(self, timeout_s: float) -> Mapping[str, str]:
        return {}

    def check(self) -> None:
        return

    def finish(self) -> None:
        return

    def close(self) -> None:
        return


Make = Callable[[str, Callable[[str], None], Mapping[str, str]], Companion]
"""Takes this host's address, what takes lines to log, and the worker's environment."""

"""Whether a gang that has failed is launched again: a pure function of how, and of how far it had come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparktrain.errors import GangError, SparktrainError

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Failure:
    """One launch that did not end well.

    Parameters
    ----------
    lost : bool
        See `GangError.lost`.
    what : str
        The error's first line.
    reached : str
        The newest checkpoint then; empty: there was none.
    """

    lost: bool
    what: str
    reached: str

    @classmethod
    def of(cls, error: SparktrainError, reached: str) -> Failure:
        first, *_ = str(error).splitlines() or [""]
        return cls(isinstance(error, GangError) and error.lost, first, reached)


def pause_before_restart(failures: Sequence[Failure], max_restarts: int) -> float | None:
    """Seconds to wait before another launch; None: that is of no use, or not allowed.

    A fault of the training's own would come again. So would what has come twice without a checkpoint in between: a
    step for which the memory never suffices.
    """
    last = failures[-1]
    if not last.lost or len(failures) > max_restarts:
        return None
    if len(failures) > 1 and (failures[-2].what, failures[-2].reached) == (last.what, last.reached):
        return None
    return min(FIRST_PAUSE_S * 2.0 ** (len(failures) - 1), LONGEST_PAUSE_S)


def run_with_restarts(
    launch: Callable[[int], T],
    max_restarts: int,
    reached: Callable[[], str],
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Call `launch` with the number of the attempt, from 0, until one ends well.

    Parameters
    ----------
    launch : callable
    max_restarts : int
        How often to call it again.
    reached : callable
        Names the newest checkpoint.
    pause : callable

    Raises
    ------
    SparktrainError
        The last attempt's.
    """
    failures: list[Failure] = []
    while True:
        try:
            return launch(len(failures))
        except SparktrainError as error:
            failures.append(Failure.of(error, reached() if max_restarts else ""))
            seconds = pause_before_restart(failures, max_restarts)
            if seconds is None:
                if len(failures) > 1:
                    error.add_note(f"launched {len(failures)} times (max_restarts={max_restarts})")
                raise
            where = f"from the checkpoint {failures[-1].reached}" if failures[-1].reached else "from the beginning"
            logger.warning("the gang is launched again in %g s, %s: %s", seconds, where, failures[-1].what)
            pause(seconds)

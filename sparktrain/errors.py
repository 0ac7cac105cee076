"""Every exception that sparktrain raises on purpose.

::

    SparktrainError
    ├── ParamError          a keyword or Param: unknown, of the wrong type, out of range (ValueError)
    ├── ColumnError         a column: missing, of a type or shape no tensor can take (ValueError)
    ├── DataError           the rows themselves: nulls, ragged arrays, NaN labels (ValueError)
    ├── PersistenceError    saving or loading (RuntimeError)
    └── GangError           launching or running the gang (RuntimeError)
        ├── NotEnoughSlots  the cluster can't run all ranks at the same time
        ├── GangTimeout     a wait passed its deadline
        └── RankFailed      a rank's worker raised or died; carries that rank's traceback and log

Each one can be pickled: errors travel from an executor to the driver.
"""

from __future__ import annotations


class SparktrainError(Exception):
    """Base of all errors raised by sparktrain."""


class ParamError(SparktrainError, ValueError):
    """A keyword or Param is unknown, of the wrong type or out of range."""


class ColumnError(SparktrainError, ValueError):
    """A DataFrame column is missing or has a type or shape that can't become a tensor."""


class DataError(SparktrainError, ValueError):
    """Rows hold what can't be trained on: nulls, ragged arrays, NaN labels, no rows at all."""


class PersistenceError(SparktrainError, RuntimeError):
    """An estimator or model can't be saved or loaded."""


class GangError(SparktrainError, RuntimeError):
    """The gang could not be launched or did not finish.

    Attributes
    ----------
    lost : bool
        Whether a process, an executor or a connection was lost, which may go well another time; else the training, or
        what it was given, is at fault.
    """

    lost = False

    @classmethod
    def of_loss(cls, message: str) -> GangError:
        """The error of something lost."""
        error = cls(message)
        error.lost = True
        return error


class NotEnoughSlots(GangError):
    """Fewer task slots than ranks: a barrier stage would wait in Spark's queue, then fail."""


class GangTimeout(GangError):
    """A wait passed its deadline; the message names the deadline and the setting that moves it."""


class RankFailed(GangError):
    """A rank's worker process raised or died.

    Attributes
    ----------
    rank : int
        The first rank that failed; what its peers met afterwards is not reported.
    traceback : str
        That rank's own traceback, or how its process ended (a signal, an exit status).
    log_tail : str
        The last lines the process wrote to stdout and stderr.
    """

    def __init__(self, message: str, rank: int = -1, traceback: str = "", log_tail: str = "") -> None:
        super().__init__(message, rank, traceback, log_tail)
        self.rank = rank
        self.traceback = traceback
        self.log_tail = log_tail

    def __str__(self) -> str:
        return str(self.args[0])

"""Why a gang failed: one rank's report, how it crosses Spark's error text, and which report counts."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Literal

from sparktrain import errors
from sparktrain.errors import GangError, GangTimeout, RankFailed, SparktrainError

Cause = Literal["error", "lost", "peer"]
"""``error``: the worker raised; ``lost``: its process died; ``peer``: it met another rank's end."""

PEER_GRACE_S = 10.0
"""A rank that met a peer's end waits so long for Spark to end the stage for the true cause."""

_MARK = re.compile(r"\[sparktrain-report ([A-Za-z0-9_=-]+)\]")
_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket Timeout",
    "recvValue failed",
    "NCCL communicator was aborted",
    "remote process exited",
    "Horovod has been shut down",
)


MISSING_MODULE = (
    "The executors don't have this module. Install it there, or send it along: spark.addArtifact('module.py or a "
    "package.zip', pyfile=True), on Spark 3 sparkContext.addPyFile(...), or spark-submit --py-files. What a notebook "
    "or the script itself defines travels without that."
)


@dataclass(frozen=True)
class RankReport:
    """What a task tells of its worker's end.

    Parameters
    ----------
    rank, world_size : int
    host : str
    cause : str
        See `Cause`.
    error_type : str
        Name of the exception's class.
    message : str
    traceback : str
    log_tail : str
        Last lines of the worker's output.
    own : bool
        Whether the exception is one of `sparktrain.errors`.
    """

    rank: int
    world_size: int
    host: str
    cause: Cause
    error_type: str
    message: str
    traceback: str = ""
    log_tail: str = ""
    own: bool = False

    def __str__(self) -> str:
        packed = base64.urlsafe_b64encode(zlib.compress(json.dumps(asdict(self)).encode())).decode()
        return f"{self.headline()}\n[sparktrain-report {packed}]\n{self.traceback}"

    def headline(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {self.host}: {self.error_type}: {self.message}"

    def to_error(self) -> SparktrainError:
        """The exception for the user: sparktrain's own errors as they were raised, others as `RankFailed`."""
        own = getattr(errors, self.error_type, None) if self.own else None
        if isinstance(own, type) and issubclass(own, SparktrainError) and own is not RankFailed:
            error = own(self.message)
            assert isinstance(error, SparktrainError)
            if isinstance(error, GangError):
                error.lost = self.cause != "error" or isinstance(error, GangTimeout)
            return error
        parts = [f"rank {self.rank} of {self.world_size} failed on {self.host}: {self.error_type}: {self.message}"]
        if self.error_type == "ModuleNotFoundError":
            parts.append(MISSING_MODULE)
        if self.traceback:
            parts.append(f"Traceback of rank {self.rank}:\n{self.traceback.rstrip()}")
        if self.log_tail:
            parts.append(f"Last log lines of rank {self.rank}:\n{self.log_tail.rstrip()}")
        failed = RankFailed("\n\n".join(parts), self.rank, self.traceback, self.log_tail)
        failed.lost = self.cause != "error"
        return failed


class ReportedFailure(GangError):
    """Raised in a task so that Spark ends the whole stage; its text carries the report to the driver."""

    def __init__(self, report: RankReport) -> None:
        super().__init__(str(report))


def find_report(text: str) -> RankReport | None:
    """The report inside the text of a Spark error: the first that is not about a peer's end."""
    reports = []
    for packed in _MARK.findall(text):
        try:
            reports.append(RankReport(**json.loads(zlib.decompress(base64.urlsafe_b64decode(packed)))))
        except (ValueError, zlib.error, TypeError):  # cut off by a server's limit on error texts
            continue
    reports.sort(key=lambda report: report.cause == "peer")
    return reports[0] if reports else None


_SPARK_ERRORS = {
    "No module named 'sparktrain'": (
        "Spark's Python workers can't import sparktrain. They run the python that PYSPARK_PYTHON or "
        "spark.pyspark.python names, else the first python3 on PATH: activate the environment that you installed "
        "into or set PYSPARK_PYTHON to its python; on a cluster, install sparktrain on the executors"
    ),
    "SPARK-24820": (
        "partitioned=True: Spark can't run a barrier stage right behind coalesce, union or a partition filter. "
        "Put repartition(num_proc) last, or leave partitioned=False"
    ),
    "bigger than spark.driver.maxResultSize": (
        "the trained model came back in Spark's rows and is larger than spark.driver.maxResultSize allows: raise it "
        "(0: no limit), and spark.driver.memory to a few times the model's size; or, on a classic session, let "
        "executors reach the driver's ports at spark.driver.host, for then large models don't come in rows"
    ),
}
_WORKER_GONE = (
    "Spark's Python worker of a rank's task was killed or crashed on its executor; if nobody killed it, its "
    "memory ran out: give executors more (spark.executor.memoryOverhead, spark.executor.pyspark.memory)"
)
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \((executor \S+) .*?\)(?: Reason: (.*))?")
_EXCEPTION_LINE = re.compile(r"^\w[\w.]*(Error|Exception|Interrupt|Exit)\b.*")


def explain(text: str) -> GangError:
    """What to tell of a Spark job that failed without any rank's report: known causes with their remedy."""
    for sign, remedy in _SPARK_ERRORS.items():
        if sign in text:
            return GangError(remedy)
    if "Python worker exited unexpectedly" in text:
        return GangError.of_loss(_WORKER_GONE)
    if lost := _EXECUTOR_LOST.search(text):
        return GangError.of_loss(
            f"Spark lost {lost[1]} while a rank ran on it: {lost[2] or 'no reason given'}. If nobody ended it, its "
            "memory ran out: give executors more (spark.executor.memory, spark.executor.memoryOverhead)"
        )
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("at ", "..."))]
    causes = [line for line in lines[2:] if _EXCEPTION_LINE.match(line)]
    return GangError("\n".join(["the gang's Spark job failed or was cancelled:", *lines[:2], *causes[-1:]]))


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception tells of another rank's end rather than of a fault of its own."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "XGBoostError" in names:  # its own text names the source file; the stack trace below may name any
        return "/collective/" in str(error).partition("Stack trace:")[0]
    if names & {"DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    if "Gloo" in str(error) and "/gloo/transport/" in str(error):  # from JAX, as a ValueError too
        return True
    kinds = (RuntimeError, ConnectionError)
    wrapped = "OpError" in names  # TensorFlow's, around what a collective inside a graph has raised
    return (wrapped or isinstance(error, kinds)) and any(sign in str(error) for sign in _PEER_SIGNS)

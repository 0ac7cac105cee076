"""A rank's report through Spark's error text, and which report the user sees."""

import pickle

import pytest

from sparktrain import errors
from sparktrain.errors import DataError, GangTimeout, RankFailed
from sparktrain.gang.failure import RankReport, ReportedFailure, explain, find_report, is_peer_loss

TRACEBACK = 'Traceback (most recent call last):\n  File "net.py", line 3, in forward\nValueError: bad shape ☹\n'
REPORT = RankReport(2, 4, "10.0.0.7", "error", "ValueError", "bad shape ☹", TRACEBACK, "epoch 1\nlast words\n")
PEER = RankReport(0, 4, "10.0.0.5", "peer", "RuntimeError", "Connection closed by peer [10.0.0.7]:4040", "peer's own")


def java_text(*reports: RankReport) -> str:
    """What the driver sees of a failed barrier stage, shortened."""
    causes = "".join(
        f"Lost task {r.rank}.0 in stage 3.0 (TID {r.rank}) (10.0.0.7 executor 1): "
        f"org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        f'  File "/x/pyspark/worker.py", line 1830, in main\n    process()\n'
        f"sparktrain.gang.failure.ReportedFailure: {r}\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala)\n"
        "\tat org.apache.spark.sql.execution.python.BasicPythonArrowOutput$$anon$1.read(PythonArrowOutput.scala:117)\n"
        for r in reports
    )
    return f"Job aborted: Could not recover from a failed barrier ResultStage. {causes}\nDriver stacktrace:"


def test_a_report_survives_spark_s_error_text() -> None:
    assert find_report(java_text(REPORT)) == REPORT


def test_a_text_without_report() -> None:
    assert find_report("Job 3 cancelled because SparkContext was shut down") is None


@pytest.mark.parametrize("order", [(PEER, REPORT), (REPORT, PEER), (PEER, PEER, REPORT)])
def test_a_peer_s_end_never_hides_the_cause(order: tuple[RankReport, ...]) -> None:
    assert find_report(java_text(*order)) == REPORT


def test_among_true_causes_the_first_speaks() -> None:
    lost = RankReport(1, 4, "h", "lost", "WorkerLost", "the worker process was killed by SIGKILL")
    assert find_report(java_text(lost, REPORT)) == lost


def test_a_peer_s_end_is_better_than_nothing() -> None:
    assert find_report(java_text(PEER)) == PEER


def test_a_text_that_was_cut_off() -> None:
    text = java_text(REPORT)
    mark = text.index("[sparktrain-report")
    for end in (mark + 5, mark + 60, text.index("]", mark)):
        assert find_report(text[:end]) is None
    damaged = text[: mark + 60] + text[mark + 80 :]
    assert find_report(damaged) is None
    assert find_report(damaged + java_text(PEER)) == PEER


def test_a_server_that_cuts_the_end_off_takes_the_traceback_not_the_report() -> None:
    report = RankReport(0, 1, "h", "error", "ValueError", "short", "line of a traceback\n" * 200)
    text = str(report)
    assert find_report(text[: len(text) // 2]) == report


def test_the_text_can_be_read_without_unpacking() -> None:
    text = java_text(REPORT)
    assert "rank 2 of 4 on 10.0.0.7: ValueError: bad shape ☹" in text
    assert TRACEBACK in text


def test_a_reported_failure_pickles() -> None:
    failure = pickle.loads(pickle.dumps(ReportedFailure(REPORT)))
    assert isinstance(failure, ReportedFailure)
    assert find_report(str(failure)) == REPORT


def test_the_user_sees_the_rank_s_own_traceback_then_its_log() -> None:
    error = REPORT.to_error()
    assert isinstance(error, RankFailed)
    assert (error.rank, error.traceback, error.log_tail) == (2, TRACEBACK, "epoch 1\nlast words\n")
    text = str(error)
    assert text.startswith(
        "rank 2 of 4 failed on 10.0.0.7: ValueError: bad shape ☹\n\nTraceback of rank 2:\nTraceback ("
    )
    assert text.index("in forward") < text.index("Last log lines of rank 2:\nepoch 1\nlast words")


def test_what_is_missing_has_no_heading() -> None:
    error = RankReport(1, 2, "h", "lost", "WorkerLost", "the worker process ended with exit status 3").to_error()
    assert str(error) == "rank 1 of 2 failed on h: WorkerLost: the worker process ended with exit status 3"


@pytest.mark.parametrize("kind", [DataError, GangTimeout, errors.ParamError, errors.ColumnError])
def test_sparktrain_s_own_errors_stay_what_they_are(kind: type[Exception]) -> None:
    report = RankReport(0, 2, "h", "error", kind.__name__, "column 'y': 3 null rows", TRACEBACK, own=True)
    error = report.to_error()
    assert type(error) is kind
    assert str(error) == "column 'y': 3 null rows"
    assert find_report(java_text(report)) == report


def test_a_namesake_of_sparktrain_s_own_is_a_failed_rank_with_its_traceback() -> None:
    error = RankReport(0, 2, "h", "error", "DataError", "no numeric types", TRACEBACK).to_error()
    assert type(error) is RankFailed
    assert error.traceback == TRACEBACK


def test_a_missing_module_is_told_how_to_send_it() -> None:
    report = RankReport(0, 2, "h", "error", "ModuleNotFoundError", "No module named 'mine'", TRACEBACK)
    assert "spark.addArtifact(" in str(report.to_error())
    assert "spark.addArtifact(" not in str(REPORT.to_error())


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", ["annotations", "KeyError", "RankFailed", "Exception"])
def test_every_other_error_is_a_failed_rank(name: str, own: bool) -> None:
    assert type(RankReport(0, 2, "h", "error", name, "text", own=own).to_error()) is RankFailed


class DistBackendError(RuntimeError):
    """Named as torch's."""


class HorovodInternalError(RuntimeError):
    """As Horovod raises it, for errors of all kinds."""


class OpError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    ("error", "peer"),
    [
        (DistBackendError("NCCL error"), True),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4040"), True),
        (ConnectionResetError("[Errno 104] Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (OpError("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4040"), True),
        (ValueError("UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error"), True),
        (ValueError("Connection closed by peer"), False),
        (HorovodInternalError("Horovod has been shut down. This was caused by an exception on one of the ranks"), True),
        (HorovodInternalError("Mismatched allreduce tensor shapes: One rank sent [2], another [3]"), False),
        (KeyError("x"), False),
    ],
)
def test_which_errors_tell_of_a_peer_s_end(error: BaseException, peer: bool) -> None:
    assert is_peer_loss(error) is peer


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("PythonException: ...\nModuleNotFoundError: No module named 'sparktrain'\n at org.apache", "PYSPARK_PYTHON"),
        (
            "BarrierJobUnsupportedRDDChainException: [SPARK-24820][SPARK-24821]: Barrier execution mode ...",
            "repartition",
        ),
        ("SparkException: Python worker exited unexpectedly (crashed)\n\tat org.apache", "memoryOverhead"),
    ],
)
def test_known_errors_of_spark_come_with_their_remedy(text: str, remedy: str) -> None:
    assert remedy in str(explain(text))


def test_a_lost_executor_is_named_with_spark_s_reason() -> None:
    text = (
        "An error occurred\n: Job aborted: Stage failed because a barrier task finished unsuccessfully.\n"
        "ExecutorLostFailure (executor 7 exited caused by one of the running tasks) Reason: "
        "Command exited with code 137\n\tat org.apache.spark.Frame(X.scala:1)"
    )
    assert str(explain(text)).startswith(
        "Spark lost executor 7 while a rank ran on it: Command exited with code 137. If nobody ended it, its memory"
    )


def test_other_errors_of_spark_keep_their_head_and_their_last_exception() -> None:
    stack = "\n".join(f"\tat org.apache.spark.Frame{i}(X.scala:{i})" for i in range(50))
    frames = "\n".join(f"  File 'worker.py', line {i}" for i in range(20))
    text = (
        f"An error occurred\n: Job aborted\n{stack}\nTraceback:\n{frames}\nModuleNotFoundError: No module named 'mine'"
    )
    assert str(explain(text)).splitlines() == [
        "the gang's Spark job failed or was cancelled:",
        "An error occurred",
        ": Job aborted",
        "ModuleNotFoundError: No module named 'mine'",
    ]

"""Which failures are tried again, how often, and after how long."""

from __future__ import annotations

import pytest

from sparktrain.errors import DataError, GangError, RankFailed, SparktrainError
from sparktrain.gang.failure import RankReport, explain
from sparktrain.gang.restart import LONGEST_PAUSE_S, Failure, pause_before_restart, run_with_restarts


def lost(what: str = "rank 1 was killed", reached: str = "") -> Failure:
    return Failure(True, what, reached)


def test_what_is_lost_is_tried_again_as_often_as_allowed() -> None:
    assert pause_before_restart([lost()], 0) is None
    assert pause_before_restart([lost("a")], 2) == 1.0
    assert pause_before_restart([lost("a"), lost("b")], 2) == 2.0
    assert pause_before_restart([lost("a"), lost("b"), lost("c")], 2) is None
    many = [lost(str(number)) for number in range(20)]
    assert pause_before_restart(many, 100) == LONGEST_PAUSE_S


def test_a_fault_of_the_training_is_not() -> None:
    assert pause_before_restart([Failure(False, "ValueError: boom", "")], 5) is None
    assert pause_before_restart([lost(), Failure(False, "ValueError: boom", "")], 5) is None


def test_the_same_without_a_new_checkpoint_is_not() -> None:
    assert pause_before_restart([lost(reached="after epoch 1"), lost(reached="after epoch 1")], 5) is None
    assert pause_before_restart([lost(reached="after epoch 1"), lost(reached="after epoch 2")], 5) == 2.0


@pytest.mark.parametrize(("cause", "again"), [("error", False), ("lost", True), ("peer", True)])
def test_a_rank_s_report_says_which_it_is(cause: str, again: bool) -> None:
    error = RankReport(1, 2, "host", cause, "RuntimeError", "it ended").to_error()  # type: ignore[arg-type]
    assert isinstance(error, RankFailed)
    assert error.lost == again


def test_errors_of_our_own_that_tell_of_a_wait_are_losses() -> None:
    report = RankReport(1, 2, "host", "error", "GangTimeout", "rank 0 has not come", own=True)
    assert Failure.of(report.to_error(), "") == Failure(True, "rank 0 has not come", "")
    assert not Failure.of(RankReport(1, 2, "host", "error", "DataError", "null rows", own=True).to_error(), "").lost


def test_spark_s_own_losses_are_losses_and_a_cancelled_job_is_none() -> None:
    gone = "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: killed"
    assert explain(gone).lost
    assert explain("SparkException: Python worker exited unexpectedly (crashed)").lost
    assert not explain("Job 3 cancelled part of cancelled job group mine").lost


def test_launches_go_on_until_one_ends_well() -> None:
    launches, pauses = [], []

    def launch(attempt: int) -> str:
        launches.append(attempt)
        if attempt < 2:
            raise GangError.of_loss(f"lost {attempt}")
        return "done"

    assert run_with_restarts(launch, 2, lambda: "", pauses.append) == "done"
    assert (launches, pauses) == ([0, 1, 2], [1.0, 2.0])


def test_the_last_error_is_told_with_the_number_of_launches() -> None:
    def launch(attempt: int) -> None:
        raise GangError.of_loss(f"lost {attempt}")

    with pytest.raises(GangError, match="lost 1") as told:
        run_with_restarts(launch, 1, lambda: "", lambda seconds: None)
    assert told.value.__notes__ == ["launched 2 times (max_restarts=1)"]

    def refuses(attempt: int) -> None:
        raise DataError("null rows")

    with pytest.raises(SparktrainError, match="null rows") as refused:
        run_with_restarts(refuses, 5, lambda: "", lambda seconds: None)
    assert not hasattr(refused.value, "__notes__")

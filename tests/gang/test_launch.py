"""The driver's checks before a gang starts, and what it makes of the rows that come back."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparktrain.errors import DataError, GangError, NotEnoughSlots
from sparktrain.gang.delivery import ResultReceiver
from sparktrain.gang.launch import _outcome, check_slots
from sparktrain.gang.result import Result
from sparktrain.gang.spec import GangSpec

WAIT_S = 30.0


def counting(*found: int | None) -> tuple[Callable[[], int | None], list[int | None]]:
    """A slots callable that answers with `found`, the last one for ever, and the list of its answers."""
    rest: Iterator[int | None] = iter(found)
    asked: list[int | None] = []

    def slots() -> int | None:
        asked.append(next(rest, found[-1]))
        return asked[-1]

    return slots, asked


@pytest.mark.parametrize("found", [4, 9, None])
@pytest.mark.parametrize("fixed", [True, False])
def test_enough_slots_or_none_to_be_read(found: int | None, fixed: bool) -> None:
    slots, asked = counting(found)
    check_slots(4, slots, fixed=fixed, timeout_s=0.0)
    assert asked == [found]


def test_fixed_slots_raise_at_once_and_name_both_numbers() -> None:
    slots, asked = counting(2)
    with pytest.raises(
        NotEnoughSlots, match=r"num_proc=4, but the cluster runs 2 tasks .* Use num_proc=2, .*local\[4\]"
    ):
        check_slots(4, slots, fixed=True, timeout_s=WAIT_S)
    assert asked == [2]


def test_no_slots_at_all() -> None:
    with pytest.raises(NotEnoughSlots, match=r"runs 0 tasks .* Use num_proc=1, "):
        check_slots(4, counting(0)[0], fixed=True, timeout_s=0.0)


def test_executors_that_still_register_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    slots, asked = counting(0, 2, 2, 4)
    with caplog.at_level(logging.WARNING, logger="sparktrain"):
        check_slots(4, slots, fixed=False, timeout_s=WAIT_S, poll_s=0.0)
    assert asked == [0, 2, 2, 4]
    assert len(caplog.records) == 1, "said once, not at every poll"
    assert "for 4 task slots; there are 0 now" in caplog.text


def test_waiting_ends_at_the_deadline_and_names_it() -> None:
    slots, asked = counting(2)
    with pytest.raises(NotEnoughSlots, match=r"runs 2 tasks at the same time after 0\.01 s \(launch_timeout_s\)"):
        check_slots(4, slots, fixed=False, timeout_s=0.01, poll_s=0.001)
    assert len(asked) > 1


def row(rank: int, kind: str, part: int, data: Any) -> dict[str, Any]:
    return {"rank": rank, "kind": kind, "part": part, "data": bytearray(data)}


def outcome_row(rank: int, rows: int, info: Any, note: str | None = None) -> dict[str, Any]:
    return row(rank, "outcome", 0, json.dumps({"rows": rows, "info": info, "note": note}).encode())


def spec_of(num_proc: int, *, every_result: bool = False) -> GangSpec:
    return GangSpec(num_proc, "module:function", {}, None, (), "native", 1.0, 1.0, every_result=every_result)


def test_the_outcome_is_in_rank_order_whatever_the_order_of_rows() -> None:
    rows = [
        row(0, "result", 1, b"world"),
        outcome_row(1, 7, "second"),
        row(0, "result", 0, b"hello "),
        outcome_row(0, 5, {"history": [1]}),
    ]
    outcome = _outcome(rows, spec_of(2), None)
    assert (outcome.infos, outcome.rows) == (({"history": [1]}, "second"), (5, 7))
    assert outcome.result.read() == b"hello world"


def test_a_delivered_result_is_taken_from_the_receiver() -> None:
    receiver = ResultReceiver("127.0.0.1", "127.0.0.1")
    receiver.close()
    arrived = Result.of([b"weights"])
    receiver.complete(0, arrived)
    rows = [outcome_row(0, 5, None), row(0, "delivered", 0, b"7")]
    assert _outcome(rows, spec_of(1), receiver).result is arrived
    with pytest.raises(GangError, match="a result of 8 bytes, but 7 bytes arrived"):
        _outcome([rows[0], row(0, "delivered", 0, b"8")], spec_of(1), receiver)


def test_each_rank_s_result_where_each_has_one() -> None:
    receiver = ResultReceiver("127.0.0.1", "127.0.0.1")
    receiver.close()
    arrived = Result.of([b"large"])
    receiver.complete(1, arrived)
    rows = [
        outcome_row(1, 7, None),
        row(2, "result", 0, b"second"),
        row(1, "delivered", 0, b"5"),
        outcome_row(0, 5, None),
        outcome_row(2, 5, None),
        row(0, "result", 0, b"first"),
    ]
    outcome = _outcome(rows, spec_of(3, every_result=True), receiver)
    assert [one.read() for one in outcome.results] == [b"first", b"large", b"second"]


def test_what_the_driver_was_not_told_is_shown_at_the_end(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        outcome_row(0, 5, None, "the driver can't be reached"),
        row(1, "log", 0, b"one\ntwo\n"),
        outcome_row(1, 5, None),
    ]
    _outcome(rows, spec_of(2), None)
    assert capsys.readouterr().out == "[rank 1] one\n[rank 1] two\n"
    assert "progress was not shown: the driver can't be reached" in caplog.text


def test_a_missing_rank_is_noticed() -> None:
    with pytest.raises(GangError, match=r"outcome of 3 ranks, got it of ranks \[0, 2\]"):
        _outcome([outcome_row(0, 1, None), outcome_row(2, 1, None)], spec_of(3), None)


def test_no_task_ran_because_there_were_no_rows() -> None:
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        _outcome([], spec_of(2), None)

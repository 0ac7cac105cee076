"""Lines that the driver can't take in time are counted, the last ones too."""

from __future__ import annotations

from typing import Any

from sparktrain.gang.log import RankLog


def test_lines_that_were_left_out_are_told() -> None:
    taken: list[str] = []
    room = [True, False, False, True, False, False, False, True]

    def send(event: dict[str, Any]) -> bool:
        if room.pop(0):
            taken.append(event["text"])
            return True
        return False

    log = RankLog(1, send)
    for number in range(6):
        log.write(f"line {number}\n")
    log.close()
    assert taken == [
        "line 0",
        "line 3 (2 lines before this one came too fast to be shown)",
        "(2 more lines came too fast to be shown)",
    ]

"""How long flows stay away from their own paths, as `bench control failover` counts it, on known records."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fabrictime.bench.control.failback import Away, could_be_home, times_away
from schemas.records import LinkHealth

S = 1_000_000_000
HOME, ELSEWHERE, THIRD = 1, 2, 3
LINKS = {HOME: ("leaf1:a>spine1:a",), ELSEWHERE: ("leaf1:b>spine2:a",), THIRD: ("leaf1:c>spine3:a",)}


def health(state: str, at_s: float, seq: int) -> LinkHealth:
    record = {
        "subject": "leaf1:a<>spine1:a",
        "kind": "LINK",
        "state": state,
        "seq": seq,
        "links": list(LINKS[HOME]),
        "candidates": [],
        "since_ns": int(at_s * S),
        "evaluated_ns": int(at_s * S),
        "loss_rate": None,
        "classes": [],
        "max_packet_bytes": None,
        "flaps_hour": (seq + 1) // 2,
    }
    return cast(LinkHealth, record)


def decision(at_s: float, kind: str, to_path: int, from_path: int, seq: int) -> dict[str, Any]:
    return {
        "decision_id": f"d/{seq}",
        "epoch": 1,
        "seq": seq,
        "at_ns": int(at_s * S),
        "flow_id": "f",
        "from_path": from_path,
        "to_path": to_path,
        "reason": {"kind": kind, "subject": "", "seq": None, "window_id": None},
        "action": "RESTORE" if kind == "HEALED" else "REROUTE",
    }


def times(decisions: list[dict[str, Any]], refused: int | None = None) -> tuple[list[Away], list[Away]]:
    return times_away(
        decisions,
        [
            {"decision_id": each["decision_id"], "outcome": "FAILED" if each["seq"] == refused else "APPLIED"}
            for each in decisions
        ],
    )


def waits(aways: list[Away], *health: dict[str, Any]) -> tuple[list[float], int]:
    return could_be_home(aways, [LINKS[each.home] for each in aways], health)


DOWN, UP = health("DOWN", 100, 1), health("UP", 101, 2)
LEFT = decision(100.1, "DOWN", ELSEWHERE, HOME, 0)


def test_a_stay_away_counts_from_the_end_of_the_hold_down_to_the_return() -> None:
    ended, away = times([LEFT, decision(111.5, "HEALED", HOME, ELSEWHERE, 1)])
    assert not away
    waited, early = waits(ended, DOWN, UP)
    assert waited == [pytest.approx(0.5, abs=0.05)]
    assert (ended[0].back, early) == (True, 0)


def test_a_return_before_the_hold_down_is_over_is_counted() -> None:
    ended, _ = times([LEFT, decision(108.0, "HEALED", HOME, ELSEWHERE, 1)])
    assert waits(ended, DOWN, UP) == ([0.0], 1)


def test_a_flow_that_is_not_back_counts_until_now_and_a_return_that_failed_is_none() -> None:
    ended, away = times([LEFT, decision(111.5, "HEALED", HOME, ELSEWHERE, 1)], refused=1)
    assert not ended
    waited, _ = waits([away[0]._replace(end_s=120.0)], DOWN, UP)
    assert waited == [pytest.approx(9.0, abs=0.05)]


def test_another_death_during_the_return_does_not_hide_how_long_the_flow_had_stayed_away() -> None:
    ended, _ = times([LEFT, decision(136.1, "HEALED", HOME, ELSEWHERE, 1)])
    waited, _ = waits(ended, DOWN, UP, health("DOWN", 115, 3), health("UP", 116, 4))
    assert waited == [pytest.approx(4.0, abs=0.05)]


def test_a_flow_that_another_failover_brings_home_is_not_away_and_has_a_new_home_after_it() -> None:
    moves = [LEFT, decision(112, "DOWN", THIRD, ELSEWHERE, 1), decision(113, "DOWN", HOME, THIRD, 2)]
    ended, away = times(moves)
    assert [(each.home, each.begin_s, each.end_s, each.back) for each in ended] == [(HOME, 100.1, 113, False)]
    assert not away
    assert times([*moves, decision(120, "DOWN", THIRD, HOME, 3)])[1][0].begin_s == 120

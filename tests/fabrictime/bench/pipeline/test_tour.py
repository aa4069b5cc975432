"""Tours as benches see them: faults right in time, and moves after their detection."""

from __future__ import annotations

import math

from fabrictime.bench.pipeline.tour import move_s_p95, moves_s, right_in_time


def test_a_fault_is_right_in_time_if_its_verdict_is_and_came_within_three_seconds() -> None:
    assert right_in_time({"detected_ms": 2999.0, "named": "yes"})
    assert not right_in_time({"detected_ms": 3001.0, "named": "yes"})
    assert not right_in_time({"detected_ms": None, "named": "yes"})
    assert not right_in_time({"detected_ms": 10.0, "named": "1 of 2"})
    assert not right_in_time({"detected_ms": 10.0, "named": "yes", "right": False})
    assert right_in_time({"detected_ms": 5900.0, "named": "yes", "right_in_time": True}), "a flapping link"


def test_a_detected_fault_without_a_move_is_infinite_and_a_missed_one_is_none() -> None:
    steps = [
        {"detected_ms": 50.0, "action_ms": 80.0, "detection_to_first_move_ms": 40.0},
        {"detected_ms": 50.0, "action_ms": 80.0, "detection_to_first_move_ms": None},
        {"detected_ms": 50.0, "action_ms": 80.0},
        {"detected_ms": 50.0, "action_ms": None},
        {"detected_ms": None, "action_ms": None},
    ]
    assert moves_s(steps) == [0.04, math.inf, 0.03, math.inf]


def test_the_percentile_is_a_time_that_was_measured() -> None:
    assert move_s_p95([1.0] * 19 + [9.0]) == 1.0
    assert move_s_p95([1.0] * 18 + [9.0, 9.0]) == 9.0
    assert move_s_p95([]) == math.inf

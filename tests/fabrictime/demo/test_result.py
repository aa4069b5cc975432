"""The result of tours: faults with the right verdict, and the time from detection to the first move."""

from __future__ import annotations

import math

from fabrictime.demo.result import TourResult, move_p95_s
from fabrictime.demo.story import Outcome

LINK = "leaf1:swp3>spine1:swp1"


def outcome(move_ms: float | None = 100.0, **fields: object) -> Outcome:
    outcome = Outcome("collision", LINK, "leaf1 > spine1", detected_ms=300.0, named="yes", right_ms=300.0)
    outcome.action_ms = None if move_ms is None else 300.0 + move_ms
    for name, value in fields.items():
        setattr(outcome, name, value)
    return outcome


def result(*outcomes: Outcome) -> TourResult:
    return TourResult(7, True, 100.0, None, outcomes)


def test_right_faults_are_counted_and_those_in_time_apart() -> None:
    tour = result(
        outcome(),
        outcome(right_ms=3_100.0),
        outcome(named="link only"),
        outcome(also_named=["leaf2:swp3<>spine1:swp2"]),
        outcome(right_ms=7_000.0, first_drop_ms=90.0),
    )
    assert (tour.right, tour.right_in_time) == (3, 2), "a flapping link's first drop counts"


def test_the_p95_is_over_all_tours_and_a_detected_fault_without_a_move_is_the_worst() -> None:
    tours = [result(*(outcome(100.0 * n) for n in range(1, 6))) for _ in range(4)]
    assert move_p95_s(tours) == 0.5
    assert math.isinf(move_p95_s([result(outcome(), outcome(None))]))
    assert result(outcome(None)).as_dict()["detection_to_first_move_s_p95"] is None
    assert math.isnan(move_p95_s([result(outcome(detected_ms=None))]))


def test_the_dictionary_has_the_seed_and_the_judgement_of_each_step() -> None:
    values = result(outcome(123.456)).as_dict()
    assert (values["seed"], values["right"], values["right_in_time"]) == (7, 1, 1)
    assert values["steps"][0]["detection_to_first_move_ms"] == 123.46
    assert values["steps"][0]["right"] is True

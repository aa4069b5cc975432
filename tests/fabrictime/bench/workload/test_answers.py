"""The score of all answers about incidents."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fabrictime.bench.workload._answers import (
    Answer,
    answers_by_second,
    auroc,
    calibration,
    calibration_error,
    changes_per_minute,
)

S = 1_000_000_000


def published(*at: tuple[float, str]) -> list[tuple[int, Any]]:
    return [(int(seconds * S), {"verdict": verdict, "subject": ""}) for seconds, verdict in at]


def test_the_newest_answer_of_each_second_from_the_tenth_on_is_scored() -> None:
    answers = answers_by_second(published((0.5, "HEALTHY"), (9.0, "HANG"), (11.5, "DEAD_RANK")), 0, 13 * S)
    assert [(at, record["verdict"]) for at, record in answers] == [
        (10.0, "HANG"),
        (11.0, "HANG"),
        (12.0, "DEAD_RANK"),
        (13.0, "DEAD_RANK"),
    ]


def changes(at: list[tuple[float, str]], right: str = "STRAGGLER") -> float:
    records = published(*at)
    are_right = [record["verdict"] == right for _, record in records]
    return changes_per_minute(records, are_right, 0, 65 * S)


def test_the_first_verdicts_are_no_changes() -> None:
    first = [(1.0, "HEALTHY"), (2.0, "UNKNOWN"), (3.0, "STRAGGLER"), (10.0, "STRAGGLER")]
    assert changes(first) == 0
    assert changes([*first, (20.0, "HEALTHY"), (30.0, "STRAGGLER")]) == 2


def test_the_first_right_answer_is_no_change_and_a_wrong_or_late_one_is() -> None:
    assert changes([(1.0, "HEALTHY"), (6.0, "STRAGGLER")]) == 0
    assert changes([(1.0, "HEALTHY"), (6.0, "UNKNOWN"), (7.0, "STRAGGLER")]) == 1
    assert changes([(1.0, "HEALTHY"), (6.0, "HANG")]) == 1
    assert changes([(1.0, "HEALTHY"), (11.0, "STRAGGLER")]) == 1
    assert changes([(1.0, "HEALTHY"), (6.0, "UNKNOWN"), (8.0, "HEALTHY")], "HEALTHY") == 2


def answers(sure: float, right: int, wrong: int) -> list[Answer]:
    return [Answer(sure, True, False)] * right + [Answer(sure, False, False)] * wrong


def test_confidence_that_agrees_with_the_share_of_right_answers_has_no_error() -> None:
    assert calibration_error([*answers(0.0, 0, 50), *answers(1.0, 50, 0)]) == 0
    assert calibration_error(answers(0.9, 0, 20)) == pytest.approx(0.9)
    assert math.isnan(calibration_error([]))


def test_bins_have_equal_counts() -> None:
    bins = calibration([Answer(at / 100, at >= 50, False) for at in range(100)])
    assert [count for *_, count in bins] == [10] * 10
    assert bins[0][:2] == (pytest.approx(0.045), 0.0)
    assert bins[-1][:2] == (pytest.approx(0.945), 1.0)


def test_auroc_is_the_chance_that_a_right_answer_is_surer() -> None:
    assert auroc([*answers(0.9, 5, 0), *answers(0.1, 0, 5)]) == 1.0
    assert auroc(answers(0.5, 5, 5)) == 0.5
    assert math.isnan(auroc(answers(0.5, 5, 0)))

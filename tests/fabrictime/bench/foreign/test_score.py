"""The score of foreign runs: each second counts, and subjects must be the guilty ones."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure, Missing
from fabrictime.bench.foreign import PARTS, TARGETS, _score
from fabrictime.bench.foreign._truth import Culprit
from tests.fabrictime.bench.foreign_outcomes import S, answer, outcome


def test_an_answer_counts_as_long_as_it_is_shown():
    answers = (answer(0, "HEALTHY"), answer(35, "STRAGGLER", "h5"))
    right = [is_it for _, is_it in _score.scored(outcome("sleeps", *answers))]
    assert right == [False] * 5 + [True] * 15
    assert _score.first_right_s(outcome("sleeps", *answers)) == 15


def test_times_count_for_faults_alone_that_cost_the_job_something():
    assert _score.is_harmed(outcome("sleeps", effect=1.5))
    assert not _score.is_harmed(outcome("sleeps", effect=1.1))
    assert not _score.is_harmed(outcome("all send three times", effect=3.0))
    assert _score.is_harmed(outcome("kill"))


def test_no_answer_at_all_is_wrong():
    assert _score.right_by_cause([outcome("none")]) == {"none": 0}


def test_a_second_fault_counts_from_its_begin():
    named = answer(45, "STRAGGLER", "h5", others=(("SLOW_SENDER", "h7/eth1"),))
    second = Culprit(3, "h7")
    two = outcome("two faults", answer(25, "STRAGGLER", "h5"), named, second=second, second_ns=40 * S)
    assert _score.second_named_s(two) == 5


def test_the_time_until_healthy_counts_from_the_end_and_ends_with_the_run():
    assert _score.cleared_s(outcome("sleeps", answer(30, "STRAGGLER", "h5"), answer(57, "HEALTHY"))) == 7
    assert _score.cleared_s(outcome("sleeps", answer(30, "STRAGGLER", "h5"))) == 20


def test_changes_are_those_of_verdict_or_subject_per_minute():
    flapping = [answer(30 + at, "SLOW_FLOW", f"h{1 + at % 2}") for at in range(20)]
    assert _score.changes_per_minute(outcome("sleeps", *flapping)) == 57


def test_a_pause_with_a_hang_or_its_alert_is_a_false_hang():
    pauses = [(20 * S, 30 * S), (40 * S, 45 * S), (60 * S, 65 * S)]
    paused = outcome("pauses", answer(25, "HANG", "h5"), answer(42, "STALLED", "h5"), part="pauses")
    paused.pauses_ns, paused.hang_alerts_ns = pauses, [66 * S]
    assert _score.false_hangs(paused) == 2


def test_the_network_is_blamed_per_hour_of_innocent_runs_alone():
    blamed = (answer(0, "HEALTHY"), answer(30, "SLOW_FLOW", "h5", network=True), answer(37, "HEALTHY"))
    values = _score.figures([outcome("none", *blamed), outcome("slow NIC", *blamed)])
    assert values["network_blamed_s_per_hour"] == Figure(3600 * 7 / 70, note="7 s of 0.02 h")


def test_a_hang_is_right_by_its_last_answer_and_stalled_by_its_first():
    answers = (answer(24, "STALLED", "h5"), answer(40, "HANG", "h5", ranks=(2,)))
    hang = outcome("stuck", *answers, part="hangs")
    values = _score.figures([hang, outcome("stuck", answer(24, "HANG", "h1"), part="hangs")])
    assert values["hang_rank_right"] == Figure(0.5, note="hangs-1-stuck stuck")
    assert _score.stalled_s(hang) == 4


def test_calibration_is_the_difference_of_confidence_and_share_of_right_answers():
    assert _score.calibration_error([(0.8, index % 10 < 8) for index in range(100)]) == pytest.approx(
        0.3, abs=0.05
    )
    assert _score.calibration_error([(1.0, True)] * 50 + [(0.0, False)] * 50) == 0
    assert _score.calibration_error([(1.0, False)] * 10) == 1


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (0.95, 10), (1.0, 10)])
def test_a_percentile_is_a_measured_value(share, expected):
    assert _score.percentile(range(1, 11), share) == expected


def test_every_figure_is_scored_or_missing_with_a_reason():
    values = _score.figures([])
    assert set(values) == set(TARGETS) == {key for keys in PARTS.values() for key in keys}
    assert isinstance(values["foreign_right"], Missing)

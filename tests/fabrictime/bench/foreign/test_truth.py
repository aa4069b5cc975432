"""The truth of foreign faults: which answers are right, and about whom."""

from __future__ import annotations

import pytest

from fabrictime.bench.foreign._truth import CAUSES, Culprit, is_right, is_second
from tests.fabrictime.bench.foreign_outcomes import H5, answer


@pytest.mark.parametrize(
    ("cause", "given", "expected"),
    [
        ("sleeps", answer(0, "STRAGGLER", "h5", ranks=(2,)), True),
        ("sleeps", answer(0, "STRAGGLER", "rank 2"), True),
        ("sleeps", answer(0, "STRAGGLER", "h1", ranks=(0,)), False),
        ("sleeps", answer(0, "STRAGGLER", "h5", ranks=(1, 2)), False),
        ("sleeps", answer(0, "STRAGGLER", "h5", network=True), False),
        ("sleeps", answer(0, "HEALTHY"), False),
        ("kill", answer(0, "DEAD_RANK", "h5", ranks=(2,)), True),
        ("kill", answer(0, "DEAD_RANK", "h1", ranks=(0, 1, 2)), False),
        ("slow NIC", answer(0, "SLOW_SENDER", "h5/eth1", network=True), True),
        ("slow NIC", answer(0, "SLOW_SENDER", "h50/eth1"), False),
        ("loss at a NIC", answer(0, "GREY_LINK", "leaf3:swp1>h5:eth1", network=True), True),
        ("all send three times", answer(0, "HEALTHY"), True),
        ("all send three times", answer(0, "SLOW_FLOW", "h5/eth1 > h3/eth1", network=True), False),
        ("stop", answer(0, "STALLED", "h5"), True),
        ("stop", answer(0, "UNKNOWN", "h5"), False),
    ],
)
def test_verdict_and_subject_must_be_right(cause, given, expected):
    assert is_right(given, CAUSES[cause], H5, 2.0) is expected


def test_another_job_must_be_named():
    culprit = Culprit(job="big-1")
    assert is_right(
        answer(0, "CONTENTION", "leaf1>spine1", jobs=("big-1",)), CAUSES["another job"], culprit, 2
    )
    assert not is_right(answer(0, "CONTENTION", "leaf1>spine1"), CAUSES["another job"], culprit, 2)


@pytest.mark.parametrize(
    ("effect", "healthy", "straggler"),
    [(1.02, True, False), (1.1, True, True), (1.5, False, True), (None, False, True)],
)
def test_a_fault_that_costs_nothing_has_no_verdict(effect, healthy, straggler):
    cause = CAUSES["sleeps"]
    assert is_right(answer(0, "HEALTHY"), cause, H5, effect) is healthy
    assert is_right(answer(0, "STRAGGLER", "h5"), cause, H5, effect) is straggler


def test_a_second_fault_counts_once_it_is_named_also_as_a_further_explanation():
    second = Culprit(3, "h7")
    named = answer(45, "STRAGGLER", "h5", others=(("SLOW_SENDER", "h7/eth1"),))
    assert is_second(named, second)
    assert not is_second(named, H5)

"""Iterations of a job before, during and after a fault."""

from __future__ import annotations

import pytest

from fabrictime.demo.iterations import Change, change_of


def test_an_iteration_that_overlaps_the_fault_counts_as_during_it() -> None:
    steady = [(second / 10, second / 10 + 0.02) for second in range(200) if not 50 <= second < 80]
    stalled = [(4.99, 5.69), (5.8, 5.9), (7.95, 8.35)]
    change = change_of(steady[:50] + stalled + steady[53:], 5.0, 8.0, 20.0)
    assert change.before_ms == pytest.approx(20)
    assert change.worst_ms == pytest.approx(700)
    assert change.during_ms == pytest.approx(400)
    assert change.after_ms == pytest.approx(20)
    assert change.slowdown == pytest.approx(35)


def test_a_job_without_iterations_has_no_figures() -> None:
    assert change_of([], 5.0, 8.0, 20.0) == Change(None, None, None, None)
    assert change_of([], 5.0, 8.0, 20.0).slowdown == 0.0


def test_iterations_that_settle_after_the_healing_count_nowhere() -> None:
    assert change_of([(8.1, 8.4)], 5.0, 8.0, 9.0) == Change(None, None, None, None)


def test_an_iteration_that_has_not_ended_counts_with_its_age() -> None:
    change = change_of([(4.8, 4.82), (4.9, 4.92)], 5.0, 8.0, 14.0)
    assert change.unfinished
    assert change.worst_ms == pytest.approx(9080)
    assert (change.during_ms, change.after_ms) == (None, None)
    assert not change_of([(4.9, 4.92)], 5.0, 8.0, 6.0).unfinished, "it is about to be reported"

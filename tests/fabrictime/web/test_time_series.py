"""Time series: axes of charts, and detrending."""

from __future__ import annotations

import pytest

from fabrictime.web.history_sql import Span
from fabrictime.web.time_series import GAP_STEPS, detrend, steps, time_axis

S = 1_000_000_000


def test_an_axis_begins_with_the_first_point() -> None:
    assert steps(Span(0, 100 * S, 10 * S), []) == range(10)
    assert steps(Span(0, 100 * S, 10 * S), [55 * S, 72 * S]) == range(5, 10)
    assert steps(Span(5, 100 * S, 10 * S), []) == range(1, 10), "an incomplete first step is left out"
    assert len(steps(Span(99 * S, 100 * S, 10 * S), [])) >= 2


def test_an_axis_is_in_milliseconds_and_indexed_by_step() -> None:
    axis, index = time_axis(Span(0, 30 * S, 10 * S), [])
    assert axis == [0, 10_000, 20_000]
    assert index == {0: 0, 1: 1, 2: 2}


def test_a_straight_line_vanishes_and_missing_values_stay_missing() -> None:
    found = detrend([10.0, 12.0, None, 16.0])
    assert found[2] is None
    assert [found[0], found[1], found[3]] == pytest.approx([0, 0, 0], abs=1e-9)


def test_each_stretch_has_a_line_of_its_own() -> None:
    values = [0.0, 1.0, 2.0, *[None] * GAP_STEPS, 100.0, 90.0, 80.0]
    assert [value for value in detrend(values) if value is not None] == pytest.approx([0] * 6, abs=1e-9)


def test_two_values_are_centred_and_no_value_gives_none() -> None:
    assert detrend([3.0, 5.0]) == [-1.0, 1.0]
    assert detrend([None, None]) == [None, None]
    assert detrend([]) == []

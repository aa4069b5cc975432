"""Good times: sustained, bounded in memory."""

from __future__ import annotations

from streams.diagnosis.job.baseline import Baselines


def noted(*values: float) -> Baselines:
    found = Baselines()
    for value in values:
        found.note("x", value)
    return found


def test_a_baseline_needs_three_intervals() -> None:
    assert noted(4.0, 4.0).value("x") is None
    assert noted(4.0, 4.0, 5.0).value("x") == 4.0


def test_a_lucky_interval_does_not_set_the_baseline() -> None:
    assert noted(10.0, 10.0, 1.0, 10.0, 10.0).value("x") == 10.0


def test_a_long_slow_time_does_not_raise_the_baseline() -> None:
    assert noted(*[10.0] * 5, *[30.0] * 1000).value("x") == 10.0


def test_the_quantity_noted_longest_ago_is_forgotten() -> None:
    found = Baselines(keys=2)
    for key in ("a", "b", "a", "c", "a"):
        found.note(key, 1.0)
    assert len(found) == 2
    assert found.value("a") == 1.0
    assert found.value("b") is None


def test_a_quantity_that_was_first_noted_long_after_another_is_younger() -> None:
    found = Baselines()
    for interval in range(8):
        found.note("old", 1.0)
        if interval >= 2:
            found.note("soon", 1.0)
        if interval >= 7:
            found.note("late", 1.0)
        found.end_interval()
    assert not found.is_younger("soon", "old")
    assert found.is_younger("late", "old")
    assert found.is_younger("never", "old")
    assert not found.is_younger("old", "late")


def test_a_restored_value_counts_as_such_until_a_better_one_is_sustained() -> None:
    found = Baselines()
    found.restore("x", 5.0)
    for value in (9.0, 9.0, 9.0):
        found.note(("x", 1), value)
    assert (found.value(("x", 1)), found.is_restored(("x", 1))) == (5.0, True)
    for value in (4.0, 4.0, 4.0):
        found.note(("x", 1), value)
    assert (found.value(("x", 1)), found.is_restored(("x", 1))) == (4.0, False)

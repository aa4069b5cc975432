"""Rate targets: the extremes of recent figures."""

from __future__ import annotations

from streams.policy.rates.rate_target import RecentMax, RecentMin

HALF = 100


def test_the_maximum_is_kept_for_one_to_two_halves() -> None:
    recent = RecentMax(HALF, 0)
    recent.add(5.0, 10)
    recent.add(3.0, 120)
    assert recent.bps(150) == 5.0
    assert recent.bps(210) == 3.0
    assert recent.bps(500) == 0.0


def test_the_minimum_is_kept_for_one_to_two_halves() -> None:
    recent = RecentMin(HALF, 0)
    recent.add(3.0, 10)
    recent.add(5.0, 120)
    assert recent.value(150) == 3.0
    assert recent.value(210) == 5.0

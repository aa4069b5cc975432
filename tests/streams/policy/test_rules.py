"""Rules: the waiting times are consistent with each other."""

from __future__ import annotations

from streams.policy.rules import FULL_SHARE, RELIEF_SHARE, SAFE_SHARE, Rules


def test_first_waits_are_below_the_longest_ones() -> None:
    rules = Rules()
    assert rules.hold_down_ns < rules.max_hold_down_ns
    assert rules.cool_down_ns < rules.max_cool_down_ns
    assert rules.expires_ns + rules.confirm_ns < rules.retry_max_ns


def test_a_relieved_link_is_below_the_load_that_triggers_relief() -> None:
    assert RELIEF_SHARE < 1 < FULL_SHARE < SAFE_SHARE

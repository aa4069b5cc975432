"""Uplinks: routes up to the apex, pauses between checks, and the limit of triggered traces."""

from __future__ import annotations

import pytest

from producers.trace.uplinks import MIN_PAUSE_S, TokenBucket, pause_s, uplink_routes


def test_paths_are_grouped_by_their_hops_up_to_the_apex() -> None:
    first, second = ("leaf1", "spine1", "leaf2"), ("leaf1", "spine2", "leaf2")
    found = uplink_routes([(1, first), (2, second), (3, (*first[:2], "leaf3"))])
    assert found == {("leaf1", "spine1"): [1, 3], ("leaf1", "spine2"): [2]}


def test_paths_within_one_leaf_and_paths_with_a_silent_apex_are_left_out() -> None:
    assert uplink_routes([(1, ("leaf1",)), (2, ("leaf1", None, "leaf2")), (3, ())]) == {}


def test_the_pause_keeps_a_switch_below_its_rate_of_answers() -> None:
    assert pause_s(nics=100, routes=8, switch_pps=100.0) == 8.0
    assert pause_s(nics=1, routes=1, switch_pps=1e6) == MIN_PAUSE_S
    with pytest.raises(ValueError, match="switch_pps"):
        pause_s(1, 1, 0.0)


def test_a_bucket_allows_a_burst_and_then_one_trace_per_rest() -> None:
    bucket = TokenBucket(rest_s=10.0, burst=2)
    assert [bucket.take(1, 0.0) for _ in range(4)] == [True, True, False, False]
    allowed = sum(bucket.take(1, second) for second in range(1, 1001))
    assert 99 <= allowed <= 101


def test_a_bucket_scales_with_the_number_of_paths() -> None:
    bucket = TokenBucket(rest_s=10.0, burst=2)
    assert sum(bucket.take(5, 0.0) for _ in range(20)) == 10
    assert sum(bucket.take(5, 10.0) for _ in range(20)) == 5

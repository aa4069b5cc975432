"""Uplinks: routes up to the apex, pauses between checks, and the limit of triggered traces."""

from __future__ import annotations

import pytest

from producers.trace.tracer import TracedFlow, Tracer
from producers.trace.uplinks import MIN_PAUSE_S, TokenBucket, pause_s, plan_checks, uplink_routes
from schemas.records import Leg


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


def test_uplink_routes_end_at_the_apex() -> None:
    found = uplink_routes(
        [
            ("two tiers", ("leaf1", "spine1", "leaf2")),
            ("the same way", ("leaf1", "spine1", "leaf3")),
            ("another spine", ("leaf1", "spine2", "leaf2")),
            ("three tiers", ("leaf1", "agg1", "core1", "agg3", "leaf7")),
            ("silent leaf", (None, "spine3", "leaf2")),
            ("silent spine", ("leaf1", None, "leaf2")),
            ("below one switch", ("leaf1",)),
            ("no hops", ()),
        ]
    )
    assert found == {
        ("leaf1", "spine1"): ["two tiers", "the same way"],
        ("leaf1", "spine2"): ["another spine"],
        ("leaf1", "agg1", "core1"): ["three tiers"],
        (None, "spine3"): ["silent leaf"],
    }


@pytest.mark.parametrize(("nics", "routes"), [(8, 1), (1024, 1), (1024, 2), (2, 1), (65_536, 4)])
def test_uplink_checks_respect_the_limit_per_switch(nics: int, routes: int) -> None:
    pause = pause_s(nics, routes, 64)
    assert nics * routes / pause <= 64 * (1 + 1e-9)
    assert pause >= 0.125
    with pytest.raises(ValueError, match=r"switch_pps: 0, expected more than 0"):
        pause_s(8, 1, 0)


def test_reasons_without_end_trace_every_path_once_in_a_rest_and_a_spine_that_goes_is_no_such_thing() -> None:
    again, paths = TokenBucket(5.0, 4), 56
    assert all(again.take(paths, 100.0) for _ in range(40)), "the paths over a spine, twice each"
    taken = sum(again.take(paths, 101 + n / 1000) for n in range(60_000))
    assert taken <= paths * (4 + 60 / 5) + 1
    assert all(again.take(paths, 1000.0) for _ in range(4 * paths)), "after a rest all may be traced again"
    assert not again.take(0, 2000.0), "of nothing there is nothing to trace"


def test_a_plan_checks_each_uplink_route_and_counts_those_of_a_switch() -> None:
    flows = [TracedFlow(Leg.REQUEST, "b/eth0", port, ("10.0.0.2", 9319), port) for port in range(3)]
    routes = [("leaf1", f"spine1:{port}", "leaf2") for port in range(2)]
    paths = [(flows[0], routes[0]), (flows[1], routes[1]), (flows[2], routes[1])]
    plan = plan_checks(paths, lambda hop: str(hop).partition(":")[0])
    assert [len(checks) for checks in plan.checks] == [1, 2]
    assert all(flow.uplink_check and flow.max_ttl == 2 for checks in plan.checks for flow in checks)
    assert plan.max_routes_of_switch == 2
    assert plan_checks([], str) == ([], 0)


def test_uplink_checks_are_no_traces_of_routes() -> None:
    flow = TracedFlow(Leg.REQUEST, "b/eth0", 9320, ("10.0.0.2", 9319), 0)
    tracer = Tracer(1000.0, 8)
    tracer.schedule(flow._replace(max_ttl=2, uplink_check=True))
    assert tracer.busy
    assert not tracer.is_tracing_routes
    tracer.schedule(flow)
    assert tracer.is_tracing_routes
    tracer.step(0.0)
    assert tracer.is_tracing_routes

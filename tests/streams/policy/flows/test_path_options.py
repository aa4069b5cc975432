"""Path options: distinct routes, and the paths that a flow can take now."""

from __future__ import annotations

from streams.policy.flows.flow import Flow
from streams.policy.flows.path_health import PathHealth
from streams.policy.flows.path_options import PathOptions
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_S

FIRST, SECOND, THIRD = (FlowRoute(("h1:a>l1:1", f"l1:{n}>l2:{n}", "l2:9>h2:a")) for n in range(3))
ROUTES = {100: FIRST, 101: SECOND, 102: FIRST, 103: THIRD, 104: SECOND}


def make_flow(options: PathOptions, flow_id: str = "h1/b/qp:a:1:1") -> Flow:
    live = LiveFlow(flow_id, "h1/a", "h2/a", None, None, 1e8, False, False, (), 100, None, 4791)
    flow = Flow(live, routes=ROUTES, path=100, route=FIRST)
    flow.choices = options.choices_of(flow)
    return flow


def make_options(seed: int = 1) -> PathOptions:
    return PathOptions("s0", seed, PathHealth(NS_PER_S, 60 * NS_PER_S))


def test_paths_are_grouped_by_their_route() -> None:
    options = make_options()
    flow = make_flow(options)
    assert flow.choices == ((FIRST, (100, 102)), (SECOND, (101, 104)), (THIRD, (103,)))
    assert options.choices_of(flow) is flow.choices, "the same routes are not grouped again"


def test_only_other_routes_are_available() -> None:
    options = make_options()
    found = list(options.available(make_flow(options), lambda health: True))
    assert [route for _, route, _ in found] == [SECOND, THIRD]
    assert all(ROUTES[path] == route for _, route, path in found)
    assert not list(options.available(make_flow(options), lambda health: False))


def test_a_path_that_failed_is_not_retried_until_its_time_is_over() -> None:
    options = make_options()
    flow = make_flow(options)
    flow.avoid = {103: 50}
    options.begin(49)
    assert THIRD not in [route for _, route, _ in options.available(flow, lambda health: True)]
    options.begin(50)
    assert THIRD in [route for _, route, _ in options.available(flow, lambda health: True)]


def test_a_socket_takes_no_source_port_that_another_socket_uses() -> None:
    options = make_options()
    flow = make_flow(options, "h1/b/sock:7")
    options.used_ports = {(flow.ends, 101)}
    assert options.free_path(flow, (101, 104), True, 0) == 104
    options.used_ports.add((flow.ends, 104))
    assert options.free_path(flow, (101, 104), True, 0) is None
    assert options.free_path(make_flow(options), (101, 104), False, 0) == 101, "queue pairs share ports"


def test_draws_depend_on_seed_shard_and_items_alone() -> None:
    options = make_options()
    assert options.draw("f", 1) == make_options().draw("f", 1)
    draws = [options.draw("f", 1), options.draw("f", 2), make_options(seed=2).draw("f", 1)]
    draws.append(PathOptions("s1", 1, PathHealth(1, 2)).draw("f", 1))
    assert len(set(draws)) == 4

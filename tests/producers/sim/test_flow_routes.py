"""The routes that simulated hosts publish are those that flows take, moved or not."""

from __future__ import annotations

from producers.sim.flow_routes import SimFlowRoutes
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas.topics import FLOW_ROUTES
from streams.runtime.flow_routes import FlowRouteTable


def fleet(**more: object) -> Simulation:
    given = {"nics": 16, "rate_pps": 0, "flow_s": 1000, "load": 0.1, **more}
    return Simulation(SimSettings.model_validate(given), topics=(FLOW_ROUTES,))


def reported(run: Simulation, book: FlowRouteTable, seconds: float) -> list[str]:
    keys = []
    for out in run.advance(seconds):
        assert out.topic is FLOW_ROUTES
        book.take(out.key.encode(), out.value())
        keys.append(out.key)
    return keys


def test_every_flow_has_routes_in_both_directions_and_alternatives_over_every_spine() -> None:
    run, book = fleet(), FlowRouteTable()
    reported(run, book, 2)
    for flow in run.flows():
        nic, peer = (run.fleet.nic_ids[end] for end in (flow.source, flow.destination))
        found = book.of(nic, peer, 4791)
        assert list(found[flow.port].links) == flow.hops
        assert len(found) >= 32
        assert all(
            route.reverse and route.reverse[0].startswith(peer.replace("/", ":")) for route in found.values()
        )
        if len(flow.hops) > 2:
            assert len({route.links for route in found.values()}) > 1
    assert not reported(run, book, 2), "nothing new"


def test_a_moved_flow_takes_the_published_route_of_its_new_port() -> None:
    run, book = fleet(), FlowRouteTable()
    reported(run, book, 2)
    flow = next(flow for flow in run.flows() if len(flow.hops) > 2)
    nic, peer = (run.fleet.nic_ids[end] for end in (flow.source, flow.destination))
    port, route = next(
        (port, route) for port, route in book.of(nic, peer, 4791).items() if list(route.links) != flow.hops
    )
    home = flow.port
    run.set_flow_path(flow.flow_id, port)
    assert tuple(flow.hops) == route.links
    run.set_flow_path(flow.flow_id, 50_001)
    reported(run, book, 1)
    assert {home, port, 50_001} <= book.of(nic, peer, 4791).keys(), "a flow may return"


def test_routes_are_published_again_after_a_carrier_loss() -> None:
    run, book = fleet(), FlowRouteTable()
    reported(run, book, 2)
    before = {flow.flow_id: flow.hops for flow in run.flows()}
    run.fault("down leaf1>spine1")
    reported(run, book, 3)
    assert any(flow.hops != before[flow.flow_id] for flow in run.flows())
    for flow in run.flows():
        nic, peer = (run.fleet.nic_ids[end] for end in (flow.source, flow.destination))
        found = book.of(nic, peer, 4791).get(flow.port)
        if flow.hops:
            assert flow.hops[-1].endswith(">" + peer.replace("/", ":"))
            assert found is not None
            assert list(found.links) == flow.hops
        else:
            assert found is None, "it comes nowhere: no complete route of it exists"


def test_pairs_without_flows_are_evicted_and_deleted() -> None:
    run, book = fleet(flow_s=0.5, route_pairs=20, flows_per_nic=1), FlowRouteTable()
    reported(run, book, 5)
    nics = run.fleet.nic_ids
    known = {(a, b) for a in nics for b in nics if a != b and book.of(a, b, 4791)}
    assert 0 < len(known) <= 20


def test_a_pair_forgets_the_ports_that_it_used_longest_ago() -> None:
    run = fleet(flows_per_nic=1)
    flow = run.flows()[0]
    routes = SimFlowRoutes(run.fleet, "s0", 4, 100)
    for port in range(50_000, 50_100):
        run.set_flow_path(flow.flow_id, port)
        routes.follow([flow])
    ports = list(routes._ports[flow.source, flow.destination])
    assert ports == list(range(50_067, 50_100))

"""Which of a host's flows are live, and where they go: what a prober takes from its host's flow reports."""

from __future__ import annotations

from typing import Any

from producers.probe.flow_prober import LIVE_S, MAX_ROUTES, REPORT_TIMEOUT_S, LiveFlows
from producers.probe.flow_targets import PeerRoute
from schemas import codec
from schemas.topics import FLOWS

NIC = "h1/eth1"
ROUTE = ["h1:eth1>leaf1:h1", "leaf1:h2>h2:eth1"]
OTHER = ["h1:eth1>leaf1:h1", "leaf1:s1>spine1:l1", "spine1:l2>leaf2:s1", "leaf2:h3>h3:eth1"]


def flow(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "flow_id": f"h1/b/sock:{number}",
        "state": "OPEN",
        "nic": NIC,
        "peer": "h2/eth1",
        "source_address": "10.0.0.1",
        "peer_address": "10.0.0.2",
        "source_port": 40_000 + number,
        "peer_port": 5000,
        "protocol": "TCP",
        "links": ROUTE,
        "bytes_total": 1,
        "interval_ns": 1,
        "bytes": 1,
        "rate_bps": 1e6,
    } | more


def report(*flows: dict[str, Any], whole: bool = True) -> dict[str, Any]:
    record = {
        "host": "h1",
        "boot": "b",
        "report": 1,
        "shard": "fabric",
        "system_ns": 1,
        "whole": whole,
        "flows": list(flows),
    }
    return codec.decode(codec.encode(FLOWS.record, record), FLOWS.record)


def test_routes_are_those_of_the_nics_open_flows_without_duplicates():
    taker = LiveFlows(NIC)
    assert taker.routes(0.0) == ()
    taker.update(
        report(
            flow(1),
            flow(2),
            flow(3, peer="h3/eth1", links=OTHER),
            flow(4, nic="h1/eth2"),
            flow(5, links=[]),
            flow(6, peer="", links=OTHER),
        ),
        0.0,
    )
    assert taker.routes(0.0) == (PeerRoute("h2/eth1", tuple(ROUTE)), PeerRoute("h3/eth1", tuple(OTHER)))
    taker.update(report(flow(3, state="CLOSED"), whole=False), 0.5)
    assert taker.routes(0.5) == (PeerRoute("h2/eth1", tuple(ROUTE)),), "changes leave the others"
    taker.update(report(flow(2, links=OTHER, peer="h3/eth1")), 1.0)
    assert taker.routes(1.0) == (PeerRoute("h3/eth1", tuple(OTHER)),), "a whole report is all there is"
    taker.update(report(), 2.0)
    assert taker.routes(2.0) == ()


def test_a_flow_that_is_stuck_is_looked_at_a_while_and_one_that_idles_is_not():
    taker, route = LiveFlows(NIC), PeerRoute("h2/eth1", tuple(ROUTE))
    taker.update(report(flow()), 0.0)
    for second in range(1, 31):
        taker.update(report(flow(rate_bps=0.0, links=[] if second > 2 else ROUTE)), float(second))
        assert taker.routes(float(second)) == ((route,) if second <= LIVE_S else ()), (
            "its old way is what matters"
        )
    taker.update(report(flow()), 31.0)
    assert taker.routes(31.0) == (route,)
    taker.update(report(flow(source_port=9, links=[])), 32.0)
    assert taker.routes(32.0) == (), "from another port it goes another way"


def test_a_host_that_reports_no_more_has_no_flows_that_anybody_knows_of():
    taker = LiveFlows(NIC)
    taker.update(report(flow()), 0.0)
    assert taker.routes(REPORT_TIMEOUT_S)
    assert not taker.routes(REPORT_TIMEOUT_S + 0.1)


def test_the_routes_of_the_fastest_flows_are_probed_first():
    taker = LiveFlows(NIC)
    flows = [flow(n, peer=f"p{n}/e", rate_bps=1.0 + n) for n in range(MAX_ROUTES + 5)]
    taker.update(report(*flows), 0.0)
    assert {route.peer for route in taker.routes(0.0)} == {f"p{n}/e" for n in range(5, MAX_ROUTES + 5)}

"""Routes of a worker: flows as recorded first, then probes by the global table."""

from schemas import codec
from schemas.topics import PATHS
from streams.diagnosis.network.table_routes import TableRoutes
from streams.diagnosis.network.view import RecordedRoutes
from streams.runtime.route_table import RouteTable
from tests.records import make, make_part

PROBED, TRACED, MOVED = (["h1:e0>leaf1:swp1", f"leaf1:swp{port}>h2:e0"] for port in (2, 3, 4))


def take_probed(probes: RouteTable, links: list[str]) -> None:
    paths = [
        make_part("PathMaps", "PathMap", path=port, leg="REQUEST", links=links, found="TRACED", complete=True)
        for port in (50_000, 50_001)
    ]
    record = make("PathMaps", nic="h1/e0", peer="h2/e0", paths=paths)
    probes.take(b"h1/e0>h2/e0", codec.encode(PATHS.record, record))


def test_a_flows_own_route_counts_before_that_of_a_probe_with_its_port():
    probes, recorded = RouteTable(), RecordedRoutes()
    take_probed(probes, PROBED)
    routes = TableRoutes(recorded, probes)
    assert routes.of_flow("h1/e0", "h2/e0", 50_000, 9) == tuple(PROBED)
    assert routes.of_pair("h1/e0", "h2/e0") == {tuple(PROBED)}
    route = make_part(
        "FlowRoutes", "FlowRoute", path=50_000, peer_port=9, leg="DATA", links=TRACED, complete=True
    )
    recorded.take_flow_routes(make("FlowRoutes", nic="h1/e0", peer="h2/e0", routes=[route]))
    assert routes.of_flow("h1/e0", "h2/e0", 50_000, 9) == tuple(TRACED)
    assert routes.of_flow("h1/e0", "h2/e0", 50_001, 9) == tuple(PROBED)
    assert routes.of_pair("h1/e0", "h2/e0") == {tuple(PROBED), tuple(TRACED)}
    assert routes.of_flow("h2/e0", "h1/e0", 50_000, 9) == ()
    assert routes.of_pair("h2/e0", "h1/e0") == set()
    take_probed(probes, MOVED)
    assert routes.of_pair("h1/e0", "h2/e0") == {tuple(MOVED), tuple(TRACED)}
    first_routes = routes.of_pair("h1/e0", "h2/e0")
    recorded.take_flow_routes(make("FlowRoutes", nic="h1/e0", peer="h2/e0", routes=[route]))
    assert routes.of_pair("h1/e0", "h2/e0") is first_routes, "a repeated record changes no route"
    recorded.take_flow_routes(make("FlowRoutes", nic="h1/e0", peer="h2/e0", routes=[]))
    assert routes.of_pair("h1/e0", "h2/e0") == {tuple(MOVED)}

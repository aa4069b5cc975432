"""State of a host's connections, of the recorded host and of results."""

from __future__ import annotations

from fabrictime.audit.connections import Connections, connections
from fabrictime.bench.audit._results import host_results
from schemas.records import AuditResult
from tests.fabrictime.audit.fleets import F, P, S, U, fact, finding, result

PORTS, CARRIER, GIDS = "backend.port-state", "backend.carrier", "backend.gid-index"


def of(*results: AuditResult) -> Connections:
    return connections({each["check"]: each for each in results})


def test_a_recorded_host_has_all_its_ports() -> None:
    found = of(*host_results())
    assert found.initialized == found.active == "5 of 5"
    assert found.gid_index == "3"
    assert found.connectivity == ""


def test_a_port_may_be_initialized_and_not_active() -> None:
    states = [
        finding("ACTIVE, LinkUp", P, "mlx5_0/1"),
        finding("INIT, LinkUp", F, "mlx5_1/1"),
        finding("DOWN, Polling", F, "mlx5_2/1"),
        finding("permission denied", U, "mlx5_3/1"),
    ]
    found = of(result(PORTS, "h1", F, findings=states))
    assert (found.initialized, found.active) == ("2 of 4", "1 of 4")


def test_interfaces_count_on_a_host_without_rdma() -> None:
    up, down = finding("up; 1 changes of carrier", P, "eth1"), finding("down; 2 changes", F, "eth2")
    found = of(result(PORTS, "h1", S, "no RDMA device"), result(CARRIER, "h1", F, findings=[up, down]))
    assert (found.initialized, found.active) == ("1 of 2", "1 of 2")


def test_unlike_indices_and_unreached_peers_are_shown() -> None:
    indices = [fact("gid_index", float(index), f"mlx5_{k}/1") for k, index in enumerate((3, 3, 1))]
    peers = result(PORTS, "h1", F)
    peers["check"] = "fabric.connectivity"
    peers["findings"] = [finding("reaches all 3", P, "eth0"), finding("does not reach 1 of 3", F, "eth1")]
    found = of(result(GIDS, "h1", F, facts=indices), peers)
    assert (found.gid_index, found.connectivity) == ("3.0, 1.0", "1 of 2")


def test_nothing_is_stated_without_results() -> None:
    assert of() == Connections()
    assert of(result(PORTS, "h1", U, "did not answer")) == Connections()

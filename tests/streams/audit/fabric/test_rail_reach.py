"""Reachability within rails: the NIC or the pairs that fail, by routes and by probes of several hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.records import AuditStatus
from streams.audit.fabric.checks import fabric_results
from streams.audit.fabric.rail_reach import rail_reach
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import Scope

HOSTS, RAILS = range(1, 6), (1, 2)
PROBED = 2
"""Peers of each NIC in its rail that are probed: routes alone speak for the others."""


def nic(host: int, rail: int, **other: Any) -> Any:
    """Return the NIC of a rail behind a router, with the rail's networks as its routes lead there."""
    found = {
        "nic": f"h{host}/eth{rail}",
        "host": f"h{host}",
        "device": f"eth{rail}",
        "shard": "fabric",
        "rail": rail,
        "rack": None,
        "addresses": [f"10.{rail}.{host}.2"],
        "networks": [f"10.{rail}.0.0/16"],
        "egress": None,
        "mtu_bytes": 9000,
    }
    return found | other


def fleet(**changes: dict[str, Any]) -> list[Any]:
    """Return two rails of five hosts. `changes`: by NIC, such as `h1_eth2`."""
    nics = [nic(host, rail) for host in HOSTS for rail in RAILS]
    return [each | changes.get(each["nic"].replace("/", "_"), {}) for each in nics]


def records(nics: list[Any], is_lost: Callable[[str, str], bool] | None = None) -> FabricRecords:
    """Return records in which each NIC probes the next hosts' NICs of its rail."""
    delays = []
    for each in nics:
        peers = [other for other in nics if other["device"] == each["device"] and other is not each]
        at = next((n for n, other in enumerate(peers) if other["nic"] > each["nic"]), 0)
        paths = []
        for peer in [*peers[at:], *peers[:at]][:PROBED]:
            lost = is_lost is not None and is_lost(each["nic"], peer["nic"])
            counts = {"count": 0, "lost": 9} if lost else {"count": 90, "lost": 0}
            paths.append({"peer": peer["nic"], "path": 9320, "no_t3": 0, "ecn": 90, "dscp": 0, **counts})
        delays.append({"nic": each["nic"], "paths": paths})
    return FabricRecords(nics, delays=delays)  # type: ignore[arg-type]


def failed(of: FabricRecords) -> dict[str, str]:
    return {f"{e.host}/{e.subject}": e.text for e in rail_reach(of) if e.status is AuditStatus.FAILED}


def test_rails_that_reach_themselves_pass_on_every_nic() -> None:
    found = list(rail_reach(records(fleet())))
    assert {each.status for each in found} == {AuditStatus.PASSED}
    assert len(found) == len(HOSTS) * len(RAILS)
    assert found[0].text == "2 of 4 peers of rail 1 answer h1/eth1, and has routes to all"


def test_a_nic_without_routes_to_its_rail_is_named_and_not_its_peers() -> None:
    found = failed(records(fleet(h2_eth1={"networks": ["10.1.2.2/31"]})))
    assert set(found) == {"h2/eth1"}
    assert "no route by its device" in found["h2/eth1"]
    assert "pairs of h2/eth1 within rail 1 fail" in found["h2/eth1"]


def test_a_nic_with_an_address_outside_its_rail_is_named_once() -> None:
    found = failed(records(fleet(h3_eth2={"addresses": ["10.7.3.2"]})))
    assert set(found) == {"h3/eth2"}


def test_one_host_that_one_nic_has_no_route_to_is_a_pair() -> None:
    networks = ["10.1.1.0/24", "10.1.2.0/24", "10.1.4.0/24", "10.1.5.0/24"]
    found = failed(records(fleet(h1_eth1={"networks": networks})))
    assert found == {
        "h1/eth1": "h1/eth1 does not reach 1 of 4 peers of rail 1: h3/eth1 (no route by its device)"
    }


def test_pairs_with_dead_probes_are_named() -> None:
    found = failed(records(fleet(), lambda a, b: (a, b) == ("h1/eth2", "h2/eth2")))
    assert found == {"h1/eth2": "h1/eth2 does not reach 1 of 4 peers of rail 2: h2/eth2 (no answer)"}


def test_a_nic_that_reaches_its_rail_by_another_device_fails() -> None:
    found = failed(records(fleet(h4_eth2={"egress": "eth1"})))
    assert found == {"h4/eth2": "h4/eth2 reaches rail 2 by eth1, not by its own device"}


def test_routes_of_another_rail_are_no_matter() -> None:
    assert failed(records(fleet(), lambda a, b: a[-1] != b[-1])) == {}


def test_without_rail_numbers_devices_are_rails() -> None:
    nics = [each | {"rail": None} for each in fleet(h2_eth1={"networks": ["10.1.2.2/31"]})]
    assert set(failed(records(nics))) == {"h2/eth1"}


def test_hosts_with_one_nic_and_no_rail_have_no_rails() -> None:
    nics = [nic(host, 1) | {"rail": None} for host in HOSTS]
    assert [each.status for each in rail_reach(records(nics))] == [AuditStatus.SKIPPED]


def test_networks_that_are_not_known_accuse_nobody() -> None:
    nics = [each | {"networks": []} for each in fleet()]
    assert {each.status for each in rail_reach(records(nics))} == {AuditStatus.PASSED}
    silent = FabricRecords(nics)
    assert {each.status for each in rail_reach(silent)} == {AuditStatus.UNKNOWN}


def test_families_of_addresses_are_kept_apart() -> None:
    nics = fleet(h5_eth1={"addresses": ["fe80::5%eth1"], "networks": ["fe80::/64"]})
    assert set(failed(records(nics))) == {"h5/eth1"}
    both = [
        each | {"addresses": [f"fe80::{each['host'][1:]}"], "networks": ["fe80::/64"]} for each in fleet()
    ]
    assert failed(records(both)) == {}


def test_two_hosts_without_routes_are_both_named() -> None:
    nics = [nic(host, 1, networks=["10.9.0.0/16"]) for host in (1, 2)]
    assert set(failed(records(nics))) == {"h1/eth1", "h2/eth1"}


def test_a_dead_nic_is_an_error_of_connectivity_alone() -> None:
    of = records(fleet(), lambda a, b: "h2/eth1" in (a, b))
    found = fabric_results(of, Scope("r1", 1_000, {}, {}), ["fabric.connectivity", "fabric.rail-reach"])
    severities = {
        (each["host"], each["check"]): each["severity"] for each in found if each["status"] == "FAILED"
    }
    assert severities["h2", "fabric.connectivity"] == "ERROR"
    assert severities["h2", "fabric.rail-reach"] == "WARNING"


def test_a_large_rail_is_evaluated_in_time() -> None:
    import time

    nics = [
        nic(1, 1)
        | {"nic": f"g{n}/eth1", "host": f"g{n}", "addresses": [f"10.{n >> 8}.{n & 255}.2"]}
        | {"networks": [f"10.{n >> 8}.{n & 255}.2/31", "10.0.0.0/8"]}
        for n in range(4_096)
    ]
    begin = time.process_time()
    assert {each.status for each in rail_reach(FabricRecords(nics))} == {AuditStatus.UNKNOWN}  # type: ignore[arg-type]
    assert time.process_time() - begin < 3

"""Connectivity: dead NICs and dead pairs are named, and no living NIC is accused."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.testbed.audit.simulated import Simulated, railed
from schemas.records import AuditStatus, LinkHealth
from streams.audit.fabric.connectivity import connectivity
from streams.audit.fabric.rail_reach import rail_reach
from tests.records import make

FLEET = railed(32, 4)


def failed(records: Any) -> dict[str, str]:
    return {
        f"{each.host}/{each.subject}": each.text
        for each in connectivity(records)
        if each.status is AuditStatus.FAILED
    }


def test_a_full_mesh_passes() -> None:
    found = list(connectivity(Simulated(FLEET, peers=31).records(paths=(), full_mesh=True)))
    assert len(found) == 32
    assert {each.status for each in found} == {AuditStatus.PASSED}
    assert found[0].text == "h1/eth1 reaches all 31 probed peers"


def test_a_dead_nic_is_named_and_its_peers_are_not() -> None:
    dead = frozenset({"h3/eth2", "h5/eth1"})
    assert set(failed(Simulated(FLEET, peers=31, dead=dead).records(paths=()))) == dead
    assert set(failed(Simulated(FLEET, peers=8, dead=dead).records(paths=()))) == dead


def test_a_dead_pair_is_named_with_its_directions() -> None:
    one = Simulated(FLEET, peers=31, dead_pairs=frozenset({("h1/eth1", "h4/eth2")}))
    text = "h1/eth1 does not reach 1 of 31 peers: h4/eth2, though it answers back"
    assert failed(one.records(paths=())) == {"h1/eth1": text}
    both = frozenset({("h1/eth1", "h4/eth2"), ("h4/eth2", "h1/eth1")})
    found = failed(Simulated(FLEET, peers=31, dead_pairs=both).records(paths=()))
    assert set(found) == {"h1/eth1", "h4/eth2"}
    assert found["h1/eth1"].endswith("h4/eth2, and back")


def test_pairs_without_probes_are_unknown_in_a_full_mesh_only() -> None:
    records = Simulated(FLEET, peers=6).records(paths=(), full_mesh=True)
    assert {each.status for each in connectivity(records)} == {AuditStatus.UNKNOWN}
    partial = Simulated(FLEET, peers=6).records(paths=())
    assert {each.status for each in connectivity(partial)} == {AuditStatus.PASSED}


def test_a_silent_nic_and_no_probes_at_all_are_unknown() -> None:
    records = Simulated(FLEET, peers=31).records(paths=())
    kept = Simulated(FLEET).records(paths=(), delays=[d for d in records.delays if d["nic"] != "h1/eth1"])
    assert [(e.host, e.subject) for e in connectivity(kept) if e.status is AuditStatus.UNKNOWN] == [
        ("h1", "eth1")
    ]
    assert [e.status for e in connectivity(Simulated(FLEET).records(paths=(), delays=()))] == ["UNKNOWN"]


def two_hosts(*health: LinkHealth, pairs: frozenset[tuple[str, str]]) -> Any:
    """Return the records of two hosts with two NICs each, of which each probes only its own rail."""
    fleet = Simulated(railed(4, 2), dead_pairs=pairs).records(paths=())
    on_rail = [
        record | {"paths": [path for path in record["paths"] if path["peer"][-1] == record["nic"][-1]]}
        for record in fleet.delays
    ]
    return Simulated(railed(4, 2)).records(paths=(), delays=on_rail, health=health)


def test_one_dead_pair_between_two_hosts_accuses_both_ends() -> None:
    """Without further evidence, either end may be dead."""
    both = frozenset({("h1/eth1", "h2/eth1"), ("h2/eth1", "h1/eth1")})
    assert set(failed(two_hosts(pairs=both))) == {"h1/eth1", "h2/eth1"}


@pytest.mark.parametrize("subject", ["h2", "h2/eth1", "h2:eth1<>leaf1:swp2"])
def test_a_nic_that_is_down_explains_its_dead_pairs(subject: str) -> None:
    both = frozenset({("h1/eth1", "h2/eth1"), ("h2/eth1", "h1/eth1")})
    records = two_hosts(make(LinkHealth, subject=subject, state="DOWN"), pairs=both)
    assert failed(records) == {"h2/eth1": f"h2/eth1 does not answer in 2 pairs: {subject} is down"}
    unknown = {each.text for each in connectivity(records) if each.status is AuditStatus.UNKNOWN}
    assert unknown == {"no peer that h1/eth1 probed is up: its connectivity is not known"}
    reached = [each for each in rail_reach(records) if each.status is AuditStatus.FAILED]
    assert [(each.host, each.subject) for each in reached] == [("h2", "eth1")]


def test_a_nic_that_has_recovered_is_not_accused() -> None:
    records = two_hosts(make(LinkHealth, subject="h2/eth1", state="DOWN"), pairs=frozenset())
    assert failed(records) == {}

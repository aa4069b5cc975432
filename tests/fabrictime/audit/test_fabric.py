"""The records of a fabric from messages of the log."""

from __future__ import annotations

from typing import Any

from fabrictime.audit.fabric import Entry, fabric_of
from schemas.topics import AUDIT_RUNS, DELAYS, LINK_HEALTH, PATHS
from schemas.topology import Topology
from tests.fabrictime.audit.test_fleet import nic

NICS = [nic("h1"), nic("h2"), nic("h3")]


def fabric(*entries: Entry, peers: int = 10) -> Any:
    return fabric_of(NICS, entries, Topology(), before_ns=100, peers=peers)


def run(at_ns: int, hosts: list[str]) -> Entry:
    return Entry(AUDIT_RUNS.name, str(at_ns), {"requested_ns": at_ns, "hosts": hosts})


def test_the_newest_record_of_a_key_counts_and_a_tombstone_removes_it() -> None:
    found = fabric(
        Entry(PATHS.name, "a>b", {"traced_ns": 1}),
        Entry(PATHS.name, "b>a", {"traced_ns": 2}),
        Entry(PATHS.name, "a>b", {"traced_ns": 3}),
        Entry(LINK_HEALTH.name, "x", {"link": "x"}),
        Entry(LINK_HEALTH.name, "x", None),
    )
    assert [each["traced_ns"] for each in found.paths] == [2, 3]
    assert list(found.health) == []


def test_all_recent_windows_of_delays_count() -> None:
    windows = ({"window": 1}, {"window": 2}, None)
    found = fabric(*(Entry(DELAYS.name, "a", each) for each in windows))
    assert [each["window"] for each in found.delays] == [1, 2]


def test_the_last_audit_is_the_last_run_of_all_hosts_before_this_one() -> None:
    assert fabric(run(10, []), run(50, []), run(70, ["h1"]), run(100, []), run(120, [])).since_ns == 50
    assert fabric().since_ns == 0


def test_every_nic_probes_every_other_if_it_has_enough_peers() -> None:
    assert fabric(peers=2).full_mesh
    assert not fabric(peers=1).full_mesh

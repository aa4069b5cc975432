"""Cables and leaves from traces, and leaves from delays alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from fabrictime.testbed.audit.simulated import Simulated, railed
from schemas.topology import End
from streams.audit.fabric.leaves import leaves_by_delay, leaves_by_route, traced_cables

FLEET = railed(32, 4)
FULL = Simulated(FLEET, peers=31)


def grouped(leaf_of: dict[str, str]) -> set[frozenset[str]]:
    found = defaultdict(set)
    for nic, leaf in leaf_of.items():
        found[leaf].add(nic)
    return {frozenset(each) for each in found.values()}


def true_groups() -> set[frozenset[str]]:
    return grouped({name: str(leaf) for name, leaf in zip(FLEET.nic_ids, FLEET.nic_leaf, strict=True)})


def test_routes_show_the_leaf_and_the_port_of_each_nic() -> None:
    records = FULL.records()
    assert leaves_by_route(records) == {
        name: f"leaf{leaf + 1}" for name, leaf in zip(FLEET.nic_ids, FLEET.nic_leaf.tolist(), strict=True)
    }
    cables = traced_cables(records)
    assert cables[End("h1", "eth1")] == End("leaf1", "swp1")
    assert cables[End("leaf1", "swp1")] == End("h1", "eth1")


def test_delays_alone_show_the_nics_of_one_leaf() -> None:
    assert grouped(leaves_by_delay(FULL.records(paths=()))) == true_groups()


def test_without_a_gap_between_tiers_nothing_is_inferred() -> None:
    flat = [
        {**record, "paths": [{**path, "rtt_min_ns": 5000.0} for path in record["paths"]]}
        for record in FULL.delays()
    ]
    assert leaves_by_delay(FULL.records(paths=(), delays=flat)) == {}
    assert leaves_by_delay(FULL.records(paths=(), delays=())) == {}


def test_a_newer_trace_replaces_an_older_one() -> None:
    records = FULL.records()
    older = Simulated(FLEET, peers=31, swaps=[("h1/eth1", "h2/eth2")]).path_maps()
    both = [*({**each, "traced_ns": each["traced_ns"] - 10**9} for each in older), *records.paths]
    assert traced_cables(replace(records, paths=both))[End("h1", "eth1")] == End("leaf1", "swp1")

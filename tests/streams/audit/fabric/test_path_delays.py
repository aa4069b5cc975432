"""Delays and asymmetry: a slow link is named, no healthy path is accused, uncertainty counts."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.testbed.audit.simulated import Simulated, railed
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.records import AuditStatus, ClockOffsets, ClockSync
from streams.audit.fabric.path_delays import asymmetries, one_way_delays
from streams.audit.results import FLEET as NO_HOST
from tests.records import make, make_part

FLEET = railed(32, 4)


def failed(found: Any) -> list[tuple[str, str]]:
    return [(each.host, each.subject) for each in found if each.status is AuditStatus.FAILED]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("traced", [True, False])
def test_no_fault_no_finding(seed: int, traced: bool) -> None:
    simulated = Simulated(FLEET, seed=seed, peers=20)
    records = simulated.records() if traced else simulated.records(paths=())
    assert failed(one_way_delays(records)) == []
    assert failed(asymmetries(records)) == []


def test_a_slow_link_between_switches_is_named() -> None:
    link = next(each for each in FLEET.link_ids if each.startswith("leaf1:") and ">spine2:" in each)
    records = Simulated(FLEET, peers=31, extra_ns={link: 4000.0}).records()
    found = [each for each in one_way_delays(records) if each.status is AuditStatus.FAILED]
    assert [(each.host, each.subject) for each in found] == [(NO_HOST, link)]
    assert f"one-way delay over {link}: 6," in found[0].text


def test_a_slow_link_to_a_nic_is_its_hosts() -> None:
    records = Simulated(FLEET, peers=31, extra_ns={"h2:eth3>leaf3:swp2": 4000.0}).records()
    assert failed(one_way_delays(records)) == [("h2", "eth3")]
    untraced = Simulated(FLEET, peers=31, extra_ns={"h2:eth3>leaf3:swp2": 8000.0}).records(paths=())
    assert failed(one_way_delays(untraced)) == [("h2", "eth3")]
    assert failed(asymmetries(records)) == [("h2", "eth3")]


def test_a_deviation_within_the_bound_of_the_clocks_is_no_finding() -> None:
    off = {"h2/eth3": 3000.0}
    accurate = Simulated(FLEET, peers=31, offset_ns=off, bound_ns=100.0).records()
    assert ("h2", "eth3") in failed(asymmetries(accurate))
    stated = Simulated(FLEET, peers=31, offset_ns=off, bound_ns=4000.0).records()
    assert failed(asymmetries(stated)) == []
    assert failed(one_way_delays(stated)) == []


def test_without_clocks_or_with_few_paths_it_is_unknown() -> None:
    dead = Simulated(FLEET, dead=frozenset(FLEET.nic_ids)).records(paths=())
    for find in (one_way_delays, asymmetries):
        assert [each.status for each in find(dead)] == [AuditStatus.UNKNOWN]
    few = Simulated(Fleet(Shape.of(2), 1), peers=1, paths=1).records()
    assert [each.status for each in one_way_delays(few)] == [AuditStatus.UNKNOWN]


@pytest.mark.parametrize(("samples", "expected"), [(40, [("h1", "eth1")]), (5, [])])
def test_a_single_odd_path_needs_samples(samples: int, expected: list[tuple[str, str]]) -> None:
    records = Simulated(FLEET, peers=31).records()
    row = records.delays[0]["paths"][17]
    row["forward_min_ns"] = (row["forward_min_ns"] or 0.0) + 9000.0
    row["count"] = samples
    assert records.delays[0]["nic"] == "h1/eth1"
    assert failed(one_way_delays(records)) == expected


def test_a_nic_without_a_good_clock_accuses_no_cable() -> None:
    simulated = Simulated(FLEET, peers=31, offset_ns={"h2/eth3": 700_000.0}, bound_ns=100.0)
    clocks = [
        make_part(ClockOffsets, "ClockState", clock=nic["clock"], state="SYNCED", bound_ns=100.0)
        for nic in simulated.nics()
    ]
    bad = next(nic["clock"] for nic in simulated.nics() if nic["nic"] == "h2/eth3")
    assert ("h2", "eth3") in failed(one_way_delays(simulated.records()))
    for clock in clocks:
        if clock["clock"] == bad:
            clock["state"] = ClockSync.UNSYNCED
    records = simulated.records(offsets=[make(ClockOffsets, domain="a", clocks=clocks)])
    for find in (one_way_delays, asymmetries):
        found = list(find(records))
        assert failed(found) == []
        [unknown] = [each for each in found if each.status is AuditStatus.UNKNOWN]
        assert (unknown.host, unknown.subject) == ("h2", "eth3")
        assert unknown.text.endswith(f"is not known: clock {bad} is UNSYNCED")

"""Uplinks: one that carries no route is named, and few routes accuse no leaf."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.simulated import Simulated, railed
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.records import AuditStatus
from streams.audit.fabric.ecmp import uplinks
from tests.examples import draws

FLEET = railed(64, 8)
LOST = next(each for each in FLEET.link_ids if each.startswith("leaf3:") and ">spine2:" in each)
PORT = LOST.partition(">")[0]


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("seed", draws(range(4)))
def test_no_fault_no_finding(plan: bool, seed: int) -> None:
    records = Simulated(FLEET, seed=seed, peers=20).records(plan, delays=())
    assert {each.status for each in uplinks(records)} == {AuditStatus.PASSED}


@pytest.mark.parametrize("plan", [True, False])
def test_an_uplink_without_a_route_is_found(plan: bool) -> None:
    records = Simulated(FLEET, peers=40, lost_links=frozenset({LOST})).records(plan, delays=())
    found = [each for each in uplinks(records) if each.status is AuditStatus.FAILED]
    assert [each.subject for each in found] == ["leaf3"]
    assert "use 3 of 4 uplinks" in found[0].text
    assert (f"none over {PORT}" in found[0].text) is plan


def test_few_routes_are_unknown() -> None:
    large = Fleet(Shape.of(1024), 1)
    records = Simulated(large, peers=1, paths=1).records(delays=())
    assert {each.status for each in uplinks(records)} <= {AuditStatus.UNKNOWN, AuditStatus.PASSED}


def test_without_uplinks_it_is_skipped() -> None:
    one_leaf = Simulated(Fleet(Shape(hosts=4, hosts_per_rack=4, spines=1), 1)).records(False)
    assert [each.status for each in uplinks(one_leaf)] == [AuditStatus.SKIPPED]

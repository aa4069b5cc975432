"""Rails: swapped NICs of 1,024 are named with the right partner, with a plan, by routes, and by delays."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.testbed.audit.simulated import Simulated, drawn_swaps, railed
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.records import AuditStatus
from schemas.topology import nic_end
from streams.audit.fabric.cabling import Cabling, swap_text
from streams.audit.fabric.leaves import leaves_by_delay, leaves_by_route, traced_cables
from streams.audit.fabric.rails import rails
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import Found
from tests.examples import draws

LARGE = Fleet(Shape.of(1024), 1)
SMALL = railed(64, 8)


def found(records: FabricRecords, *, by_delay: bool = False) -> list[Found]:
    actual = traced_cables(records)
    leaf_of = leaves_by_delay(records) if by_delay else leaves_by_route(records)
    return list(rails(records, leaf_of, actual, Cabling(records, actual).swaps))


def wrong(found: list[Found]) -> dict[str, str]:
    return {f"{each.host}/{each.subject}": each.remedy for each in found if each.status is AuditStatus.FAILED}


def by_ports(fleet: Fleet, swaps: list[tuple[str, str]]) -> dict[str, str]:
    """Return the expected remedy of each NIC: the two ports of the leaves that have each other's cables."""
    ports = {}
    for name in fleet.nic_ids:
        _, far = fleet.link_ids[2 * fleet.nic_index[name]].split(">")
        ports[name] = far
    out = {}
    for a, b in swaps:
        first, second = (nic_end(ports[name].replace(":", "/")) for name in (a, b))
        out[a] = out[b] = swap_text(first, second)
    return out


def same_host(fleet: Fleet, a: str, b: str) -> bool:
    return fleet.nic_host[fleet.nic_index[a]] == fleet.nic_host[fleet.nic_index[b]]


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_swaps_of_1024_nics_are_all_named_right(count: int, plan: bool) -> None:
    rng = np.random.default_rng(count)
    swaps = drawn_swaps(LARGE, count, rng)
    records = Simulated(LARGE, seed=count, peers=2, paths=1, swaps=swaps).records(plan, delays=())
    got = wrong(found(records))
    expected = by_ports(LARGE, swaps)
    if plan:
        for a, b in swaps:
            if same_host(LARGE, a, b):
                host = a.partition("/")[0]
                first, second = sorted((a.partition("/")[2], b.partition("/")[2]))
                expected[a] = expected[b] = f"swap {host} port {first} and port {second}"
    assert got == expected


@pytest.mark.parametrize("seed", draws(range(5), 2))
def test_several_swaps_between_the_same_rails_are_separated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = rng.permutation(LARGE.shape.hosts_per_rack)[:8].tolist()
    name = [f"h{host + 1}" for host in hosts]
    swaps = [(f"{name[k]}/eth2", f"{name[k + 4]}/eth5") for k in range(4)]
    records = Simulated(LARGE, seed=seed, peers=2, paths=1, swaps=swaps).records(False, delays=())
    assert wrong(found(records)) == by_ports(LARGE, swaps)


def test_delays_alone_name_the_swapped_nics() -> None:
    swaps = [("h1/eth2", "h2/eth5")]
    records = Simulated(SMALL, peers=63, swaps=swaps).records(False, paths=())
    got = wrong(found(records, by_delay=True))
    assert got == dict.fromkeys(("h1/eth2", "h2/eth5"), "swap the cables of h1/eth2 and h2/eth5")
    none = Simulated(SMALL, peers=63).records(False, paths=())
    assert {each.status for each in found(none, by_delay=True)} == {AuditStatus.PASSED}


def test_a_nic_alone_on_another_leaf_is_moved() -> None:
    records = Simulated(SMALL, swaps=[("h1/eth2", "h2/eth5")]).records(False)
    kept = FabricRecords([nic for nic in records.nics if nic["nic"] != "h2/eth5"], paths=records.paths)
    assert wrong(found(kept)) == {"h1/eth2": "move the cable of h1/eth2 to leaf2"}


def test_a_nic_without_route_is_unknown_and_without_rails_all_is_skipped() -> None:
    records = Simulated(SMALL).records(False, paths=())
    assert {each.status for each in found(records)} == {AuditStatus.UNKNOWN}
    flat = Simulated(Fleet(Shape.of(16), 1)).records(False)
    assert [each.status for each in found(flat)] == [AuditStatus.SKIPPED]

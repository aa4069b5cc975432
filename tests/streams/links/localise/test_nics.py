"""Silent NICs, and the port, NIC, host or leaf behind them."""

from __future__ import annotations

import pytest

from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import cable_id
from tests.streams.links.watched import MS, WARM, S, Watched, small


def test_a_nic_cut_off_is_its_own_cable_where_its_agent_still_speaks() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf3", "h6")] = True
    it.run(400 * MS)
    cable = it.cable("leaf3", "h6")
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert record["candidates"] == ["h6/eth1"]
    assert record["detected_by"] == "PROBES"
    it.probes.down[:] = False
    it.run(600 * MS, until=lambda: it.state(cable) == "UP")


def test_a_host_that_vanishes_is_one_host_no_link_and_is_forgotten() -> None:
    it = small(thresholds={"forget_s": 10})
    it.run(WARM)
    it.probes.gone[3] = True
    it.run(2500 * MS)
    assert it.changes == []
    it.run(2000 * MS)
    assert [(s, r["kind"], r["state"]) for _, (s, r) in it.changes if r] == [("h4", "HOST", "DOWN")]
    assert it.last("h4")["detected_by"] == "SILENCE"
    assert it.last("h4")["candidates"] == [it.cable("h4", "leaf2")]
    it.run(14 * S)
    assert it.state("h4") is None
    assert it.ever_in("DOWN") == {"h4"}


def test_one_of_a_hosts_nics_is_that_nic_and_all_are_the_host() -> None:
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=4, spines=2, nics_per_host=2, rails=2), 3)
    it = Watched(fleet, 3, peers=7)
    it.run(WARM)
    it.probes.gone[fleet.nic_index["h2/eth1"]] = True
    it.run(4 * S)
    assert it.ever_in("DOWN") == {"h2/eth1"}
    it.probes.gone[[fleet.nic_index["h5/eth1"], fleet.nic_index["h5/eth2"]]] = True
    it.run(4 * S)
    assert it.ever_in("DOWN") == {"h2/eth1", "h5"}
    assert it.last("h5")["kind"] == "HOST"


def test_a_dead_leaf_is_its_cables_and_not_the_hosts_behind_it() -> None:
    it = small()
    it.run(WARM)
    leaf = [i for i, name in enumerate(it.fleet.link_ids) if "leaf2:" in name]
    it.probes.down[leaf] = True
    it.run(600 * MS)
    cables = {cable_id(it.fleet.link_ids[i]) for i in leaf}
    assert it.ever_in("DOWN") == cables
    it.probes.down[:] = False
    it.run(800 * MS, until=lambda: all(it.state(cable) == "UP" for cable in cables))


def test_a_silent_agent_is_no_dead_nic_while_its_nic_answers() -> None:
    it = small()
    it.run(WARM)
    it.probes.muzzled[2] = True
    it.run(5 * S)
    assert it.changes == []


def stopped(*nics: int, seed: int = 1) -> Watched:
    """A small fleet whose agents probe the hosts of silent peers, with some of its agents stopped."""
    it = small(seed)
    it.probes.host_probes = True
    it.run(WARM)
    it.probes.stopped[list(nics)] = True
    return it


@pytest.mark.parametrize(("seed", "for_ns"), [(1, 1 * S), (2, 4 * S), (3, 12 * S)])
def test_a_stopped_agent_is_no_dead_host_nor_link(seed: int, for_ns: int) -> None:
    it = stopped(2, seed=seed)
    it.run(for_ns)
    it.probes.stopped[:] = False
    it.probes.starve(2, 100 * MS)
    it.run(3 * S)
    assert it.changes == []


def test_two_stopped_agents_are_no_dead_hosts() -> None:
    it = stopped(2, 5)
    it.run(5 * S)
    assert it.changes == []


def test_a_host_that_dies_after_its_agent_is_found_soon() -> None:
    it = stopped(2)
    it.run(6 * S)
    it.probes.gone[2] = True
    died_ns = it.probes.now_ns
    it.run(5 * S)
    assert died_ns - 2 * S < it.last("h3")["since_ns"] < died_ns + 1 * S, "of the host, not of its agent"
    assert [(s, r["kind"], r["state"]) for _, (s, r) in it.changes if r] == [("h3", "HOST", "DOWN")]


def test_a_dead_host_is_found_though_its_peers_probe_it() -> None:
    it = stopped()
    it.probes.gone[3] = True
    it.run(4500 * MS)
    assert [(s, r["kind"], r["state"]) for _, (s, r) in it.changes if r] == [("h4", "HOST", "DOWN")]


def test_a_dead_link_is_found_beside_a_stopped_agent() -> None:
    it = stopped(2)
    it.run(2 * S)
    it.probes.down[it.link("leaf3", "h6")] = True
    it.run(800 * MS)
    assert it.ever_in("DOWN") == {it.cable("leaf3", "h6")}


def test_a_host_with_one_stopped_and_one_dead_nic_is_not_dead() -> None:
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=4, spines=2, nics_per_host=2, rails=2), 3)
    it = Watched(fleet, 3, peers=7)
    it.probes.host_probes = True
    it.run(WARM)
    it.probes.stopped[fleet.nic_index["h5/eth1"]] = True
    it.probes.gone[fleet.nic_index["h5/eth2"]] = True
    it.run(5 * S)
    assert it.ever_in("DOWN") == {"h5/eth2"}

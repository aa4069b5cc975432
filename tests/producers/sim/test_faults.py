"""Faults of the simulated fleet: their links and NICs, and the state of each link."""

from __future__ import annotations

import numpy as np
import pytest

from producers.sim.fault_grammar import parse_fault
from producers.sim.faults import PAUSED, LinkStates, Target, link_states, resolve
from producers.sim.shape import Shape
from producers.sim.topology import Fleet


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(Shape(hosts=8, hosts_per_rack=4, spines=2), 1)


def states_of(fleet: Fleet, *lines: str) -> LinkStates:
    faults = [parse_fault(line) for line in lines]
    return link_states(fleet, [(fault, resolve(fault, fleet)) for fault in faults])


def names(fleet: Fleet, links: object) -> set[str]:
    return {fleet.link_ids[int(link)] for link in np.flatnonzero(links)}


def test_a_cable_that_is_down_loses_carrier_in_both_directions(fleet: Fleet) -> None:
    states = states_of(fleet, "down leaf1>spine1")
    found = names(fleet, ~states.up)
    assert len(found) == 2
    assert {">".join(reversed(link.split(">"))) for link in found} == found
    assert names(fleet, ~states.carrier) == found


def test_a_blackhole_keeps_carrier_and_loses_one_direction(fleet: Fleet) -> None:
    states = states_of(fleet, "blackhole leaf1>spine1")
    assert states.up.all()
    assert states.carrier.all()
    [link] = names(fleet, states.loss == 1)
    assert link.startswith("leaf1:")


def test_loss_rates_of_several_faults_combine(fleet: Fleet) -> None:
    states = states_of(fleet, "grey 10% leaf1>spine1", "grey 20% leaf1<>spine1")
    assert sorted(set(np.round(states.loss, 9))) == [0.0, 0.2, pytest.approx(0.28)]


def test_a_dead_host_is_silent_and_a_dead_nic_has_a_living_agent(fleet: Fleet) -> None:
    nic = fleet.nic_ids[0]
    host = nic.split("/")[0]
    assert set(states_of(fleet, f"dead {nic}").dead.values()) == {False}
    assert set(states_of(fleet, f"dead {host}").dead.values()) == {True}
    assert set(states_of(fleet, f"dead {host}", f"dead {nic}").dead.values()) == {True}


def test_a_pause_storm_stops_the_nics_link_and_slows_its_leaf(fleet: Fleet) -> None:
    states = states_of(fleet, f"pause-storm {fleet.nic_ids[0]}")
    assert np.count_nonzero(states.share == 0) == 1
    assert np.count_nonzero(states.share == PAUSED) == 2, "one link from each spine"


@pytest.mark.parametrize("line", ["down nowhere", "dead nowhere", "slow-sender 5% h1", "incast 999 h1/eth1"])
def test_a_target_that_the_fleet_lacks_is_refused(fleet: Fleet, line: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        states_of(fleet, line)


def test_a_fault_of_a_job_names_a_job_and_one_of_its_ranks(fleet: Fleet) -> None:
    jobs = {"train": [4, 2, 0]}
    assert resolve(parse_fault("hang train:1"), fleet, jobs).nics == (2,)
    assert resolve(parse_fault("paced 20% train"), fleet, jobs).nics == (4, 2, 0)
    assert not names(fleet, ~link_states(fleet, [(parse_fault("hang train:1"), Target(()))]).up)
    for line, error in [
        ("hang serve:1", "expected a job"),
        ("hang train:3", "expected a rank such as train:2"),
        ("hang train", "expected a rank such as train:2"),
        ("paced 20% train:1", "concerns all its ranks"),
        ("wrong-rail train:1", "hosts with several NICs"),
    ]:
        with pytest.raises(ValueError, match=error):
            resolve(parse_fault(line), fleet, jobs)

"""Dead links: the fewest that explain the losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import cable_id
from tests.streams.links.watched import MS, WARM, S, Watched, small


def lose_across(it: Watched, link: int, nic: int) -> Callable[[bool], None]:
    """Return a switch for the losses of all paths of one NIC over a link, and of no other path."""
    probes, size = it.probes, it.fleet.links
    probes.down, probes.loss = np.zeros(size + 2, np.bool_), np.zeros(size + 2)
    mine = (probes.links == link).any(axis=1) & (probes.src == nic)
    assert 1 < mine.sum() < 10
    probes.links = np.column_stack([probes.links, np.where(mine, size, -1)])

    def lose(lost: bool) -> None:
        probes.down[size] = lost

    return lose


@pytest.mark.parametrize("seed", range(6))
def test_a_link_is_not_dead_by_a_few_of_its_paths(seed: int) -> None:
    """The others live but are reported once a second: the number of expected losses must suffice."""
    it = small(seed)
    lose = lose_across(it, it.link("leaf1", "spine2"), 0)
    it.run(WARM)
    lose(True)
    it.run(150 * MS)
    lose(False)
    it.run(2 * S)
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_dead_link_inside_is_named_at_once_and_no_other(seed: int) -> None:
    it = small(seed)
    it.run(WARM)
    assert it.changes == []
    link = it.link("leaf1", "spine2")
    it.probes.down[link] = True
    began = it.probes.now_ns
    it.run(300 * MS)
    cable = it.cable("leaf1", "spine2")
    assert it.ever_in("DOWN") == {cable}
    at_ns, (_, record) = it.changes[0]
    assert at_ns - began < 60 * MS
    assert record is not None
    assert record["links"] == [it.fleet.link_ids[link]]
    assert record["candidates"] == []
    assert abs(record["since_ns"] - began) < 15 * MS
    assert record["text"].startswith("leaf1 to spine2 is down since ")
    assert (record["flaps_total"], record["flaps_hour"], record["seq"]) == (1, 1, 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_two_leaves_the_cables_of_a_path_are_named_together_and_not_waited_for(seed: int) -> None:
    it = Watched(Fleet(Shape(hosts=8, hosts_per_rack=4, spines=4), seed), seed, peers=7, rate_hz=300.0)
    it.run(WARM)
    link = it.link("leaf1", "spine2")
    it.probes.down[link] = True
    began = it.probes.now_ns
    it.run(300 * MS, until=lambda: bool(it.changes))
    at_ns, (subject, record) = it.changes[0]
    assert at_ns - began < 60 * MS, "what no path tells apart is the same after any wait"
    assert record is not None
    assert {subject, *record["candidates"]} == {it.cable("leaf1", "spine2"), it.cable("leaf2", "spine2")}
    it.run(300 * MS)
    assert it.ever_in("DOWN") == {subject}


def test_links_that_die_together_are_distinguished() -> None:
    fleet = Fleet(Shape.of(256), 5)
    it = Watched(fleet, 5)
    it.run(WARM)
    dead = [it.link("leaf1", "spine2"), it.link("leaf3", "spine2"), it.link("spine7", "leaf16")]
    it.probes.down[dead] = True
    it.run(400 * MS)
    assert it.ever_in("DOWN") == {cable_id(fleet.link_ids[link]) for link in dead}

"""Bypassed links: those that routing withdrew, and none that rerouting left empty by chance."""

from __future__ import annotations

import random

import pytest

from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from tests.streams.links.watched import MS, WARM, S, Watched, lead, small


def test_a_bypassed_switch_is_down_until_paths_return() -> None:
    it = small()
    it.run(WARM)
    before = lead(it, "spine2", None)
    it.run(1500 * MS)
    cables = {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}
    assert it.ever_in("DOWN") == cables
    assert "bypass it now, and none crosses it" in it.last(it.cable("leaf1", "spine2"))["text"]
    book = it.probes.book
    book._forward.update(before[0])
    book._reverse.update(before[1])
    book.version += 1
    it.run(1500 * MS)
    assert {it.state(cable) for cable in cables} == {"UP"}


def test_a_bypass_is_found_as_soon_as_the_new_routes_are_known() -> None:
    """Living paths are reported once a second; the bypass must be found sooner."""
    it = small()
    it.run(WARM)
    it.probes.book.moved = {(nic, peer) for nic, peer, _ in it.probes.book._forward}
    lead(it, "spine2", None)
    it.run(200 * MS)
    assert it.ever_in("DOWN") == {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}


@pytest.mark.parametrize("names", ["leaves and spines", "ports"])
def test_links_that_get_other_names_are_not_down(names: str) -> None:
    """A topology file comes, or has other names: nothing crosses the old ones any more."""

    def named(end: str) -> str:
        node, _, port = end.rpartition(":")
        if not node.startswith(("leaf", "spine")):
            return end
        return f"{node}:Ethernet{port}" if names == "ports" else f"row1-{node}:{port}.0"

    it = small()
    it.run(20 * S)
    book = it.probes.book
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            links[key] = tuple(">".join(map(named, link.split(">"))) for link in route)
    book.version += 1
    it.run(4 * S)
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize(("spines", "seed"), [(24, 1), (24, 2), (8, 3)])
def test_flows_that_are_hashed_again_leave_no_living_link_dead(spines: int, seed: int) -> None:
    """One spine goes, and every flow takes another way: of the few paths over each link, all leave some."""
    fleet = Fleet(Shape(hosts=32, hosts_per_rack=4, spines=spines), seed)
    it = Watched(fleet, seed, peers=7, rate_hz=200.0)
    it.run(WARM)
    book, chance, ids = it.probes.book, random.Random(seed), fleet.link_ids
    for links in (book._forward, book._reverse):
        for key, route in sorted(links.items()):
            if len(route) == 4:
                near, far = route[0].split(">")[1].split(":")[0], route[2].split(">")[1].split(":")[0]
                to = f"spine{chance.randint(2, spines)}"
                links[key] = (route[0], ids[it.link(near, to)], ids[it.link(to, far)], route[3])
    book.version += 1
    it.run(3 * S)
    gone = {it.cable(f"leaf{n}", "spine1") for n in range(1, 9)}
    assert it.ever_in("DOWN") <= gone
    if spines == 8:
        assert it.ever_in("DOWN") == gone, "and with paths enough it is told"


def test_paths_that_are_hashed_again_take_no_link_down() -> None:
    it = small()
    it.run(WARM)
    lead(it, "spine2", None)
    lead(it, "spine1", "spine2")
    it.run(2 * S)
    assert not {cable for cable in it.ever_in("DOWN") if "spine2" in cable}
    for kind in ("GREY", "FLAPPING"):
        assert it.ever_in(kind) == set()

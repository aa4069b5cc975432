"""Hosts whose NIC is a bond over two leaves: each member is a cable of its own."""

from __future__ import annotations

import numpy as np

from schemas.ids import cable_id
from tests.streams.links.watched import MS, WARM, Watched, small


def bonded() -> Watched:
    """Give each rack a second leaf, `b`: two bits of a path's port choose the members at its two ends."""
    it = small()
    probes, fleet = it.probes, it.fleet
    names, links = fleet.link_ids, fleet.links
    probes.down, probes.loss = np.zeros(2 * links + 1, np.bool_), np.zeros(2 * links + 1)

    def name(link: int) -> str:
        return names[link] if link < links else names[link - links].replace("leaf", "leafb")

    def chosen(route: list[int], first: bool, last: bool) -> list[int]:
        half = len(route) // 2
        return [link + links * (first if at < half else last) for at, link in enumerate(route)]

    for path, port in enumerate(probes.port.tolist()):
        here, there = port % 2 == 1, port // 2 % 2 == 1
        known = probes.links[path][probes.links[path] >= 0].tolist()
        half = len(known) // 2
        if half == 2 and here != there:  # one rack: the leaves have no link to each other
            there = here
        out, back = chosen(known[:half], here, there), chosen(known[half:], there, here)
        probes.links[path, : len(known)] = out + back
        key = (fleet.nic_ids[probes.src[path]], fleet.nic_ids[probes.dst[path]], port)
        probes.book._forward[key] = tuple(map(name, out))
        probes.book._reverse[key] = tuple(map(name, back))
    return it


def test_a_dead_member_is_its_cable_and_nothing_else() -> None:
    it = bonded()
    it.run(WARM)
    dead = it.link("h1", "leaf1") + it.fleet.links
    it.probes.down[dead] = True
    it.run(600 * MS)
    cable = cable_id(it.fleet.link_ids[dead - it.fleet.links].replace("leaf", "leafb"))
    assert it.ever_in("DOWN") == {cable}
    assert it.ever_in("GREY") == set(), "the bond's other member, and the NIC, are well"
    it.probes.down[dead] = False
    it.run(3500 * MS)
    assert it.state(cable) == "UP"


def test_a_bond_without_carrier_takes_down_both_members() -> None:
    it = bonded()
    it.run(WARM)
    own = [it.link("h1", "leaf1"), it.link("leaf1", "h1")]
    both = [*own, *(link + it.fleet.links for link in own)]
    it.probes.down[both] = True
    it.port("h1/eth1", False)
    cable = it.cable("h1", "leaf1")
    cables = {cable, cable.replace("leaf", "leafb")}
    assert {name for name in cables if it.state(name) == "DOWN"} == cables
    it.run(500 * MS)
    assert it.ever_in("DOWN") == cables
    it.port("h1/eth1", True)
    it.probes.down[:] = False
    it.run(3500 * MS)
    assert {it.state(name) for name in cables} == {"UP"}

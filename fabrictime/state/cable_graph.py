"""Builds the graph of the fabric's cables: nodes, tiers, and the place of each NIC.

Links get numbers; `Plan` is the drawing. A node's tier is its distance from the nearest host: leaf 1, spine
2, core 3. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.ids import natural

MOST_CABLES: Final = 131_072
"""Cables that are known by number; further ones are counted, not shown."""


class End(NamedTuple):
    """A port of a node."""

    node: str
    port: str


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC of the inventory, as far as it is drawn."""

    nic: str
    host: str
    device: str
    rack: str | None
    rail: int | None
    speed_bps: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is drawn: nodes tier by tier, cables, NICs.

    `cables[k]` is (lower node, its port, upper node, its port), nodes by their place in `nodes`;
    `links[2 * k]` is the number of its link upwards, `links[2 * k + 1]` of the one downwards. `nics[i]` is
    (name, host's place, rack's place, rail or -1, cable or -1, the leaf's place or -1).
    """

    nodes: list[tuple[str, int]]
    cables: list[tuple[int, str, int, str]]
    links: list[int]
    nics: list[tuple[str, int, int, int, int, int]]
    racks: list[str]
    refused: int


def ends_of(link: str) -> tuple[End, End] | None:
    """Return both ends of a directed link's id (or a cable's), the sender first; None for no such id."""
    near, arrow, far = link.partition("<>" if "<>" in link else ">")
    if not arrow or ">" in far:
        return None
    (node, colon, port), (far_node, far_colon, far_port) = near.rpartition(":"), far.rpartition(":")
    if not (colon and far_colon and node and far_node):
        return None
    return End(node, port), End(far_node, far_port)


class CableGraph:
    """Cables by number: cable c carries link 2c from the end whose id sorts first, and link 2c + 1 back."""

    def __init__(self) -> None:
        self.version = 0
        self.refused = 0
        self._cables: dict[tuple[End, End], int] = {}
        self._ends: list[tuple[End, End]] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return 2 * len(self._ends)

    def number(self, link: str) -> int | None:
        """Return the number of a directed link, learned where it is new; None where it is no link's id.

        Of a cable's id (`a<>b`) it is the link that comes first.
        """
        found = self._numbers.get(link)
        if found is not None:
            return found
        ends = ends_of(link)
        if ends is None:
            return None
        near, far = ends
        swapped = f"{far.node}:{far.port}" < f"{near.node}:{near.port}"
        key = (far, near) if swapped else (near, far)
        cable = self._cables.get(key)
        if cable is None:
            if len(self._ends) >= MOST_CABLES:
                self.refused += 1
                return None
            cable = self._cables[key] = len(self._ends)
            self._ends.append(key)
            self.version += 1
        number = 2 * cable + swapped
        self._numbers[link] = number
        return number

    def known(self, link: str) -> int | None:
        """Return the number of a link (or of a cable's first link) that was met before."""
        found = self._numbers.get(link)
        ends = ends_of(link) if found is None else None
        if ends is None:
            return found
        for k, key in enumerate((ends, (ends[1], ends[0]))):
            if key in self._cables:
                return 2 * self._cables[key] + k
        return None

    def name(self, number: int) -> str:
        """Return the id of a link."""
        first, second = self._ends[number >> 1]
        near, far = (second, first) if number & 1 else (first, second)
        return f"{near.node}:{near.port}>{far.node}:{far.port}"

    def cable(self, number: int) -> str:
        """Return the id of a link's cable."""
        first, second = self._ends[number >> 1]
        return f"{first.node}:{first.port}<>{second.node}:{second.port}"

    def ends(self, number: int) -> tuple[End, End]:
        """Return where a link begins and ends."""
        first, second = self._ends[number >> 1]
        return (second, first) if number & 1 else (first, second)

    def plan(self, nics: Iterable[Nic], drawn: Callable[[int], bool]) -> Plan:
        """Return the drawing: the cables for which `drawn(cable)` is true, and all NICs."""
        listed = sorted(nics, key=lambda n: (natural(n.host), natural(n.device)))
        cables = [cable for cable in range(len(self._ends)) if drawn(cable)]
        hosts = {nic.host for nic in listed}
        tier = _tiers(hosts, [(self._ends[c][0].node, self._ends[c][1].node) for c in cables])
        names = sorted(tier, key=lambda name: (tier[name], natural(name)))
        place = {name: k for k, name in enumerate(names)}
        wired: list[tuple[int, str, int, str, int]] = []
        for cable in cables:
            low, high = self._ends[cable]
            up = 2 * cable
            if (tier[low.node], place[low.node]) > (tier[high.node], place[high.node]):
                low, high, up = high, low, up + 1
            wired.append((place[low.node], low.port, place[high.node], high.port, up))
        wired.sort(key=lambda w: (w[0], w[2], natural(w[1])))
        at_host = {(low, port): k for k, (low, port, *_) in enumerate(wired) if tier[names[low]] == 0}
        drawn_nics, racks = _racked(listed, place, at_host, [w[2] for w in wired], names)
        return Plan(
            [(name, tier[name]) for name in names],
            [w[:4] for w in wired],
            [number for w in wired for number in (w[4], w[4] ^ 1)],
            drawn_nics,
            racks,
            self.refused,
        )


def _tiers(hosts: Collection[str], cables: list[tuple[str, str]]) -> dict[str, int]:
    """Distance of each node from the nearest host; a node without a path to a host gets the highest tier."""
    beside: dict[str, list[str]] = {}
    for a, b in cables:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    tier = dict.fromkeys(hosts, 0)
    edge, depth = list(hosts), 0
    while edge:
        depth += 1
        further = []
        for node in edge:
            for other in beside.get(node, ()):
                if other not in tier:
                    tier[other] = depth
                    further.append(other)
        edge = further
    top = max(tier.values(), default=0) + 1
    return {**{node: top for node in beside if node not in tier}, **tier}


def _racked(
    nics: list[Nic],
    place: dict[str, int],
    at_host: dict[tuple[int, str], int],
    upper: list[int],
    names: list[str],
) -> tuple[list[tuple[str, int, int, int, int, int]], list[str]]:
    """NICs with rack and leaf; a host without a rack stands with those on the same leaves."""
    cable_of = {nic.nic: at_host.get((place[nic.host], nic.device), -1) for nic in nics}
    leaves: dict[str, set[int]] = {}
    for nic in nics:
        if cable_of[nic.nic] >= 0:
            leaves.setdefault(nic.host, set()).add(upper[cable_of[nic.nic]])
    rack_of: dict[str, str] = {}
    for nic in nics:
        if nic.rack:
            rack_of[nic.host] = nic.rack
        elif nic.host not in rack_of:
            under = sorted(leaves.get(nic.host, ()))
            rack_of[nic.host] = "under " + ", ".join(names[k] for k in under[:2]) if under else ""
    racks = sorted(set(rack_of.values()), key=natural)
    where = {rack: k for k, rack in enumerate(racks)}
    return [
        (
            nic.nic,
            place[nic.host],
            where[rack_of[nic.host]],
            -1 if nic.rail is None else nic.rail,
            cable_of[nic.nic],
            upper[cable_of[nic.nic]] if cable_of[nic.nic] >= 0 else -1,
        )
        for nic in nics
    ], racks

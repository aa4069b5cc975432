"""Cables, nodes and tiers of the fabric, by the names in records.

Links get small numbers, so that other modules can keep arrays by link. `CableGraph.plan` lays out the part of
the fabric that the web page draws. A node's tier is its distance from the nearest host: leaf 1, spine 2, core
3.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from schemas.ids import End, end_parts, natural

MAX_CABLES: Final = 131_072
"""Largest number of cables that get a number. Further ones are counted, but not shown."""


@dataclass(frozen=True, slots=True)
class Nic:
    """The fields of a NIC that the page draws or uses for its layout."""

    nic: str
    host: str
    device: str
    rack: str | None
    rail: int | None
    speed_bps: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The drawn topology: nodes tier by tier, cables and NICs.

    `cables[k]` is (lower node, its port, upper node, its port); nodes are indices into `nodes`. `links[2 *
    k]` is the number of the uplink of cable k, `links[2 * k + 1]` the number of its downlink. `nics[i]` is
    (name, index of the host, index of the rack, rail or -1, cable or -1, index of the leaf or -1).
    """

    nodes: list[tuple[str, int]]
    cables: list[tuple[int, str, int, str]]
    links: list[int]
    nics: list[tuple[str, int, int, int, int, int]]
    racks: list[str]
    refused: int
    number: int
    """Differs between the plans of a graph."""


def ends_of(link: str) -> tuple[End, End] | None:
    """Return both ends of a link (the sender first) or cable; None if the id is malformed."""
    near, arrow, far = link.partition("<>" if "<>" in link else ">")
    if not arrow or ">" in far:
        return None
    ends = end_parts(near), end_parts(far)
    return ends if all(end.node and end.port for end in ends) else None


def _text(end: End) -> str:
    """Return an end as `node:port`, the format of ids, unchecked: records may carry any name."""
    return f"[{end.node}]:{end.port}" if ":" in end.node else f"{end.node}:{end.port}"


class CableGraph:
    """Numbers cables. Cable c has link 2c, which starts at the first end, and link 2c + 1 back."""

    def __init__(self) -> None:
        self.version = 0
        self.refused = 0
        self._cables: dict[tuple[End, End], int] = {}
        self._ends: list[tuple[End, End]] = []
        self._numbers: dict[str, int] = {}
        self._adding = threading.Lock()
        """States of several moments share a graph."""
        self._plan_numbers = itertools.count()
        self._last_plan: tuple[tuple[dict[str, Nic], list[int], int], Plan] | None = None
        """The newest plan, after the NICs and cables that it shows."""

    def __len__(self) -> int:
        return 2 * len(self._ends)

    def number(self, link: str) -> int | None:
        """Return the number of a link; a new link gets one. None if the id is malformed or the graph is full.

        A cable id (`a<>b`) stands for the cable's first link.
        """
        number = self._numbers.get(link)
        if number is not None:
            return number
        ends = ends_of(link)
        if ends is None:
            return None
        with self._adding:
            return self._new_number(link, *ends)

    def _new_number(self, link: str, near: End, far: End) -> int | None:
        swapped = _text(far) < _text(near)
        key = (far, near) if swapped else (near, far)
        cable = self._cables.get(key)
        if cable is None:
            if len(self._ends) >= MAX_CABLES:
                self.refused += 1
                return None
            cable = self._cables[key] = len(self._ends)
            self._ends.append(key)
            self.version += 1
        number = 2 * cable + swapped
        self._numbers[link] = number
        return number

    def existing_number(self, link: str) -> int | None:
        """Return the number of a link (or of a cable's first link), or None if it has no number."""
        number = self._numbers.get(link)
        ends = ends_of(link) if number is None else None
        if ends is None:
            return number
        for k, key in enumerate((ends, (ends[1], ends[0]))):
            if key in self._cables:
                return 2 * self._cables[key] + k
        return None

    def name(self, number: int) -> str:
        """Return the id of the link with this number."""
        near, far = self.ends(number)
        return f"{_text(near)}>{_text(far)}"

    def cable(self, number: int) -> str:
        """Return the id of the cable of the link with this number."""
        first, second = self._ends[number >> 1]
        return f"{_text(first)}<>{_text(second)}"

    def ends(self, number: int) -> tuple[End, End]:
        """Return the sending and the receiving port of the link with this number."""
        first, second = self._ends[number >> 1]
        return (second, first) if number & 1 else (first, second)

    def plan(self, nics: Iterable[Nic], is_drawn: Callable[[int], bool]) -> Plan:
        """Lay out all NICs and the cables for which `is_drawn(cable)` is true.

        All moments of an unchanged fleet share one plan, so that a browser receives and lays it out only
        once.
        """
        content = (
            {nic.nic: nic for nic in nics},
            [c for c in range(len(self._ends)) if is_drawn(c)],
            self.refused,
        )
        last = self._last_plan
        if last is None or last[0] != content:
            last = self._last_plan = content, self._laid_out(content[0].values(), content[1])
        return last[1]

    def _laid_out(self, nics: Iterable[Nic], cables: list[int]) -> Plan:
        listed = sorted(nics, key=lambda n: (natural(n.host), natural(n.device)))
        hosts = {nic.host for nic in listed}
        tier = _tiers(hosts, [(self._ends[c][0].node, self._ends[c][1].node) for c in cables])
        names = sorted(tier, key=lambda name: (tier[name], natural(name)))
        index = {name: k for k, name in enumerate(names)}
        # `index` grows with the tier: the end with the smaller one is the lower end.
        drawn: list[tuple[int, str, int, str, int]] = []
        for cable in cables:
            uplink = 2 * cable + (index[self._ends[cable][0].node] > index[self._ends[cable][1].node])
            low, high = self.ends(uplink)
            drawn.append((index[low.node], low.port, index[high.node], high.port, uplink))
        drawn.sort(key=lambda cable: (cable[0], cable[2], natural(cable[1])))
        at_host = {(low, port): k for k, (low, port, *_) in enumerate(drawn) if tier[names[low]] == 0}
        drawn_nics, racks = _racked(listed, index, at_host, [cable[2] for cable in drawn], names)
        return Plan(
            [(name, tier[name]) for name in names],
            [cable[:4] for cable in drawn],
            [number for cable in drawn for number in (cable[4], cable[4] ^ 1)],
            drawn_nics,
            racks,
            self.refused,
            next(self._plan_numbers),
        )


def _tiers(hosts: Collection[str], cables: list[tuple[str, str]]) -> dict[str, int]:
    """Return each node's distance from the nearest host. Nodes without a path to a host form the top tier."""
    neighbours: dict[str, list[str]] = {}
    for a, b in cables:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    tier = dict.fromkeys(hosts, 0)
    edge, depth = list(hosts), 0
    while edge:
        depth += 1
        further = []
        for node in edge:
            for other in neighbours.get(node, ()):
                if other not in tier:
                    tier[other] = depth
                    further.append(other)
        edge = further
    top = max(tier.values(), default=0) + 1
    return {**{node: top for node in neighbours if node not in tier}, **tier}


def _leaves_text(leaves: Iterable[int], names: list[str]) -> str:
    under = [names[leaf] for leaf in sorted(leaves)[:2]]
    return f"under {', '.join(under)}" if under else ""


def _racked(
    nics: list[Nic],
    index: dict[str, int],
    at_host: dict[tuple[int, str], int],
    upper: list[int],
    names: list[str],
) -> tuple[list[tuple[str, int, int, int, int, int]], list[str]]:
    """Return the drawn NICs with their racks and leaves, and the names of the racks. Hosts without a rack are
    grouped by their leaves.
    """
    cable_of = {nic.nic: at_host.get((index[nic.host], nic.device), -1) for nic in nics}
    leaves: dict[str, set[int]] = {}
    for nic in nics:
        if cable_of[nic.nic] >= 0:
            leaves.setdefault(nic.host, set()).add(upper[cable_of[nic.nic]])
    rack_of = {nic.host: _leaves_text(leaves.get(nic.host, ()), names) for nic in nics}
    rack_of |= {nic.host: nic.rack for nic in nics if nic.rack}
    racks = sorted(set(rack_of.values()), key=natural)
    rack_index = {rack: k for k, rack in enumerate(racks)}
    rows = []
    for nic in nics:
        cable = cable_of[nic.nic]
        rail = -1 if nic.rail is None else nic.rail
        leaf = upper[cable] if cable >= 0 else -1
        rows.append((nic.nic, index[nic.host], rack_index[rack_of[nic.host]], rail, cable, leaf))
    return rows, racks

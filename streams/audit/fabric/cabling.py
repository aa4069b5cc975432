"""Compares cables with the plan in the topology file, and finds the swaps that repair them. Pure.

Two cables that changed places are one cause, 'swap leaf3 port swp7 and port swp8', however many paths cross
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas.ids import natural
from schemas.records import AuditStatus, PathSource
from schemas.topology import End, end_text, split_end
from streams.alerts.wiring import parse_contradiction
from streams.audit.fabric.misplaced import misplaced
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found


def swap_text(a: End, b: End) -> str:
    """Return the remedy for two ports whose cables changed places, as text."""
    a, b = sorted((a, b), key=_by_name)
    return f"swap {a.node} port {a.port} and {'' if a.node == b.node else f'{b.node} '}port {b.port}"


@dataclass(frozen=True, slots=True)
class Swap:
    """Two cables that changed places. `ends`: their ends nearer to hosts; `ports`: their other ends."""

    ends: tuple[End, End]
    ports: tuple[End, End]

    @property
    def remedy(self) -> str:
        """Text of the remedy: an exchange at one switch or host if the cables meet there."""
        meet_below = self.ends[0].node == self.ends[1].node and self.ports[0].node != self.ports[1].node
        return swap_text(*(self.ends if meet_below else self.ports))


class Cabling:
    """Differences of traced cables from the plan. `actual`: each end of a traced cable to its far end."""

    def __init__(self, fabric: FabricRecords, actual: Mapping[End, End]) -> None:
        self._fabric, self.actual = fabric, actual
        self._topology = fabric.topology
        self._wrong: dict[End, End] = {}
        """Maps end to its actual far end, if the plan has another one."""
        for end in sorted(actual, key=_by_name):
            planned = self._topology.far(end)
            is_planned_port = self._topology.far(actual[end]) is not None
            if planned is not None and planned != actual[end] and is_planned_port:
                self._wrong[end] = actual[end]
        self._contradicted = dict(_contradictions(fabric))
        self._in_swap: set[End] = set()
        self.swaps = [*self._swaps_by_port(), *self._swaps_by_node()]
        """Pairs of cables that changed places."""

    def findings(self) -> Iterator[Found]:
        """Yield the ends of cables that differ from the plan, or a single PASSED finding."""
        if not any(True for _ in self._topology.links()):
            yield Found(FLEET, "", AuditStatus.SKIPPED, "no topology file: no plan to compare cables with")
            return
        checked = sum(self._topology.far(end) is not None for end in self.actual)
        if not checked and not self._contradicted:
            yield Found(FLEET, "", AuditStatus.UNKNOWN, "no traced route: cables could not be compared")
            return
        for swap in self.swaps:
            a, b = (end_text(end) for end in swap.ends)
            text = f"the cables of {a} and {b} are swapped, by the plan and by traces"
            yield from self._of_ends(swap.ends, text, swap.remedy)
        moved = list(self._moves())
        for end, there, planned in moved:
            text = f"{end_text(end)} is wired to {there}, the plan has {end_text(planned)}"
            yield from self._of_ends(
                (end,), text, f"move the cable of {end_text(end)} to {end_text(planned)}"
            )
        if not self.swaps and not moved:
            yield Found(FLEET, "", AuditStatus.PASSED, f"{checked} ends of cables are as planned")

    def _of_ends(self, ends: tuple[End, ...], text: str, remedy: str) -> Iterator[Found]:
        names = [end_text(end) for end in ends]
        nics = [self._fabric.nic_at[name] for name in names if name in self._fabric.nic_at]
        for nic in nics:
            yield self._fabric.of_nic(nic, AuditStatus.FAILED, text, remedy)
        if not nics:
            yield Found(FLEET, " and ".join(names), AuditStatus.FAILED, text, remedy)

    def _swaps_by_port(self) -> Iterator[Swap]:
        """Yield the swaps whose two ports are both known."""
        for end, port in self._wrong.items():
            planned, other = self._topology.far(end), self._topology.far(port)
            if end in self._in_swap or planned is None or other is None:
                continue
            if self.actual.get(other, planned) == planned:
                below, above = (end, other), (port, planned)
                if self._is_lower(port, end):
                    below, above = above, below
                self._in_swap |= {*below, *above}
                yield Swap(below, above)

    def _swaps_by_node(self) -> Iterator[Swap]:
        """Yield the swaps of which only the switches are known, not the ports; swaps at one node first."""
        unpaired = {end: at for end, at in self._contradicted.items() if end not in self._in_swap}
        for end in sorted(unpaired, key=_by_name):
            if end not in unpaired:
                continue
            planned, node = unpaired[end]
            partners = [
                other
                for other, (port, at) in unpaired.items()
                if other != end and port.node == node and at == planned.node
            ]
            if partners:
                other = min(partners, key=lambda partner: (partner.node != end.node, _by_name(partner)))
                ports = (unpaired[other][0], planned)
                self._in_swap |= {end, other, *ports}
                del unpaired[end], unpaired[other]
                below, above = ((end, other), ports)
                if self._is_lower(planned, end):
                    below, above = above, below
                yield Swap(below, above)

    def _moves(self) -> Iterator[tuple[End, str, End]]:
        """Yield the other misplaced ends, each with the port or node where it is, and the planned port."""
        for end, port in self._wrong.items():
            planned = self._topology.far(end)
            if planned is not None and end not in self._in_swap and not self._is_lower(port, end):
                yield end, end_text(port), planned
        for end, (planned, node) in self._contradicted.items():
            if not {end, planned} & (self._in_swap | self._wrong.keys()):
                yield end, node, planned

    def _is_lower(self, a: End, b: End) -> bool:
        """Return whether end `a` is nearer to hosts than end `b`, by the tiers of their nodes."""
        tiers = [
            0 if node in self._fabric.hosts else self._topology.tier(node) or 9 for node in (a.node, b.node)
        ]
        return tiers[0] < tiers[1]


def _contradictions(fabric: FabricRecords) -> Iterator[tuple[End, tuple[End, str]]]:
    """Yield the ends that traces contradict, each with its planned far end and the actual far node.

    A trace contradicts both cables that meet at a switch; routes combined show which cable is misplaced.
    Otherwise, each trace's own statement counts.
    """
    routes = [
        path["links"]
        for record in fabric.paths
        for path in record["paths"]
        if path["found"] != PathSource.TOPOLOGY
    ]
    misplaced_ends = misplaced(routes, fabric.topology)
    if misplaced_ends:
        yield from misplaced_ends.items()
        return
    for record in fabric.paths:
        for path in record["paths"]:
            for part in (path["contradiction"] or "").split("; "):
                parsed = parse_contradiction(part)
                if parsed is not None:
                    yield split_end(parsed[0]), (split_end(parsed[1]), parsed[2])


def _by_name(end: End) -> list[tuple[int, int, str]]:
    return natural(end_text(end))

"""The traced fabric: switches by tier, cables with the paths that cross them, and wrong cabling.

Pure: takes routes and announcements, returns a snapshot or a topology file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from schemas.ids import cable_id, link_id, natural
from schemas.records import Nic, PathSource
from schemas.topics import PATHS
from schemas.topology import (
    LAYER_2,
    CableEntry,
    End,
    Kind,
    NodeEntry,
    Topology,
    TopologyFile,
    end_text,
    nic_end,
    split_end,
)
from streams.alerts.wiring import Misfit, misfits_of
from streams.audit.fabric.misplaced import misplaced
from streams.runtime.route_table import Route, RouteTable
from streams.runtime.switch_names import (
    Groups,
    SwitchNames,
    address_of,
    by_name,
    is_address,
    leaf_name,
    names_of,
)

TIERS: Final = ("host", "leaf", "spine", "core")


@dataclass(frozen=True, slots=True)
class CableLine:
    """A cable and its rate. `up` and `down` are the numbers of paths over it away from and towards hosts."""

    cable: str
    lower: str
    upper: str
    up: int
    down: int
    rate_bps: int
    listed: bool

    @property
    def seen(self) -> bool:
        """Whether any path crosses the cable."""
        return bool(self.up or self.down)


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A host or a switch. A node without a name is identified by its `addresses`."""

    node: str
    tier: int
    rail: int | None
    nics: tuple[str, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """The fabric's nodes and cables according to its traced paths."""

    nodes: list[NodeLine]
    cables: list[CableLine]
    misfits: list[Misfit]
    contradictions: list[tuple[str, int]]
    """(contradiction with the topology file, number of paths that show it)."""
    misplaced: list[str]
    """A line for each cable that ends at another switch than planned, and so explains contradictions."""
    paths: int
    complete: int
    paths_by_source: dict[str, int]
    silent: list[str]
    """NICs that announce themselves but have no known path."""
    unreadable: int = 0

    @property
    def unseen(self) -> list[CableLine]:
        """Cables that the topology file lists and that no path crosses."""
        return [line for line in self.cables if line.listed and not line.seen]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of nodes by tier, cables, paths and contradictions, by name."""
        return {
            **{plural(kind): sum(TIERS[node.tier] == kind for node in self.nodes) for kind in TIERS},
            "cables": len(self.cables),
            "unseen": len(self.unseen),
            "paths": self.paths,
            "complete": self.complete,
            "found": self.paths_by_source,
            "misfits": len(self.misfits),
            "contradictions": sum(count for _, count in self.contradictions),
            "silent": len(self.silent),
        }

    def wrong(self) -> list[str]:
        """Return a line for each defect of the fabric or of its traces; empty without defects."""
        if not self.paths:
            return [f"no path in {PATHS.name}, expected at least one"]
        lines = [f"{m.nic}: rail {m.rail} on {m.leaf}: {m.evidence}" for m in self.misfits]
        lines += self.misplaced
        lines += [f"{text} ({count} paths)" for text, count in self.contradictions]
        lines += [f"{line.cable}: no path crosses it" for line in self.unseen]
        lines += [f"{nic}: nothing is known of its paths" for nic in self.silent]
        if self.complete < self.paths:
            lines.append(f"{self.paths - self.complete} of {self.paths} paths are not known from end to end")
        return lines


@dataclass(slots=True)
class _Traces:
    """Counts of links, sources and contradictions over all traced paths."""

    names: set[SwitchNames] = field(default_factory=set)
    crossed: Counter[str] = field(default_factory=Counter)
    """Link to the number of paths that cross it."""
    paths_by_source: Counter[str] = field(default_factory=Counter)
    contradictions: Counter[str] = field(default_factory=Counter)
    first_hop: dict[str, str] = field(default_factory=dict)
    nics_with_links: set[str] = field(default_factory=set)
    """NICs with a path of which some link is known."""
    paths: int = 0
    complete: int = 0

    def add(self, nic: str, peer: str, path: Route) -> None:
        """Count one traced path of a NIC."""
        self.paths += 1
        self.complete += path.complete
        self.paths_by_source[path.found] += 1
        if path.contradiction is not None:
            self.contradictions[path.contradiction] += 1
        if not path.links:
            return
        self.nics_with_links.add(nic)
        self.crossed.update(path.links)
        self.names.add(names_of(nic, peer, path.links, path.complete))
        near, far = _ends(path.links[0])
        if near == nic_end(nic):
            self.first_hop[nic] = far.node

    def switches(self) -> _Switches:
        """Return a finder of the switch at a link's end, from all names of switches."""
        groups = Groups()
        joins = {join for switch_names in self.names for join in switch_names.joins}
        leaves = {names for switch_names in self.names for names in switch_names.leaves}
        anycast = {address for switch_names in self.names for address in switch_names.anycast}
        groups.add(joins, leaves, anycast)
        return _Switches(groups, anycast)


@dataclass(frozen=True, slots=True)
class _Switches:
    """Finds the switch at a link's end. A switch may have several names."""

    groups: Groups
    anycast: Collection[str]
    """Addresses that several leaves have."""

    def at(self, end: End) -> str:
        """Return the node at an end. An anycast leaf is identified by its port, which has the NIC's name."""
        return self.groups.find(leaf_name(end.node, end.port) if end.node in self.anycast else end.node)


def picture_of(
    book: RouteTable, nics: Mapping[str, Nic], topology: Topology | None = None, unreadable: int = 0
) -> Picture:
    """Return the fabric according to the paths. `nics` are the announcements of the NICs that are alive."""
    topology = topology if topology is not None else Topology()
    traces, traced = _Traces(), []
    for nic, peer in book.pairs():
        for path in book.paths(nic, peer).values():
            traces.add(nic, peer, path)
            if path.found != PathSource.TOPOLOGY:
                traced.append(path.links)
    switches = traces.switches()
    listed = topology.cable_ids()
    cables = sorted({cable_id(link) for link in traces.crossed} | listed)
    hosts = {nic_end(name).node for name in {*chain(*book.pairs()), *nics}}
    tiers = _tiers(cables, hosts, switches, topology)
    leaf_of = {nic: switches.at(End(node, nic.replace("/", "."))) for nic, node in traces.first_hop.items()}
    lines = [
        _cable_line(cable, traces.crossed, tiers, switches, nics, topology, cable in listed)
        for cable in cables
    ]
    return Picture(
        _node_lines(tiers, cables, leaf_of, switches, nics, topology),
        sorted(lines, key=lambda line: (by_name(line.lower), by_name(line.upper), line.cable)),
        misfits_of(
            {nic: leaf for nic, leaf in leaf_of.items() if leaf != LAYER_2},
            {nic: record["rail"] for nic, record in nics.items()},
            topology,
        ),
        traces.contradictions.most_common(),
        _misplaced(traced, topology) if traces.contradictions else [],
        traces.paths,
        traces.complete,
        dict(sorted(traces.paths_by_source.items())),
        sorted((nic for nic in nics if nic not in traces.nics_with_links), key=natural),
        unreadable,
    )


def _misplaced(routes: Iterable[Sequence[str]], topology: Topology) -> list[str]:
    misplaced_ends = sorted(misplaced(routes, topology).items(), key=lambda item: by_name(end_text(item[0])))
    return [
        f"{end_text(end)} is wired to {there.node}, the file wires it to {end_text(there.planned)}"
        for end, there in misplaced_ends
    ]


def _node_lines(
    tiers: Mapping[str, int],
    cables: Iterable[str],
    leaves: Mapping[str, str],
    switches: _Switches,
    nics: Mapping[str, Nic],
    topology: Topology,
) -> list[NodeLine]:
    of_leaf: dict[str, list[str]] = defaultdict(list)
    for nic, node in sorted(leaves.items()):
        of_leaf[node].append(nic)
    addresses: dict[str, set[str]] = defaultdict(set)
    for end in {end for cable in cables for end in cable.split("<>")}:
        node = split_end(end).node
        if is_address(node):
            addresses[switches.at(split_end(end))].add(node)
    return [
        NodeLine(
            name,
            tiers[name],
            topology.nodes[name].rail if name in topology.nodes else _rail(of_leaf.get(name, ()), nics),
            tuple(of_leaf.get(name, ())),
            tuple(sorted(addresses[name], key=by_name)),
        )
        for name in sorted(tiers, key=lambda name: (tiers[name], by_name(name)))
    ]


def _tiers(cables: Iterable[str], hosts: set[str], switches: _Switches, topology: Topology) -> dict[str, int]:
    """Return the tier of each node from the topology file, else its distance from the nearest host."""
    near: dict[str, set[str]] = defaultdict(set)
    for cable in cables:
        a, b = (switches.at(split_end(text)) for text in cable.split("<>"))
        near[a].add(b)
        near[b].add(a)
    tier_of = {host: 0 for host in hosts if host in near}
    edge = list(tier_of)
    while edge:
        further = []
        for node in edge:
            for other in near[node]:
                if other not in tier_of:
                    tier_of[other] = min(tier_of[node] + 1, len(TIERS) - 1)
                    further.append(other)
        edge = further
    for node in near:
        tier = topology.tier(node)
        tier_of[node] = tier if tier is not None else tier_of.get(node, len(TIERS) - 1)
    return tier_of


def _cable_line(
    cable: str,
    crossed: Mapping[str, int],
    tiers: Mapping[str, int],
    switches: _Switches,
    nics: Mapping[str, Nic],
    topology: Topology,
    listed: bool,
) -> CableLine:
    a, b = (split_end(text) for text in cable.split("<>"))
    if tiers[switches.at(a)] > tiers[switches.at(b)]:
        a, b = b, a
    up, down = link_id(*a, *b), link_id(*b, *a)
    nic = nics.get(f"{a.node}/{a.port}")
    rate_bps = topology.rate_bps(up) or (nic["speed_bps"] if nic is not None else None) or 0
    return CableLine(
        cable, switches.at(a), switches.at(b), crossed.get(up, 0), crossed.get(down, 0), rate_bps, listed
    )


def _rail(of_leaf: Sequence[str], nics: Mapping[str, Nic]) -> int | None:
    rails = Counter(rail for nic in of_leaf if nic in nics and (rail := nics[nic]["rail"]) is not None)
    if not rails:
        return None
    rail, count = rails.most_common(1)[0]
    return int(rail) if 2 * count > rails.total() else None


def _ends(link: str) -> tuple[End, End]:
    near, _, far = link.partition(">")
    return split_end(near), split_end(far)


def file_of(picture: Picture) -> TopologyFile:
    """Return the traced topology as a topology file. A node without a known name is named by its address."""
    kinds: dict[int, Kind] = {0: "host", 1: "leaf", 2: "spine", 3: "core"}
    called = {
        node.node: f"{kinds[node.tier]}-{node.node}" if is_address(node.node) else node.node
        for node in picture.nodes
    }
    group_of = {address: node.node for node in picture.nodes for address in node.addresses}
    ports: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    shared: dict[str, set[str]] = defaultdict(set)
    cables = []
    for line in picture.cables:
        ends = []
        for text in line.cable.split("<>"):
            end = split_end(text)
            node = group_of.get(end.node, end.node)
            address = address_of(end.node)
            port = end.port
            if address is not None and end.port == "ip":
                port = end.node
                ports[node][port] = (address,)
            elif address is not None:
                ports[node].setdefault(port, ())
                shared[node].add(address)
            else:
                ports[node].setdefault(port, ())
            ends.append(f"{called.get(node, node)}:{port}")
        cables.append(CableEntry(ends=(ends[0], ends[1]), rate_bps=line.rate_bps))
    return TopologyFile(
        nodes=tuple(
            NodeEntry(
                name=called[node.node],
                kind=kinds[node.tier],
                rail=node.rail if node.tier == 1 else None,
                addresses=tuple(sorted(shared[node.node])),
                ports=ports[node.node],
            )
            for node in picture.nodes
        ),
        links=tuple(cables),
    )


def plural(kind: str) -> str:
    """Return the plural of a tier's name."""
    return "leaves" if kind == "leaf" else f"{kind}s"

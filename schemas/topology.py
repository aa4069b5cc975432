"""Reads the topology file: the facts about the fabric that the operator knows and hosts cannot measure.

A TOML or JSON file lists nodes, addresses, cables with rates, and routes of paths that cannot be traced.
`Topology` maps addresses to names, ports to their far ends, links to rates, and pairs of ports to routes. An
invalid file raises `TopologyError` with one line that states the place.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from schemas.ids import End, cable_id, end_id, end_parts, link_id, nic_parts
from schemas.input_error import InputError
from schemas.settings_file import BadFile, read_tables
from schemas.strict_model import StrictModel, quantity

__all__ = [
    "LAYER_2",
    "CableEntry",
    "End",
    "Kind",
    "NodeEntry",
    "PathEntry",
    "Topology",
    "TopologyError",
    "TopologyFile",
    "TopologySource",
    "end_text",
    "load_topology",
    "nic_end",
    "split_end",
]

Kind = Literal["host", "leaf", "spine", "core", "switch"]
TIER_OF: Final[Mapping[str, int | None]] = {"host": 0, "leaf": 1, "spine": 2, "core": 3, "switch": None}
MAX_ROUTES: Final = 64
"""Largest number of routes to find between two ends; callers only ask whether there is exactly one."""


ROUTES_KEPT: Final = 20_000
LAYER_2: Final = "layer-2"
"""Name for the switches, if any, between NICs of one subnet, if no file names them."""


class TopologyError(InputError):
    """The file is invalid; the text is one line with the place and the reason."""


class NodeEntry(StrictModel):
    """A host or a switch in the topology file."""

    name: str = Field(min_length=1, description="the node's name, as ids carry it")
    kind: Kind = Field(default="switch", description="host, leaf, spine, core, or switch")
    rail: int | None = quantity(None, (0, 65535), "rail that a leaf belongs to")
    addresses: tuple[str, ...] = Field(
        default=(), description="addresses of the node itself, such as a loopback that its errors come from"
    )
    ports: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="port to its addresses; a trace is answered from the port it came in by",
    )


class CableEntry(StrictModel):
    """A cable in the topology file; it stands for two directed links."""

    ends: tuple[str, str] = Field(
        description="both ends, node:port; a NIC's is host:device; a bond's device may be in several links"
    )
    rate_bps: int = Field(default=0, ge=0, description="bit/s in each direction; 0: not known")


class PathEntry(StrictModel):
    """The links of an untraceable path from one NIC to another, in the topology file."""

    nic: str = Field(description="where the path begins, host/device")
    peer: str = Field(description="where it ends, host/device")
    path: int | None = Field(default=None, ge=0, description="entropy value; none: whatever it is")
    links: tuple[str, ...] = Field(min_length=1, description="directed links in order, node:port>node:port")


class TopologyFile(StrictModel):
    """The content of a topology file."""

    nodes: tuple[NodeEntry, ...] = ()
    links: tuple[CableEntry, ...] = ()
    paths: tuple[PathEntry, ...] = ()


def nic_end(nic: str) -> End:
    """Return a NIC's port as an end of its cable. Raises ValueError if `nic` is no NIC id."""
    return End(*nic_parts(nic))


def split_end(text: str) -> End:
    """Parse `node:port` or `[node]:port`; see `schemas.ids`. Raises ValueError."""
    address, _, port = text.rpartition(":")
    if ":" in address and _is_address(address):
        raise ValueError(f"end {text!r}: expected [{address}]:{port}")
    end = end_parts(text)
    if not end.port:
        raise ValueError(f"end {text!r}: expected node:port")
    end_id(*end)
    return end


def end_text(end: End) -> str:
    """Return an end of a link as text, `node:port`."""
    return end_id(*end)


class Topology:
    """The indexed content of a topology file. Addresses are compared by value, not by spelling."""

    def __init__(self, file: TopologyFile | None = None, source: str = "topology") -> None:
        """Index a topology file's content. Raises TopologyError with `source` and the invalid place."""
        self.file = file if file is not None else TopologyFile()
        self.source = source
        self.nodes: dict[str, NodeEntry] = {}
        self._at: dict[str, list[tuple[str, str | None]]] = {}
        self._far: dict[End, tuple[End, ...]] = {}
        """End to its far ends: several for a bond."""
        self._rate: dict[str, int] = {}
        self._cables_of: dict[str, list[tuple[End, End]]] = {}
        self._routes: dict[tuple[End | str, End | str, int | None], list[tuple[str, ...]]] = {}
        self._paths: dict[tuple[str, str, int | None], tuple[str, ...]] = {}
        for number, node in enumerate(self.file.nodes, 1):
            self._add_node(f"{source}: nodes[{number}]", node)
        wired: dict[End, int] = {}
        for number, cable in enumerate(self.file.links, 1):
            self._add_cable(f"{source}: links[{number}]", cable, number, wired)
        for number, path in enumerate(self.file.paths, 1):
            self._add_path(f"{source}: paths[{number}]", path)

    def _add_node(self, where: str, node: NodeEntry) -> None:
        if node.name in self.nodes:
            raise TopologyError(f"{where}.name: {node.name!r} is listed twice")
        _checked(where, "name", lambda: end_id(node.name, "p"))
        self.nodes[node.name] = node
        for port, addresses in [(None, node.addresses), *node.ports.items()]:
            if port is not None:
                _checked(where, "ports", lambda port=port: end_id(node.name, port))
            for address in addresses:
                plain = _address(where, address)
                at = self._at.setdefault(plain, [])
                if any(holder == node.name for holder, _ in at):
                    at[:] = [(holder, None if holder == node.name else p) for holder, p in at]
                else:
                    at.append((node.name, port))

    def _add_cable(self, where: str, cable: CableEntry, number: int, wired: dict[End, int]) -> None:
        ends: list[End] = []
        for text in cable.ends:
            end = _checked(where, "ends", lambda text=text: split_end(text))
            ends.append(end)
        a, b = ends
        for end, other in ((a, b), (b, a)):
            if end in wired and not self._may_be_bond(end, other):
                hint = "" if end.node in self.nodes else f" (for a bond, list {end.node} as a host)"
                text = end_text(end)
                raise TopologyError(f"{where}.ends: {text} is wired twice, by links[{wired[end]}] too{hint}")
            wired[end] = number
        if a.node == b.node:
            raise TopologyError(f"{where}.ends: both at {a.node}, expected two nodes")
        for near, far in ((a, b), (b, a)):
            self._far[near] = (*self._far.get(near, ()), far)
        self._cables_of.setdefault(a.node, []).append((a, b))
        self._cables_of.setdefault(b.node, []).append((b, a))
        if cable.rate_bps:
            self._rate[link_id(*a, *b)] = self._rate[link_id(*b, *a)] = cable.rate_bps

    def _may_be_bond(self, end: End, other: End) -> bool:
        """Return whether `end` may have several cables, as a bond: only a port of a host may.

        The port of an unlisted node that is wired to a listed switch counts as a host's.
        """
        entry, beside = self.nodes.get(end.node), self.nodes.get(other.node)
        if entry is not None:
            return entry.kind == "host"
        return beside is not None and beside.kind != "host"

    def _add_path(self, where: str, path: PathEntry) -> None:
        ends = []
        for key in ("nic", "peer"):
            ends.append(_checked(where, key, lambda key=key: nic_end(getattr(path, key))))
        at = ends[0].node
        for text in path.links:
            near, mark, far = text.partition(">")
            if not mark:
                raise TopologyError(f"{where}.links: {text!r}: expected node:port>node:port")
            begin, end = (_checked(where, "links", lambda text=text: split_end(text)) for text in (near, far))
            if begin.node != at:
                raise TopologyError(f"{where}.links: {text} begins at {begin.node}, expected {at}")
            at = end.node
        if len(set(path.links)) != len(path.links):
            raise TopologyError(f"{where}.links: a link is named twice")
        if at != ends[1].node:
            raise TopologyError(f"{where}.links: they end at {at}, expected {ends[1].node}")
        which = (path.nic, path.peer, path.path)
        if which in self._paths:
            raise TopologyError(f"{where}: {path.nic} to {path.peer} path {path.path} is listed twice")
        self._paths[which] = path.links

    def __bool__(self) -> bool:
        """True if the file has any content."""
        return bool(self.nodes or self._far or self._paths)

    @property
    def names_addresses(self) -> bool:
        """Whether the file lists addresses; only then does an unknown address deserve a warning."""
        return bool(self._at)

    def at(self, address: str) -> tuple[str, str | None] | None:
        """Return (node, port) of an address; None if the address is not listed, or if several nodes have it.

        The port is None if the address belongs to the node itself, or to several of its ports.
        """
        places = self._at.get(_plain(address), ())
        return places[0] if len(places) == 1 else None

    def holders(self, address: str) -> Sequence[tuple[str, str | None]]:
        """Return (node, port) of each node that has an address, such as the nodes of an anycast gateway."""
        return self._at.get(_plain(address), ())

    def far(self, end: End) -> End | None:
        """Return the end to which a port is wired; None if it is not listed or wired to several (a bond)."""
        ends = self._far.get(end, ())
        return ends[0] if len(ends) == 1 else None

    def fars(self, end: End) -> Sequence[End]:
        """Return the ends to which a port is wired, one per member of a bond; empty if not listed."""
        return self._far.get(end, ())

    def rate_bps(self, link: str) -> int:
        """Return the rate of a directed link, bit/s; 0 if the link is not listed."""
        return self._rate.get(link, 0)

    def cables(self, node: str, far_node: str) -> list[tuple[End, End]]:
        """Return (near end, far end) of each cable between two nodes."""
        return [pair for pair in self._cables_of.get(node, ()) if pair[1].node == far_node]

    def tier(self, node: str) -> int | None:
        """Return the tier of a node: 0 for a host, 1 for a leaf and so on; None if the node is not listed."""
        entry = self.nodes.get(node)
        return TIER_OF[entry.kind] if entry is not None else None

    def links(self) -> Iterator[str]:
        """Yield the id of every directed link of the file's cables."""
        for near, fars in self._far.items():
            for far in fars:
                yield link_id(*near, *far)

    def cable_ids(self) -> set[str]:
        """Return the ids of all cables in the file."""
        return {cable_id(link) for link in self.links()}

    def listed(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        """Return the links that the file lists for path number `path` of a NIC pair; empty if none."""
        return self._paths.get((nic, peer, path)) or self._paths.get((nic, peer, None), ())

    def routes(self, start: End | str, goal: End | str, count: int | None = None) -> list[tuple[str, ...]]:
        """Return the routes from `start` to `goal` as tuples of links. A node's name stands for any port.

        At most `MAX_ROUTES` are returned, with `count` links each; without `count`, the shortest routes. No
        route passes through a host, or through a node twice.
        """
        key = (start, goal, count)
        if key not in self._routes:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            self._routes[key] = self._find_routes(start, goal, count)
        return self._routes[key]

    def _find_routes(self, start: End | str, goal: End | str, count: int | None) -> list[tuple[str, ...]]:
        first = start.node if isinstance(start, End) else start
        last = goal.node if isinstance(goal, End) else goal
        distance = self._distances(last)
        if first not in distance:
            return []
        length = distance[first] if count is None else count
        routes: list[tuple[str, ...]] = []

        def extend(node: str, links: list[str], visited: set[str]) -> None:
            left = length - len(links)
            for near, far in self._cables_of.get(node, ()):
                if len(routes) >= MAX_ROUTES:
                    return
                if not links and isinstance(start, End) and near != start:
                    continue
                link = link_id(*near, *far)
                if left == 1:
                    if far.node == last and (not isinstance(goal, End) or far == goal):
                        routes.append((*links, link))
                elif far.node not in visited and far.node != last and self.tier(far.node) != 0:
                    if distance.get(far.node, length) > left - 1:
                        continue
                    extend(far.node, [*links, link], visited | {far.node})

        if length > 0:
            extend(first, [], {first})
        return routes

    def _distances(self, goal: str) -> dict[str, int]:
        """Return, by node, the number of links to `goal` on the shortest path through switches only."""
        distances = {goal: 0}
        edge = [goal]
        while edge:
            further = []
            for node in edge:
                if node != goal and self.tier(node) == 0:
                    continue
                for _, far in self._cables_of.get(node, ()):
                    if far.node not in distances:
                        distances[far.node] = distances[node] + 1
                        further.append(far.node)
            edge = further
        return distances


def load_topology(path: Path) -> Topology:
    """Load a topology file: JSON if its name ends in .json, else TOML. Raises TopologyError."""
    where = f"topology file {path}"
    try:
        tables = read_tables(path)
    except BadFile as error:
        raise TopologyError(f"{where}: {error}") from None
    try:
        return Topology(TopologyFile.model_validate(tables), where)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise TopologyError(f"{where}: {_place(first['loc'])}: {_line(first['msg'])}") from None


class TopologySource:
    """A topology file that may change while a service runs; without a path, an empty topology."""

    def __init__(self, path: Path | None) -> None:
        """Load the topology file. Raises TopologyError."""
        self._path = path
        self._seen = _stamp(path)
        self.topology = Topology() if path is None else load_topology(path)

    def refresh(self) -> bool:
        """Load the file again if it has changed; return whether it has changed.

        If the new file is invalid, keep the old content; only the first such call raises TopologyError.
        """
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._seen:
            return False
        self._seen = stamp
        self.topology = load_topology(self._path)
        return True


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size)


def _place(parts: Iterable[str | int]) -> str:
    """Return a place in the file as text: `links[3].ends` for ('links', 2, 'ends'). Entries count from 1."""
    text = ""
    for part in parts:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return _line(text) or "file"


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _checked(where: str, field: str, make: Any) -> Any:
    try:
        return make()
    except ValueError as error:
        raise TopologyError(f"{where}.{field}: {_line(str(error))}") from None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _address(where: str, text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise TopologyError(f"{where}: address {_line(text)!r}: expected an IPv4 or IPv6 address") from None


def _plain(address: str) -> str:
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address

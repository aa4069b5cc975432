"""Names the links of a path from the addresses that answered its trace.

All probers derive the same names, and both directions of a cable have the same name. This module is pure.

Hop k answers from the port where the packet came in, so its address identifies the far end of link k. The
topology file gives the port at the near end. Without a file, the near end has the other address of the pair
that the two ends of a cable share. If addresses identify switches (addressing.py), a link is named by both
switches, and parallel cables have one name. A NIC's own cable ends at its first hop, which the NIC announces.

A bond over two leaves has a cable to each; the switch beside it on the path shows which cable is used.

An address that several switches share identifies none of them. Around a silent hop, and on a path without a
router, links are unknown: no link is invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from producers.trace.addressing import BY_PORT, Addressing, AddressRule, LinkPrefix
from schemas.ids import link_id
from schemas.records import Leg, PathMap, PathSource
from schemas.topology import LAYER_2, End, Topology, end_text, nic_end

ADDRESS_PORT: Final = "ip"
"""Port of an end that is known only by its address; the address is then the name of the node."""
UNKNOWN_PORT: Final = "?"
MAX_CACHED_ROUTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class NamedPath:
    """The named links of a path in order, as in `PathMaps`, and whether all links are known."""

    links: tuple[str, ...]
    complete: bool
    found: PathSource
    contradiction: str | None = None

    def row(self, path: int, leg: Leg, *, since_ns: int = 0, changes: int = 0) -> PathMap:
        """Return the path's row in a `PathMaps` record."""
        return {
            "path": path,
            "leg": leg,
            "links": list(self.links),
            "found": self.found,
            "complete": self.complete,
            "since_ns": since_ns,
            "changes": changes,
            "contradiction": self.contradiction,
        }


NO_PATH: Final = NamedPath((), False, PathSource.UNKNOWN)


def node_of_address(address: str) -> str:
    """Return a name for a node known by address only: colons, which separate the parts of ids, become "-"."""
    return address.replace(":", "-")


@dataclass(slots=True)
class _Hop:
    """One position on a path: 0 is the NIC, then come the routers, and the last is the peer."""

    node: str | None = None
    came_in: End | None = None
    address: str | None = None
    traced: bool = False


def name_path(
    nic: str,
    peer: str,
    hops: Sequence[str | None],
    reached: bool,
    *,
    path: int,
    peer_first_hop: str | None = None,
    topology: Topology | None = None,
    rule: AddressRule = BY_PORT,
) -> NamedPath:
    """Name the links from `nic` to `peer`.

    `hops` are the routers in order; `reached` is True if the packet arrived at the peer after the last
    router. A path is complete only if every link is known.
    """
    topology = topology if topology is not None else Topology()
    if reached and not hops:
        return _without_router(nic, peer, path, topology)
    if not any(hops):
        return _from_file(nic, peer, path, topology, len(hops) + 1 if reached else None)
    namer = _Namer(nic, peer, peer_first_hop, topology, rule)
    links, filled = namer.links(hops, reached)
    named_links = tuple(link for link in links if link is not None)
    any_unknown_port = any(f":{UNKNOWN_PORT}>" in link for link in named_links)
    complete = reached and len(named_links) == len(links) and not any_unknown_port
    contradictions = namer.contradictions
    if len(set(named_links)) != len(named_links):
        contradictions.append("a link is crossed twice")
        complete = False
    contradiction = "; ".join(dict.fromkeys(contradictions)) if contradictions else None
    if complete and not contradictions:
        contradiction = _differs_from_listed(topology.listed(nic, peer, path), named_links)
    return NamedPath(named_links, complete, PathSource.FILLED if filled else PathSource.TRACED, contradiction)


def _without_router(nic: str, peer: str, path: int, topology: Topology) -> NamedPath:
    """Name a path without a router: by the topology file, else as both NICs' cables to an unknown layer 2."""
    if topology.fars(nic_end(nic)) or topology.listed(nic, peer, path):
        return _from_file(nic, peer, path, topology, None)
    ends = [nic_end(name) for name in (nic, peer)]
    ports = [End(LAYER_2, f"{end.node}.{end.port}") for end in ends]
    links = link_id(*ends[0], *ports[0]), link_id(*ports[1], *ends[1])
    return NamedPath(links, True, PathSource.TRACED)


def _from_file(nic: str, peer: str, path: int, topology: Topology, count: int | None) -> NamedPath:
    """Name a path by the topology file: its listed or only route, else the end links that all share."""
    listed = topology.listed(nic, peer, path)
    if listed:
        return NamedPath(listed, True, PathSource.TOPOLOGY)
    routes = topology.routes(nic_end(nic), nic_end(peer), count)
    if not routes:
        return NO_PATH
    if len(routes) == 1:
        return NamedPath(routes[0], True, PathSource.TOPOLOGY)
    ends = [routes[0][at] for at in (0, -1) if len({route[at] for route in routes}) == 1]
    return NamedPath(tuple(ends), False, PathSource.TOPOLOGY)


def _differs_from_listed(listed: tuple[str, ...] | None, links: tuple[str, ...]) -> str | None:
    if not listed or listed == links:
        return None
    differing = (k for k, (a, b) in enumerate(zip(listed, links, strict=False)) if a != b)
    first = next(differing, min(len(listed), len(links)))
    return f"the file lists another path, from link {first + 1} on"


class RouteNames:
    """Names the links of routes from one NIC by the present topology and the learned address rule."""

    def __init__(self, nic: str, link_prefix: LinkPrefix) -> None:
        self.topology = Topology()
        self._nic, self._addressing = nic, Addressing(link_prefix)
        self.renamed = False
        """True if traces changed the address rule, and with it names; the caller resets it."""
        self._complete: dict[tuple[str, int, str | None, tuple[str | None, ...]], tuple[str, ...]] = {}
        """Links by peer, port, the peer's first hop and hops; empty if any link is unknown."""

    def set_topology(self, topology: Topology) -> None:
        """Use `topology` for the names of links from now on."""
        self.topology = topology
        self._complete.clear()

    def observe(
        self, peer: str, hops: Sequence[str | None], reached: bool, peer_first_hop: str | None
    ) -> None:
        """Learn from a path whether addresses identify switches, unless the topology file has addresses."""
        if self._addressing.observe(peer, hops, reached, peer_first_hop):
            self.renamed = True
            self._complete.clear()

    def switch_of(self, hop: str | None) -> str | None:
        """Return the switch that has the address `hop`; the address itself if the topology lacks it."""
        end = self.topology.at(hop) if hop is not None else None
        return hop if end is None else end[0]

    def complete_links(
        self, peer: str, port: int, hops: tuple[str | None, ...], peer_first_hop: str | None
    ) -> tuple[str, ...]:
        """Return the links of a path to `peer` by its `hops`; empty if any link is unknown."""
        key = (peer, port, peer_first_hop, hops)
        links = self._complete.get(key)
        if links is None:
            if len(self._complete) >= MAX_CACHED_ROUTES:
                self._complete.clear()
            named = self.name(peer, port, hops, True, peer_first_hop)
            links = self._complete[key] = named.links if named.complete else ()
        return links

    def name(
        self, peer: str, port: int, hops: Sequence[str | None], reached: bool, peer_first_hop: str | None
    ) -> NamedPath:
        """Return the named links of a traced path to `peer`; arguments as in `name_path`."""
        return name_path(
            self._nic,
            peer,
            hops,
            reached,
            path=port,
            peer_first_hop=peer_first_hop,
            topology=self.topology,
            rule=self._addressing.rule,
        )


@dataclass(slots=True)
class _Namer:
    """Names the links of one traced path, and lists contradictions with the topology file."""

    nic: str
    peer: str
    peer_first_hop: str | None
    topology: Topology
    rule: AddressRule
    contradictions: list[str] = field(default_factory=list)

    def links(self, hops: Sequence[str | None], reached: bool) -> tuple[list[str | None], bool]:
        """Return the links, None if unknown, and whether any was filled in from the topology file."""
        start, goal = nic_end(self.nic), nic_end(self.peer)
        row = [_Hop(start.node, start)]
        for k, address in enumerate(hops, 1):
            row.append(self._hop_at(address, row[-1], k, goal if reached and k == len(hops) else None))
        if reached:
            row.append(_Hop(goal.node, goal, None, True))
        self._name_silent(row)
        links = [self._link(row, k, start, goal) for k in range(1, len(row))]
        filled = self._fill_gaps(row, links)
        return links, filled or any(hop.node is not None and not hop.traced for hop in row[1:])

    def _hop_at(self, address: str | None, before: _Hop, k: int, goal: End | None) -> _Hop:
        """Identify the router at position k. `goal`: the peer's end if hop k is the last, otherwise None."""
        if address is None:
            return _Hop()
        holders = self.topology.holders(address)
        if len(holders) > 1:
            return self._shared_hop(address, holders, before, goal)
        if holders:
            node, port = holders[0]
            return _Hop(node, None if port is None else End(node, port), address, True)
        node = node_of_address(address)
        if address in self.rule.anycast:
            at = nic_end(self.nic) if k == 1 else goal
            if at is None:
                return _Hop()
            node = f"{node}@{at.node}.{at.port}"
        return _Hop(node, End(node, ADDRESS_PORT), address, True)

    def _shared_hop(
        self, address: str, holders: Sequence[tuple[str, str | None]], before: _Hop, goal: End | None
    ) -> _Hop:
        """Identify a hop whose address several switches have, by the only switch cabled to its neighbours."""
        near = {before.node} if before.node is not None else set()
        far = {end.node for end in self.topology.fars(goal)} if goal is not None else set()
        nodes = [
            node
            for node, _ in dict.fromkeys((node, None) for node, _ in holders)
            if (not far or node in far) and any(self.topology.cables(near_node, node) for near_node in near)
        ]
        return _Hop(nodes[0], None, address, True) if len(nodes) == 1 else _Hop()

    def _name_silent(self, row: list[_Hop]) -> None:
        """Identify silent hops by the cable at a neighbour's port, which leads to the silent switch."""
        for k in range(len(row) - 1, 1, -1):
            came_in, before = row[k].came_in, row[k - 1]
            if before.node is None and came_in is not None:
                far = self.topology.far(came_in)
                if far is not None:
                    before.node = far.node
        if len(row) > 1 and row[1].node is None and row[0].came_in is not None:
            far = self.topology.far(row[0].came_in)
            if far is not None:
                row[1].node, row[1].came_in = far.node, far

    def _link(self, row: list[_Hop], k: int, start: End, goal: End) -> str | None:
        """Return link k, from position k - 1 to position k; None if it is unknown."""
        before, here = row[k - 1], row[k]
        is_last = here.came_in == goal and k == len(row) - 1
        if here.node is None or before.node is None:
            return None
        if self._is_unnamed(here):
            self.contradictions.append(f"hop {k} answers from {here.address}, which the file does not name")
        if k == 1:
            return self._first_link(start, here, is_last)
        if here.came_in is None:
            return self._only_cable(before.node, here)
        nears = self.topology.fars(here.came_in)
        if nears:
            near = next((end for end in nears if end.node == before.node), nears[0])
            if len(nears) > 1 and near.node != before.node:  # a bond whose last switch is not of the file
                return None
            return self._wired_link(k, before, before.node, here, here.came_in, near)
        if is_last:
            return self._last_link(before, goal)
        return self._link_by_address(before, before.node, here, here.came_in)

    def _is_unnamed(self, hop: _Hop) -> bool:
        """Return whether the topology file contains addresses, but not the address of this hop."""
        return (
            hop.address is not None
            and self.topology.names_addresses
            and not self.topology.holders(hop.address)
        )

    def _only_cable(self, before: str, here: _Hop) -> str | None:
        """Return the only cable to a switch that answered from a switch address; None if it has several."""
        cables = self.topology.cables(before, here.node or "")
        if len(cables) != 1:
            return None
        here.came_in = cables[0][1]
        return link_id(*cables[0][0], *cables[0][1])

    def _wired_link(self, k: int, before: _Hop, before_node: str, here: _Hop, came_in: End, near: End) -> str:
        """Return the link to a port in the file; if the hop before contradicts the file, name that hop."""
        before_unnamed = before.address is not None and self.topology.at(before.address) is None
        if near.node == before_node or before_unnamed:
            return link_id(*near, *came_in)
        self.contradictions.append(
            f"hop {k} is {end_text(came_in)}, which the file wires to {end_text(near)}, "
            f"and the hop before is {before_node}"
        )
        return link_id(*(self._near_end(before, here) or End(before_node, UNKNOWN_PORT)), *came_in)

    def _link_by_address(self, before: _Hop, before_node: str, here: _Hop, came_in: End) -> str | None:
        """Return a link that the file does not contain, from the addresses of its cable's two ends."""
        if self.topology.at(here.address or "") is not None and self.topology.names_addresses:
            near = self._near_end(before, here)
            return link_id(*near, *came_in) if near is not None else None
        if not self.rule.prefix or here.address in self.rule.anycast:
            return link_id(before_node, ADDRESS_PORT, *came_in)
        partner = self._partner(here)
        if partner is None:
            return None
        at = self.topology.at(partner)
        if at is not None and at[1] is not None:
            return link_id(at[0], at[1], *came_in)
        return link_id(node_of_address(partner), ADDRESS_PORT, *came_in)

    def _first_link(self, start: End, here: _Hop, is_last: bool) -> str | None:
        """Return the link over the NIC's own cable; None if it is unknown."""
        if is_last and here.came_in is not None:
            return link_id(*start, *here.came_in)
        wired = self._far_at(start, here.node)
        if wired is not None and wired.node == here.node:
            here.came_in = wired
            return link_id(*start, *wired)
        if wired is not None and here.node is not None:
            self.contradictions.append(
                f"hop 1 is {here.node}, and the file wires {end_text(start)} to {end_text(wired)}"
            )
        if here.address is not None and self.topology.at(here.address) is None:
            return link_id(*start, node_of_address(here.address), f"{start.node}.{start.port}")
        return link_id(*start, *here.came_in) if here.came_in is not None else None

    def _far_at(self, end: End, node: str | None) -> End | None:
        """Return the end to which the file wires `end`; if a bond has several cables, the one at `node`."""
        fars = self.topology.fars(end)
        return next((far for far in fars if far.node == node), fars[0] if fars else None)

    def _last_link(self, before: _Hop, goal: End) -> str | None:
        """Return the link over the peer's own cable, from the peer's announced first hop; None if unknown."""
        if self.peer_first_hop is None:
            return None
        at = self.topology.at(self.peer_first_hop)
        if at is None:
            return link_id(node_of_address(self.peer_first_hop), f"{goal.node}.{goal.port}", *goal)
        return link_id(at[0], at[1], *goal) if at[1] is not None and at[0] == before.node else None

    def _partner(self, hop: _Hop) -> str | None:
        return self.rule.partner(hop.address) if hop.address is not None else None

    def _near_end(self, before: _Hop, here: _Hop) -> End | None:
        """Return the previous hop's port at the near end of the cable, from its address; None if unknown."""
        partner = self._partner(here)
        at = self.topology.at(partner) if partner is not None else None
        return End(at[0], at[1]) if at is not None and at[1] is not None and at[0] == before.node else None

    def _fill_gaps(self, row: list[_Hop], links: list[str | None]) -> bool:
        """Fill in links at silent hops if the file has exactly one route; return whether any was added."""
        filled, k = False, 0
        while k < len(links):
            if links[k] is not None:
                k += 1
                continue
            end = k
            while end < len(links) and links[end] is None and (end == k or row[end].node is None):
                end += 1
            route = self._only_route(row[k], row[end], k == 0, end - k)
            if route is not None:
                links[k:end] = list(route)
                filled = True
            k = end
        return filled

    def _only_route(self, begin: _Hop, end: _Hop, from_nic: bool, count: int) -> tuple[str, ...] | None:
        if begin.node is None or end.node is None:
            return None
        first: End | str = begin.came_in if from_nic and begin.came_in is not None else begin.node
        routes = self.topology.routes(first, end.came_in or end.node, count)
        return routes[0] if len(routes) == 1 else None

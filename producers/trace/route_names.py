"""From the addresses that answered a trace to the links of its path, by their names.

In: a trace (one address a hop, None where a hop stayed silent), both NICs, the topology file where there is
one. Out: `NamedPath`. Pure, and the same for every prober: both directions of a cable come out as one cable.

Hop k's answer comes from the port that the packet came in by, so it names the far end of link k. Its near end
is the port that the file wires to it; without a file, the other address of the pair that two ends of a cable
share (`link_prefix`). A NIC's own cable ends at the first hop that it hears from itself, which it announces.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from schemas.ids import link_id
from schemas.topology import End, Topology, end_text, nic_end

__all__ = ["NamedPath", "name_path", "partner_of"]

Found = Literal["UNKNOWN", "TRACED", "FILLED", "TOPOLOGY"]
LinkPrefix = Literal[31, 30, 0]

PORT: Final = "ip"
"""Port of an end that only an address names: the node's name is that address then."""
UNKNOWN_PORT: Final = "?"


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path's links in order, as `PathMaps` carries them."""

    links: tuple[str, ...]
    complete: bool
    found: Found
    contradiction: str | None = None


NOTHING: Final = NamedPath((), False, "UNKNOWN")


@lru_cache(maxsize=65536)
def partner_of(address: str, link_prefix: LinkPrefix) -> str | None:
    """Return the address at a cable's other end, where every cable has a pair of its own: /31 or /127 with
    `link_prefix` 31, /30 or /126 with 30. None where it has none."""
    if not link_prefix:
        return None
    found = ipaddress.ip_address(address)
    if link_prefix == 31:
        return str(type(found)(int(found) ^ 1))
    if int(found) & 3 in (0, 3):  # network and broadcast address: no host's
        return None
    return str(type(found)(int(found) ^ 3))


@dataclass(slots=True)
class _Hop:
    """One position of a path: 0 the NIC, then the routers, last the peer."""

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
    link_prefix: LinkPrefix = 31,
) -> NamedPath:
    """Return the links from `nic` to `peer`. `hops`: the routers in order; `reached`: whether the packet came
    to the peer after the last of them. A path is complete only where every link of it is known for sure."""
    topology = topology if topology is not None else Topology()
    start, goal = nic_end(nic), nic_end(peer)
    if not any(hops) and not (reached and not hops):
        return _from_file(nic, peer, path, topology, len(hops) + 1 if reached else None)
    row = [_Hop(start.node, start)]
    for address in hops:
        row.append(_named(address, topology))
    if reached:
        row.append(_Hop(goal.node, goal, None, True))
    said: list[str] = []
    _from_neighbours(row, topology)
    links = [
        _link(row, k, topology, said, start, goal, peer_first_hop, link_prefix) for k in range(1, len(row))
    ]
    filled = _fill_gaps(row, links, topology)
    filled = filled or any(hop.node is not None and not hop.traced for hop in row[1:])
    known = tuple(link for link in links if link is not None)
    complete = reached and len(known) == len(links) and not any(f":{UNKNOWN_PORT}>" in link for link in known)
    if len(set(known)) != len(known):
        said.append("a link is crossed twice")
        complete = False
    contradiction = "; ".join(dict.fromkeys(said)) or _against_list(
        nic, peer, path, known, topology, complete
    )
    return NamedPath(known, complete, "FILLED" if filled else "TRACED", contradiction)


def _from_file(nic: str, peer: str, path: int, topology: Topology, count: int | None) -> NamedPath:
    """Return what the file alone says: the path it lists, or the only way that there is; where there are
    several, the links that all of them have at both ends."""
    listed = topology.listed(nic, peer, path)
    if listed:
        return NamedPath(listed, True, "TOPOLOGY")
    ways = topology.ways(nic_end(nic), nic_end(peer), count)
    if not ways:
        return NOTHING
    if len(ways) == 1:
        return NamedPath(ways[0], True, "TOPOLOGY")
    ends = [way[at] for way in ways[:1] for at in (0, -1) if len({other[at] for other in ways}) == 1]
    return NamedPath(tuple(ends), False, "TOPOLOGY")


def _named(address: str | None, topology: Topology) -> _Hop:
    if address is None:
        return _Hop()
    at = topology.at(address)
    if at is None:
        node = node_of_address(address)
        return _Hop(node, End(node, PORT), address, True)
    node, port = at
    return _Hop(node, None if port is None else End(node, port), address, True)


def node_of_address(address: str) -> str:
    """Return the name of a node that only an address names: link ids split at colons."""
    return address.replace(":", "-")


def _from_neighbours(row: list[_Hop], topology: Topology) -> None:
    """Name silent hops by the cable that their neighbour's port is wired to: a switch whose next hop answered
    from a port is what that port is wired to."""
    for k in range(len(row) - 1, 1, -1):
        came_in, before = row[k].came_in, row[k - 1]
        if before.node is None and came_in is not None:
            far = topology.far(came_in)
            if far is not None:
                before.node = far.node
    if len(row) > 1 and row[1].node is None and row[0].came_in is not None:
        far = topology.far(row[0].came_in)
        if far is not None:
            row[1].node, row[1].came_in = far.node, far


def _link(
    row: list[_Hop],
    k: int,
    topology: Topology,
    said: list[str],
    start: End,
    goal: End,
    peer_first_hop: str | None,
    link_prefix: LinkPrefix,
) -> str | None:
    """Return link k, from position k - 1 to k; None where it is not known. Adds to `said` what the file says
    otherwise."""
    before, here = row[k - 1], row[k]
    last = here.came_in == goal and k == len(row) - 1
    if here.node is None or before.node is None:
        return None
    if here.address is not None and topology.names_addresses and topology.at(here.address) is None:
        said.append(f"hop {k} answers from {here.address}, which the file does not name")
    if k == 1:
        return _first_link(start, here, last, topology, said)
    if here.came_in is None:  # an address of the switch itself: its port follows where one cable leads there
        cables = topology.cables(before.node, here.node)
        if len(cables) != 1:
            return None
        here.came_in = cables[0][1]
        return link_id(*cables[0][0], *cables[0][1])
    near = topology.far(here.came_in)
    unnamed = before.address is not None and topology.at(before.address) is None
    if near is not None and (near.node == before.node or (unnamed and k > 1)):
        return link_id(*near, *here.came_in)
    if near is not None:
        said.append(
            f"hop {k} is {end_text(here.came_in)}, which the file wires to {end_text(near)}, "
            f"and the hop before is {before.node}"
        )
        return link_id(
            *(_by_partner(before, here, topology, link_prefix) or End(before.node, UNKNOWN_PORT)),
            *here.came_in,
        )
    if last:
        return _last_link(before, goal, peer_first_hop, topology)
    if topology.at(here.address or "") is not None and topology.names_addresses:
        found = _by_partner(before, here, topology, link_prefix)
        return link_id(*found, *here.came_in) if found is not None else None
    partner = partner_of(here.address, link_prefix) if here.address is not None else None
    if partner is not None:
        at = topology.at(partner)
        if at is not None and at[1] is not None:
            return link_id(at[0], at[1], *here.came_in)
        near_node = node_of_address(partner)
        return link_id(near_node, PORT, *here.came_in)
    return link_id(before.node, PORT, *here.came_in) if not link_prefix else None


def _first_link(start: End, here: _Hop, last: bool, topology: Topology, said: list[str]) -> str | None:
    wired = topology.far(start)
    if last and here.came_in is not None:
        return link_id(*start, *here.came_in)
    if wired is not None and wired.node == here.node:
        here.came_in = wired
        return link_id(*start, *wired)
    if wired is not None and here.node is not None:
        said.append(f"hop 1 is {here.node}, and the file wires {end_text(start)} to {end_text(wired)}")
    if here.address is not None and topology.at(here.address) is None:
        return link_id(*start, node_of_address(here.address), f"{start.node}.{start.port}")
    return link_id(*start, *here.came_in) if here.came_in is not None else None


def _last_link(before: _Hop, goal: End, peer_first_hop: str | None, topology: Topology) -> str | None:
    """Return the peer's own cable by the first hop that the peer hears from."""
    if peer_first_hop is None:
        return None
    at = topology.at(peer_first_hop)
    if at is None:
        return link_id(node_of_address(peer_first_hop), f"{goal.node}.{goal.port}", *goal)
    return link_id(at[0], at[1], *goal) if at[1] is not None and at[0] == before.node else None


def _by_partner(before: _Hop, here: _Hop, topology: Topology, link_prefix: LinkPrefix) -> End | None:
    """Return the port of the hop before that has the other address of the cable's pair."""
    partner = partner_of(here.address, link_prefix) if here.address is not None else None
    at = topology.at(partner) if partner is not None else None
    return End(at[0], at[1]) if at is not None and at[1] is not None and at[0] == before.node else None


def _fill_gaps(row: list[_Hop], links: list[str | None], topology: Topology) -> bool:
    """Put in the links of silent hops where the file leaves one way only; return whether any was."""
    filled, k = False, 0
    while k < len(links):
        if links[k] is not None:
            k += 1
            continue
        end = k
        while end < len(links) and links[end] is None and (end == k or row[end].node is None):
            end += 1
        begin, goal = row[k], row[end]
        if begin.node is not None and goal.node is not None:
            first: End | str = begin.came_in if k == 0 and begin.came_in is not None else begin.node
            ways = topology.ways(first, goal.came_in or goal.node, end - k)
            if len(ways) == 1:
                links[k:end] = list(ways[0])
                filled = True
        k = end
    return filled


def _against_list(
    nic: str, peer: str, path: int, links: tuple[str, ...], topology: Topology, complete: bool
) -> str | None:
    listed = topology.listed(nic, peer, path)
    if listed and complete and listed != links:
        first = next(
            (k for k, (a, b) in enumerate(zip(listed, links, strict=False)) if a != b),
            min(len(listed), len(links)),
        )
        return f"the file lists another path, from link {first + 1} on"
    return None

"""Finds limits of packet size that no known link explains, and lists where the cause may be.

A path with a limit crosses a link that drops large packets. The limiting link has no name of its own if the
route is not known from end to end, or if larger packets pass all of its links. The topology file gives the
possible links; links that have passed a larger packet since are left out. If no link remains, the switches or
NICs beside the gap are candidates. The fewest candidates that explain all such paths are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from schemas.ids import cable_id
from schemas.topology import Topology
from streams.links.evidence.path_table import Routes
from streams.links.health.text import count_text
from streams.links.localise.sizes import MAX_WAIT_NS, MIN_NICS, MIN_PATHS, CheckedPath, PathSizes
from streams.links.localise.unexplained import fewest_places, nodes_of, place_text, possible_links


@dataclass(frozen=True, slots=True)
class UnnamedLimit:
    """Paths that drop large packets though none of their known links does. Times: log append time, ns."""

    paths: int
    nics: int
    passed_bytes: int
    probed_bytes: int
    router_mtu_bytes: int
    """MTU that a router reported; 0 if packets are dropped without a report."""
    since_ns: int
    candidates: tuple[str, ...]
    """Cables, switches or NICs that may be the cause."""

    def text(self, since: str) -> str:
        """Return a readable line that describes the limit and its possible cause."""
        paths = f"{count_text(self.paths, 'path')} of {count_text(self.nics, 'NIC')}"
        stated = self.router_mtu_bytes
        how = f"a router states an MTU of {stated:,} bytes" if stated else "no router reports it"
        return (
            f"{paths} drop packets above {self.passed_bytes:,} bytes (NICs send {self.probed_bytes:,}) since "
            f"{since}, {how}; no known link explains it; {place_text(self.candidates)}"
        )


def unnamed_limits(sizes: PathSizes, routes: Routes, named: Collection[str]) -> list[CheckedPath]:
    """Return the paths with a size limit that no known link explains, and that cross no `named` link.

    `named`: links that are known to drop large packets.
    """
    return [
        path
        for path in sizes.limited_without_link(routes)
        if not any(link in named for link in routes.known(*path.key)[0])
    ]


def find_unnamed_limit(
    limited: Sequence[CheckedPath], sizes: PathSizes, routes: Routes, topology: Topology, now_ns: int
) -> UnnamedLimit | None:
    """Return the packet-size limit that no known link explains; None if too few paths show it."""
    if len(limited) < MIN_PATHS:
        return None
    since_ns = min(path.since_ns for path in limited)
    nics = {path.key[0] for path in limited}
    if len(nics) < MIN_NICS and since_ns > now_ns - MAX_WAIT_NS:
        return None
    passed_by = sizes.by_known_link(routes)
    places = [_places(path, routes, topology, passed_by) for path in limited]
    return UnnamedLimit(
        len(limited),
        len(nics),
        min(path.passed_bytes for path in limited),
        max(path.probed_bytes for path in limited),
        max(path.router_mtu_bytes for path in limited),
        since_ns,
        fewest_places(places),
    )


def _places(
    path: CheckedPath, routes: Routes, topology: Topology, passed_by: dict[str, list[CheckedPath]]
) -> set[str]:
    """Return the cables or nodes at which a path's requests may lose large packets."""
    nic, peer, _ = path.key
    traced_links, _ = routes.known(*path.key)
    if routes.forward(*path.key):
        return set(nodes_of(nic, peer, traced_links, True))
    possible: set[str] = {
        cable_id(link)
        for link in possible_links(topology, nic, peer, traced_links)
        if not any(
            other.passed_bytes > path.passed_bytes and other.at_ns >= path.since_ns
            for other in passed_by.get(link, ())
        )
    }
    return possible or set(nodes_of(nic, peer, traced_links, False))

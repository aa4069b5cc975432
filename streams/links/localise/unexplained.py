"""Finds losses that no known link explains, and lists the links or switches that may cause them.

A path that loses every probe while both of its NICs live crosses a dead link. If all its known links live,
the dead link is hidden: no switch answers there, a tunnel hides it, or one name stands for several cables.
The topology file gives the possible links; without it, the switches or NICs beside the gap are candidates.
The fewest candidates that explain all such paths are listed, with those that the evidence cannot
distinguish from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id, end_parts, link_ends, natural
from schemas.topology import LAYER_2, Topology, end_text, nic_end
from streams.links.evidence.path_table import Links, Routes
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.links.rules import BLIND_AFTER_NS, STALE_NS
from streams.runtime.units import NS_PER_S

MIN_STREAK: Final = 6
"""Losses in a row from which a path counts as dead."""
MIN_LASTING_NS: Final = 2 * NS_PER_S
"""Time for which a path must have lost every probe, longer than it takes to find any dead link."""
ALIVE_NS: Final = NS_PER_S
"""A link or NIC with an answer within this time lives."""
MIN_PATHS: Final = 2
MAX_PLACES: Final = 8
"""Most places of an answer; if more are needed, none is given."""
MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Dead paths without a known dead link. `candidates`: cables, switches or NICs that may be the cause."""

    paths: int
    nics: int
    since_ns: int
    candidates: tuple[str, ...]
    untraced: int = 0
    """Number of paths of which no link is known, while first traces are still to be expected."""

    def text(self, since: str) -> str:
        """Return a readable line that describes the paths and the possible cause."""
        paths = f"{count_text(self.paths, 'path')} of {count_text(self.nics, 'NIC')}"
        place = place_text(self.candidates)
        if self.untraced:
            routes = f"the routes of {self.untraced:,} of them are not traced yet"
            place = f"{routes} (probes.trace_pps limits the pace); {place}"
        return f"no known link explains why {paths} lose every probe since {since}; {place}"


def place_text(candidates: Sequence[str]) -> str:
    """Return a readable text that lists where the losses may occur."""
    named = ", ".join(candidates[:MAX_NAMED])
    more = f" and {len(candidates) - MAX_NAMED} more" if len(candidates) > MAX_NAMED else ""
    return f"the cause is at one of: {named}{more}" if named else "nothing is known of their routes"


def find_unexplained(
    evidence: Evidence, routes: Routes, topology: Topology, suspects: NDArray[np.intp], now_ns: int
) -> Unexplained | None:
    """Return the dead paths in `suspects` that no dead element explains; None if such paths are few."""
    dead = _lasting(evidence, suspects, now_ns)
    if len(dead) < MIN_PATHS:
        return None
    names = evidence.names
    port_of = {at: (nic, *key) for nic, state in evidence.nics.items() for key, at in state.paths.items()}
    known_dead = _known_dead(evidence)
    places, left = [], []
    for at in dead.tolist():
        of_path = set(_places(evidence, routes, topology, port_of[at], now_ns)) if at in port_of else set()
        if not (bool(evidence.incomplete[at]) and of_path & known_dead):
            places.append(of_path)
            left.append(at)
    if len(left) < MIN_PATHS:
        return None
    dead = np.array(left, np.intp)
    nics = {names[int(e)] for e in evidence.rows[dead, 0]}
    since_ns = int(evidence.first_lost_ns[dead].min())
    untraced = 0
    if now_ns - evidence.first_event_ns < BLIND_AFTER_NS:
        untraced = sum(at not in port_of or not any(routes.known(*port_of[at])) for at in left)
    return Unexplained(len(dead), len(nics), since_ns, fewest_places(places), untraced)


def blind_share(evidence: Evidence, now_ns: int) -> tuple[int, int]:
    """Return the number of recent paths with an incomplete route, and the number of all recent paths."""
    n = evidence.paths
    recent = evidence.path_event_ns[:n] > now_ns - STALE_NS
    return int((recent & evidence.incomplete[:n]).sum()), int(recent.sum())


def _known_dead(evidence: Evidence) -> set[str]:
    """Return the cables of known dead links, and the nodes at their ends, because traces end there."""
    dead_places: set[str] = set()
    for element in np.flatnonzero(evidence.down[: len(evidence.names)]).tolist():
        name = evidence.names[element]
        if name.count(">") == 1:
            dead_places |= {cable_id(name), *(end_parts(end).node for end in link_ends(name))}
    return dead_places


def _lasting(evidence: Evidence, suspects: NDArray[np.intp], now_ns: int) -> NDArray[np.intp]:
    """Return the paths that have long lost every probe, though both of their NICs answer on other paths."""
    rows = evidence.rows[suspects]
    # Losses from before a link or host came up again show nothing: its next answer is still to come.
    began_ns = np.maximum(evidence.first_lost_ns[suspects], evidence.recovered_ns[rows].max(axis=1))
    lasting = evidence.last_lost_ns[suspects] - began_ns >= MIN_LASTING_NS
    lasting &= evidence.loss_streak[suspects] >= MIN_STREAK
    lasting &= evidence.last_answer_ns[rows[:, :2]].min(axis=1) > now_ns - ALIVE_NS
    explained = evidence.down[rows] | (evidence.suppressed_ns[rows] > now_ns)
    lasting_paths: NDArray[np.intp] = suspects[lasting & ~explained.any(axis=1)]
    return lasting_paths


def _places(
    evidence: Evidence, routes: Routes, topology: Topology, path: tuple[str, str, int], now_ns: int
) -> Iterator[str]:
    """Yield the cables or nodes at which a path may lose packets, in both directions."""
    nic, peer, port = path
    forward, reverse = routes.known(nic, peer, port)
    for a, b, links, complete in (
        (nic, peer, forward, bool(routes.forward(nic, peer, port))),
        (peer, nic, reverse, bool(routes.reverse(nic, peer, port))),
    ):
        possible = () if complete else possible_links(topology, a, b, links)
        silent = {cable_id(link) for link in possible if not _lives(evidence, link, now_ns)}
        yield from silent or nodes_of(a, b, links, complete)


def possible_links(topology: Topology, nic: str, peer: str, links: Links) -> Iterable[str]:
    """Return the links of all routes in the topology file that contain the known `links`."""
    routes = topology.routes(nic_end(nic), nic_end(peer))
    required_links = set(links)
    return {link for route in routes if required_links <= set(route) for link in route}


def _lives(evidence: Evidence, link: str, now_ns: int) -> bool:
    element = evidence.index.get(link)
    return (
        element is not None
        and bool(evidence.has_answered[element])
        and int(evidence.last_answer_ns[element]) > now_ns - ALIVE_NS
    )


def nodes_of(nic: str, peer: str, links: Links, complete: bool) -> Iterator[str]:
    """Yield the switches of a complete route; else each NIC's leaf switch, or the NIC if it is unknown."""
    if complete and len(links) > 2:
        for link in links[1:-1]:
            yield from (end_parts(end).node for end in link_ends(link))
        return
    first, last = (end_text(nic_end(name)) for name in (nic, peer))
    near = (
        end_parts(links[0].partition(">")[2]).node if links and links[0].startswith(f"{first}>") else LAYER_2
    )
    far = end_parts(links[-1].partition(">")[0]).node if links and links[-1].endswith(f">{last}") else LAYER_2
    yield nic if near == LAYER_2 else near
    yield peer if far == LAYER_2 else far


def fewest_places(places: list[set[str]]) -> tuple[str, ...]:
    """Return the fewest places that explain all paths, with equally good ones; () if there are too many."""
    fewest: set[str] = set()
    left = [candidates for candidates in places if candidates]
    for _ in range(MAX_PLACES):
        if not left:
            return tuple(sorted(fewest, key=natural))
        counts = Counter(place for candidates in left for place in candidates)
        greatest = max(counts.values())
        best = {place for place, count in counts.items() if count == greatest}
        fewest |= best
        left = [candidates for candidates in left if not candidates & best]
    return ()

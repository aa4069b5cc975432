"""Localises bypassed links: links inside the fabric that routing withdrew.

If switches see a carrier go down, they reroute at once, and no lost probe shows the fault. Instead, paths
leave the link until none crosses it.

Rerouting for other reasons leaves some paths on every link. If m paths are hashed again to n uplinks, a given
uplink stays empty with probability (1 - 1/n)^m. Among c cables, c times this number are expected to be empty.
Unless the expected number is far below one, an empty cable means nothing. So a link counts as bypassed if too
many paths left its cable for chance. It also counts if paths left a switch inside the fabric whose cables are
all empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from schemas.records import HealthKind
from streams.links.evidence.path_table import Departures
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.links.localise.fault import Fault
from streams.links.rules import (
    DEPARTED_KEPT_NS,
    FEW_ENDS,
    FEW_PATHS,
    FIRST_LINKS_NS,
    MAX_CHANCE,
    NEW_LINK_NS,
    STALE_NS,
)
from streams.runtime.loss_rates import NOTHING, Bools


def localise_bypassed(evidence: Evidence, now_ns: int) -> list[Fault]:
    """Return a fault for each bypassed link; forget departures that are too old."""
    if not evidence.departures:
        return []
    in_use = evidence.in_use(now_ns - STALE_NS)
    at_nics = set(np.flatnonzero(evidence.nic_of).tolist())
    empty = _empty_links(evidence, in_use, at_nics, now_ns)
    suspects = [link for link, paths in empty.items() if len(paths) >= FEW_PATHS and not evidence.down[link]]
    if not suspects:
        return []
    chance = _Chance(evidence, in_use, at_nics, empty)
    faults = []
    for link in suspects:
        paths = np.array(sorted(empty[link]), np.intp)
        ends = [len(np.unique(side)) for side in evidence.rows[paths, :2].T]
        if min(ends) >= FEW_ENDS and chance.of(link) < MAX_CHANCE:
            faults.append(_fault(evidence, link, paths))
    return faults


def _empty_links(evidence: Evidence, in_use: Bools, at_nics: set[int], now_ns: int) -> dict[int, set[int]]:
    """Return, for each link that no path uses now, the paths that left it; forget old departures."""
    empty: dict[int, set[int]] = {}
    for link, departures in list(evidence.departures.items()):
        is_old = now_ns - departures.newest_ns > DEPARTED_KEPT_NS
        if link in evidence.recabled or link in at_nics or is_old:
            del evidence.departures[link]
        elif not in_use[link]:
            empty[link] = _departed(evidence, departures, at_nics, now_ns - STALE_NS)
    return empty


def _fault(evidence: Evidence, link: int, paths: NDArray[np.intp]) -> Fault:
    nics = len(np.unique(evidence.rows[paths, 0]))
    return Fault(
        subject=cable_id(evidence.names[link]),
        kind=HealthKind.LINK,
        elements=(link,),
        begin_ns=int(evidence.last_answer_ns[link]) + 1,
        cause=(
            f"{count_text(len(paths), 'path')} of {count_text(nics, 'NIC')} that crossed it "
            "bypass it now, and none crosses it"
        ),
    )


def _departed(evidence: Evidence, departures: Departures, at_nics: set[int], since_ns: int) -> set[int]:
    """Return the living paths that left a link and now cross only links that were already known.

    A link first seen when paths left may be the same link under a name from a new topology file.
    """
    paths = np.array(sorted(departures.paths), np.intp)
    paths = paths[(evidence.path_event_ns[paths] > since_ns) & (evidence.loss_streak[paths] == 0)]
    rows = evidence.rows[paths]
    known_before_ns = max(departures.since_ns - NEW_LINK_NS, evidence.first_event_ns + FIRST_LINKS_NS)
    is_known = evidence.first_seen_ns[rows] < known_before_ns
    is_known |= evidence.is_nic[rows] | np.isin(rows, list(at_nics)) | (rows == NOTHING)
    return set(paths[is_known.all(axis=1)].tolist())


class _Chance:
    """Computes how many cables chance alone would leave as empty as the cable of a given link."""

    def __init__(
        self, evidence: Evidence, in_use: Bools, at_nics: set[int], empty: Mapping[int, set[int]]
    ) -> None:
        self._evidence, self._in_use, self._empty = evidence, in_use, empty
        self._leaves = {node for e in at_nics for node in evidence.nodes_of(e)}
        outside = at_nics | {NOTHING}
        inner = [e for e in np.flatnonzero(in_use & ~evidence.is_nic).tolist() if e not in outside]
        ends = [evidence.nodes_of(e) for e in inner]
        self._leaving, self._entering = Counter(near for near, _ in ends), Counter(far for _, far in ends)
        self._cables = 1 + len(inner) // 2

    def of(self, link: int) -> float:
        """Return the expected number of cables that chance leaves as empty as a link's cable or switches."""
        near, far = self._evidence.nodes_of(link)
        # A path that comes from a leaf chooses among the leaf's uplinks; the downlink follows from that
        # choice.
        choices = [self._leaving[near]] if near in self._leaves else []
        choices += [self._entering[far]] if far in self._leaves else []
        uplinks = 1 + max(choices or [self._leaving[near], self._entering[far]])
        links_at = self._evidence.links_at
        inside = [links_at[node] for node in (near, far) if node not in self._leaves]
        empty_switches = [links for links in inside if not self._in_use[list(links)].any()]
        groups = [links_at[near] & links_at[far], *empty_switches]
        return min(self._cables * (1.0 - 1.0 / uplinks) ** self._paths_of(group) for group in groups)

    def _paths_of(self, links: set[int]) -> int:
        return len(set().union(*(self._empty.get(link, set()) for link in links)))

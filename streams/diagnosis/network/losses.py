"""Measures losses of links between switches, and of NICs, with the probes of a job's NICs.

The links service decides within seconds, so it ignores results from hosts short of CPU and from paths with
queues. If it ignores all results, it names no link. This module counts such results too, over a longer time,
and compares a link with paths that do not cross it:

- A host that is late loses probes on all of its paths, so its losses are attributed to its NIC. They prove
  a fault only if the NIC's flows send packets again, too, and the job's other flows do not.
- A full queue loses packets too. A path's window counts only if its greatest delay is far below that of the
  others, so that no queue near it was full.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.ids import cable_id
from streams.diagnosis.job.arrivals import Floats
from streams.diagnosis.network.view import Links, NetworkView
from streams.diagnosis.rules import KEEP_NS
from streams.runtime.loss_rates import NOTHING, Int32s, Lossy, find_lossy
from streams.runtime.units import NS_PER_S

PERIOD_NS: Final = 15 * NS_PER_S
"""Time over which losses are counted: a link gets a hundred probes in it, even from hosts that hardly run."""
BACK_NS: Final = KEEP_NS
"""Time over which the begin of losses is searched."""
MAX_NICS: Final = 64
"""Largest number of NICs of a job for which this search runs. Larger jobs' links are crossed by enough probes
for the links service."""
HIGH, LOW = 95.0, 25.0
"""Percentiles of the greatest queueing delays of all paths and windows."""
FULL_SHARE, LOW_TIMES = 0.5, 2.0
"""A queue does not count as full below this share of the high percentile, or this multiple of the low one."""
MIN_LOSSES: Final = 8
MIN_WINDOWS: Final = 4
"""Number of windows that must contain losses: a moment without CPU is no loss rate."""
MIN_SHARE: Final = 0.02
"""Share of lost packets that makes a link lossy; the lower end of the 95% interval must reach it."""
TIMES: Final = 3.0
"""Multiple of the loss share of paths elsewhere that a lossy link must reach."""
MIN_ELSEWHERE: Final = 50
"""Number of probes on paths elsewhere below which these paths prove nothing."""


@dataclass(frozen=True, slots=True)
class LossyLink:
    """A cable that loses packets. `links`: the cable's directed links, which the same paths cross."""

    nic: str
    """The NIC that loses them, by its cable; empty between switches."""
    cable: str
    links: tuple[str, ...]
    candidates: tuple[str, ...]
    """Other cables that exactly the same paths cross."""
    rate: float
    elsewhere: float
    """Share of probes lost on paths that do not cross the cable."""
    lost: int
    requests: int
    """Number of probes over the cable; `lost` of them were lost."""
    since_ns: int


@dataclass(slots=True)
class _Rows:
    """Counts of probes by route (P routes) and window (W windows)."""

    names: list[str]
    rows: Int32s
    """[P, width] elements, as `find_lossy` takes them."""
    edges: dict[int, str]
    """Maps NICs, and the links next to them, to the NIC."""
    route: Int32s
    """[W] index of the route of each window."""
    begin_ns: Floats
    lost: Floats
    requests: Floats

    def by_route(self, values: Floats) -> Floats:
        """Return the P sums, one per route, of `values`, which are given by window."""
        return np.bincount(self.route, values, len(self.rows)).astype(np.float64)


def lossy_links(network: NetworkView, nics: set[str], end_ns: int) -> list[LossyLink]:
    """Return the links between switches, and given NICs, that lose probes of these NICs; the worst first.

    If workers are behind, the period ends at the newest window instead of at `end_ns`.
    """
    newest_ns = network.probed.newest_ns(nics)
    if newest_ns is None or newest_ns <= end_ns - PERIOD_NS:
        return []
    end_ns = min(end_ns, newest_ns)
    begin_ns = end_ns - PERIOD_NS
    if len(nics) > MAX_NICS or network.probed.lost(nics, begin_ns, end_ns) < MIN_LOSSES:
        return []
    table = _rows_of(network, nics, end_ns - BACK_NS, end_ns)
    if table is None:
        return []
    counts = table.begin_ns >= begin_ns
    lost, requests = table.by_route(table.lost * counts), table.by_route(table.requests * counts)
    is_link = np.array([element not in table.edges for element in range(len(table.names))])
    links = []
    for lossy in find_lossy(table.rows, lost.astype(np.int64), requests, is_link):
        link = _lossy(table, lossy, lost, requests, begin_ns)
        if link is not None and (not link.nic or link.nic in nics):
            links.append(link)
    return links


def _lossy(table: _Rows, lossy: Lossy, lost: Floats, requests: Floats, from_ns: int) -> LossyLink | None:
    """Return a lossy element as a link if its losses are clear and no other cause is as likely; else None."""
    crosses = (table.rows == lossy.element).any(axis=1)
    elsewhere = float(requests[~crosses].sum())
    share = float(lost[~crosses].sum()) / max(elsewhere, 1.0)
    if lossy.lost < MIN_LOSSES or elsewhere < MIN_ELSEWHERE or lossy.low < max(MIN_SHARE, TIMES * share):
        return None
    over = crosses[table.route]
    begins_ns, at = np.unique(table.begin_ns[over], return_inverse=True)
    lost_at = np.bincount(at, table.lost[over], len(begins_ns))
    if np.count_nonzero(lost_at[begins_ns >= from_ns]) < MIN_WINDOWS:
        return None
    # The begin of the losses by cumulative sums (Page 1954): from it on, most is lost above half of the rate.
    excess = lost_at - lossy.rate / 2 * np.bincount(at, table.requests[over], len(begins_ns))
    since_ns = begins_ns[int(np.argmax(excess[::-1].cumsum()[::-1]))]
    nic = table.edges.get(lossy.element, "")
    elements = table.edges if nic else (lossy.element, *lossy.aliased)
    same = [table.names[e] for e in elements if table.edges.get(e, "") == nic and table.names[e] != nic]
    cable = cable_id(same[0])
    return LossyLink(
        nic,
        cable,
        tuple(sorted(link for link in same if cable_id(link) == cable)),
        tuple(sorted({cable_id(link) for link in same} - {cable})),
        lossy.rate,
        share,
        int(lost[crosses].sum()),
        int(requests[crosses].sum()),
        int(since_ns),
    )


def _rows_of(network: NetworkView, nics: set[str], begin_ns: int, end_ns: int) -> _Rows | None:
    """Return the windows of paths with known routes and without a full queue; None if there are none."""
    index = {"": NOTHING}
    routes: dict[tuple[str, str, Links, Links], int] = {}
    paths: dict[tuple[str, str, int], tuple[int, int] | None] = {}
    edges: dict[int, str] = {}
    windows: list[tuple[int, int, int, int, int, float, float]] = []
    for nic, peer, delay in network.probed.of_nics(sorted(nics), begin_ns, end_ns):
        key = nic, peer, delay.path
        if key not in paths:
            out, back = network.routes.of_probe(*key)
            route_number = routes.setdefault((nic, peer, out, back), len(routes)) if out and back else None
            paths[key] = None if route_number is None else (route_number, len(paths))
            for end, links in ((nic, (*out[:1], *back[-1:])), (peer, (*out[-1:], *back[:1]))):
                edges |= {index.setdefault(element, len(index)): end for element in (end, *links)}
        place = paths[key]
        if place is not None and delay.rtt_p99_ns is not None and delay.rtt_min_ns is not None:
            sent = delay.samples + delay.lost
            windows.append((*place, delay.begin_ns, delay.lost, sent, delay.rtt_min_ns, delay.rtt_p99_ns))
    if not windows:
        return None
    route, path, begins, lost, sent, rtt_min, rtt_p99 = np.array(windows, np.float64).T
    at = path.astype(np.intp)
    smallest = np.full(len(paths), np.inf)
    np.minimum.at(smallest, at, rtt_min)
    queued = rtt_p99 - smallest[at]
    low, high = np.percentile(queued, (LOW, HIGH))
    calm = queued <= max(FULL_SHARE * high, LOW_TIMES * low)
    rows = _elements(routes, index)
    return _Rows(list(index), rows, edges, route[calm].astype(np.int32), begins[calm], lost[calm], sent[calm])


def _elements(routes: Collection[tuple[str, str, Links, Links]], index: dict[str, int]) -> Int32s:
    """Return the numbers of the NICs and links of each route; `index` gets a number for each new name."""
    width = max(len(out) + len(back) for _, _, out, back in routes) + 2
    rows = np.full((len(routes), width), NOTHING, np.int32)
    for row, (nic, peer, out, back) in zip(rows, routes, strict=True):
        elements = dict.fromkeys((nic, peer, *out, *back))
        row[: len(elements)] = [index.setdefault(element, len(index)) for element in elements]
    return rows

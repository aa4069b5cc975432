"""Loss rates of links between switches, by the probes among a job's NICs.

The links service decides within seconds, so it leaves out results of hosts short of CPU and of paths with
queues. Where these are all results, it names no link. Here they count, over a longer time, and the paths that
do not cross a link are its control:

- A host that is late loses probes on all of its paths, so its losses fall on its own cable.
- A full queue loses packets too. A path's window counts only if its greatest delay is far below those of
  the others, so that no queue near it was full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.ids import cable_id
from streams.diagnosis.arrivals import Floats
from streams.diagnosis.network_view import Links, NetworkView
from streams.diagnosis.rules import KEEP_NS
from streams.runtime.loss_rates import NOTHING, Int32s, Lossy, find_lossy
from streams.runtime.units import NS_PER_S

PERIOD_NS: Final = 15 * NS_PER_S
"""Time over which losses are counted: a hundred probes of a link, even of hosts that hardly run."""
BACK_NS: Final = KEEP_NS
"""Time over which the begin of losses is searched for."""
MAX_NICS: Final = 64
"""NICs of a job: the links of larger ones are crossed by enough probes for the links service."""
HIGH, LOW = 95.0, 25.0
"""Percentiles of the greatest queueing delays of all paths and windows."""
FULL_SHARE, LOW_TIMES = 0.5, 2.0
"""Below this share of the high one, or this many times the low one, no queue is taken for full."""
MIN_LOSSES: Final = 8
MIN_WINDOWS: Final = 4
"""Windows that must hold losses: a moment without CPU is no loss rate."""
MIN_SHARE: Final = 0.02
"""Share of lost packets, at the lower end of its 95% interval, that makes a link lossy."""
TIMES: Final = 3.0
"""Times the share of the paths elsewhere."""
MIN_ELSEWHERE: Final = 50
"""Probes by paths elsewhere below which they show nothing."""


@dataclass(frozen=True, slots=True)
class LossyLink:
    """A cable that loses packets. `links`: its directed links that the same paths cross."""

    cable: str
    links: tuple[str, ...]
    candidates: tuple[str, ...]
    """Other cables that the same paths cross."""
    rate: float
    elsewhere: float
    """Share that paths elsewhere lose."""
    lost: int
    requests: int
    """Probes over the cable, and those of them that were lost."""
    since_ns: int


@dataclass(slots=True)
class _Rows:
    """Probes by route [P] and window."""

    names: list[str]
    rows: Int32s
    """[P, width] elements, as `find_lossy` takes them."""
    edges: set[int]
    """NICs and their links."""
    route: Int32s
    """[W] route of each window."""
    begin_ns: Floats
    lost: Floats
    requests: Floats

    def by_route(self, values: Floats) -> Floats:
        """Return [P] sums."""
        return np.bincount(self.route, values, len(self.rows)).astype(np.float64)


def lossy_links(network: NetworkView, nics: set[str], end_ns: int) -> list[LossyLink]:
    """Return the links between switches that lose packets of probes among some NICs, the worst first.

    Where workers are behind, the time before the newest window counts.
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
        if is_link[lossy.element]:
            link = _lossy(table, lossy, lost, requests, begin_ns)
            if link is not None:
                links.append(link)
    return links


def _lossy(table: _Rows, lossy: Lossy, lost: Floats, requests: Floats, from_ns: int) -> LossyLink | None:
    """Return a link if its losses are clear, and no other cause of losses is as likely."""
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
    same = [table.names[e] for e in (lossy.element, *lossy.aliased) if e not in table.edges]
    cable = cable_id(same[0])
    return LossyLink(
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
    """Return the windows of paths with known routes and without a full queue; None: there are none."""
    index = {"": NOTHING}
    routes: dict[tuple[str, str, Links, Links], int] = {}
    paths: dict[tuple[str, str, int], tuple[int, int] | None] = {}
    edges: set[int] = set()
    windows: list[tuple[int, int, int, int, int, float, float]] = []
    for nic, peer, delay in network.probed.among(sorted(nics), begin_ns, end_ns):
        key = nic, peer, delay.path
        if key not in paths:
            out, back = network.routes.of_probe(*key)
            route_number = routes.setdefault((nic, peer, out, back), len(routes)) if out and back else None
            paths[key] = None if route_number is None else (route_number, len(paths))
            for link in (nic, peer, *out[:1], *out[-1:], *back[:1], *back[-1:]):
                edges.add(index.setdefault(link, len(index)))
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
    width = max(len(out) + len(back) for _, _, out, back in routes) + 2
    rows = np.full((len(routes), width), NOTHING, np.int32)
    for (nic, peer, out, back), number in routes.items():
        elements = dict.fromkeys((nic, peer, *out, *back))
        rows[number, : len(elements)] = [index.setdefault(element, len(index)) for element in elements]
    return _Rows(list(index), rows, edges, route[calm].astype(np.int32), begins[calm], lost[calm], sent[calm])

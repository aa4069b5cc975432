"""Counts the load that a job puts on the links between its leaves and their spines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from statistics import fmean
from typing import Final

from schemas.ids import far_node, near_node
from streams.diagnosis.case import Case, LinkLoad
from streams.diagnosis.network.view import Links

KNOWN_SHARE: Final = 0.9
"""Share of the job's flows between hosts whose routes must be known for the loads of all links to count as
known."""
MAX_PAIRS: Final = 1_024
"""Largest number of pairs for which the routes of probes are searched for links without flows of the job."""


def link_loads(case: Case) -> list[LinkLoad]:
    """Return the load of each link between leaf and spine that the job's flows cross, the fullest first.

    The uplinks of a leaf are comparable with each other, as are its downlinks. They are the second and the
    last but one link of routes between NICs of different leaves. Flows without a job's name count only if no
    flow has the job's name.
    """
    rates: dict[tuple[str, bool], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    pairs: dict[str, float] = defaultdict(float)
    flows, traffic, job = 0, case.traffic, case.job.job
    is_named = any(flow["job"] == job for flow in traffic.flows.values())
    for pair in traffic.pairs.values():
        own = [flow for flow in pair.flows if not is_named or flow["job"] == job]
        for flow in own:
            ends = _ends_of(traffic.routes.get(flow["flow_id"], ()))
            flows += bool(ends)
            for place, link in ends:
                rates[place][link] += max(flow["rate_bps"], 1.0)
                pairs[link] += 1 / len(own)
    available = _available(case)
    loads: list[LinkLoad] = []
    for place, rate_by_link in rates.items():
        count = len(available.get(place, frozenset()) | rate_by_link.keys())
        mean = fmean([*rate_by_link.values(), *[0.0] * (count - len(rate_by_link))])
        loads += [
            LinkLoad(place[0], link, place[1], pairs[link], rate / mean, len(rate_by_link), count, flows)
            for link, rate in rate_by_link.items()
        ]
    return sorted(loads, key=lambda load: (-load.times, load.link))


def _available(case: Case) -> dict[tuple[str, bool], frozenset[str]]:
    """Return, by place, the links that known routes between the job's NICs cross; none for many pairs."""
    pairs, routes = case.traffic.pairs, case.network.routes
    if len(pairs) > MAX_PAIRS:
        return {}
    routes_of_pairs = tuple(routes.of_pair(*pair) for pair in pairs)
    return case.job.available.of(routes_of_pairs, lambda: _links_by_place(routes_of_pairs))


def _links_by_place(routes_of_pairs: Iterable[frozenset[Links]]) -> dict[tuple[str, bool], frozenset[str]]:
    links: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for place, link in chain.from_iterable(map(_ends_of, chain.from_iterable(routes_of_pairs))):
        links[place].add(link)
    return {place: frozenset(names) for place, names in links.items()}


def max_pairs(case: Case) -> float | None:
    """Return the number of pairs on the fullest link; None if too few routes of the job's flows are known."""
    flows = [flow for pair in case.traffic.pairs.values() for flow in pair.flows]
    routed = sum(flow["flow_id"] in case.traffic.routes for flow in flows)
    if not case.loads or routed < KNOWN_SHARE * len(flows):
        return None
    return max(load.pairs for load in case.loads)


@lru_cache(maxsize=65_536)
def _ends_of(links: Links) -> tuple[tuple[tuple[str, bool], str], ...]:
    """Return ((leaf, is down), link) of the uplink and of the downlink of a route over spines.

    The result is empty for other routes, and if a link's name cannot be parsed: explanations from other
    records still work.
    """
    if len(links) < 4:
        return ()
    up, down = links[1], links[-2]
    try:
        return ((near_node(up), False), up), ((far_node(down), True), down)
    except ValueError:
        return ()

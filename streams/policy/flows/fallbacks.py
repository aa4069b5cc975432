"""Ranks the alternative paths of each flow (`Fallbacks`), so that actuators can repair a failed path locally.

If there are many flows, each cycle ranks only some of them, so that no cycle takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import takewhile
from typing import Final

from schemas.limits import Limits
from schemas.records import Fallbacks, FlowFallbacks
from schemas.topics import MAX_ELEMENTS
from streams.policy.flows.flow import Flow, RouteAlternatives
from streams.policy.flows.loads import Links, Loads
from streams.policy.flows.path_health import Grade
from streams.policy.flows.path_options import PathOptions

Rank = tuple[tuple[Grade, float], int, int]
"""Health, number of links shared with the flow's route, load in steps; lower is better."""

MAX_FALLBACKS: Final = 4
"""Fallback paths published for each flow."""
MAX_FLOWS_PER_CYCLE: Final = 400
"""Flows ranked in one cycle, which bounds its duration; the rest follow in later cycles."""
GOLDEN_MULTIPLIER: Final = 0x9E3779B97F4A7C15
"""Odd, and near 2^64 over the golden ratio: products with it scatter (Knuth, TAOCP 3, 6.4)."""
LOAD_STEPS: Final = 4
"""Steps per unit of load in a rank; a coarse resolution keeps ranks stable."""


class FallbackRanking:
    """The fallback ranks of one shard and epoch. `interval_ns`: shortest time between two full rankings of a
    host; flows affected by a change of link health are ranked at once."""

    def __init__(
        self,
        shard: str,
        epoch: int,
        interval_ns: int,
        options: PathOptions,
        limits_of: Callable[[str], Limits],
    ) -> None:
        self._shard, self._epoch, self._interval_ns = shard, epoch, interval_ns
        self._options, self._limits_of = options, limits_of
        self._loads = Loads(lambda link: 0)
        self._ranked_ns: dict[str, int] = {}
        """Time of the last full ranking of each host, ns."""
        self._published: dict[str, tuple[int, list[FlowFallbacks]]] = {}
        """Number of rankings published for each host, and the last of them."""

    def update(
        self, flows: Iterable[Flow], loads: Loads, changed: frozenset[str], *, limits_changed: bool
    ) -> list[Fallbacks]:
        """Rank the fallback paths; return the `Fallbacks` of each host whose ranks changed.

        Each host is ranked once in `interval_ns`. Flows that could use a link in `changed` are ranked at
        once.
        """
        self._loads = loads
        flows_of: dict[str, list[Flow]] = {host: [] for host in self._published}
        for flow in flows:
            flows_of.setdefault(flow.host, []).append(flow)
        due = self._due_hosts(flows_of)
        records: list[Fallbacks | None] = []
        for host, host_flows in sorted(flows_of.items()):
            if host in due:
                records.append(self._rank_host(host, host_flows, host_flows))
            elif host in self._ranked_ns:  # other hosts keep the ranks of an earlier owner until they are due
                outdated = [flow for flow in host_flows if self._is_outdated(flow, changed)]
                if outdated or limits_changed:
                    records.append(self._rank_host(host, host_flows, outdated))
        return [record for record in records if record is not None]

    def _is_outdated(self, flow: Flow, changed: frozenset[str]) -> bool:
        """Return True if a flow's ranks may be wrong by now.

        Ranks may be wrong after a move of the flow, or after a change of health on a link that it could use.
        A change of its routes also makes them outdated if a link that it could use has a health record.
        """
        if flow.ranked is None:
            return False
        path, choices, _ = flow.ranked
        if path != flow.path:
            return True
        links = changed if choices is flow.choices else self._options.reported
        return bool(links) and not all(
            links.isdisjoint(route.links) and links.isdisjoint(route.reverse) for route, _ in flow.choices
        )

    def _due_hosts(self, flows_of: Mapping[str, Sized]) -> set[str]:
        """Return the hosts to rank now: new hosts, then the hosts whose last ranking is oldest."""
        waiting = [host for host in flows_of if host not in self._ranked_ns]
        due_ns = self._options.now_ns - self._interval_ns
        overdue = (host for host, at_ns in self._ranked_ns.items() if at_ns <= due_ns)
        waiting += sorted(overdue, key=lambda host: (self._ranked_ns[host], host))
        remaining, hosts = MAX_FLOWS_PER_CYCLE, set()
        for host in waiting:
            if remaining <= 0:
                break
            remaining -= len(flows_of.get(host, ()))
            hosts.add(host)
            self._ranked_ns[host] = self._options.now_ns
        return hosts

    def _rank_host(self, host: str, flows: list[Flow], outdated: list[Flow]) -> Fallbacks | None:
        """Rank the `outdated` flows of a host; return its `Fallbacks`, or None if no rank changed."""
        limits = self._limits_of(host)
        to_rank = {flow.live.flow_id for flow in outdated}
        elements: list[FlowFallbacks] = []
        for flow in sorted(flows, key=lambda candidate: (-candidate.bps, candidate.live.flow_id)):
            movable = "MOVE" in flow.live.can and flow.live.job not in limits.protected_jobs
            if not movable or len(elements) >= MAX_ELEMENTS:
                flow.ranked = None
                continue
            if flow.live.flow_id in to_rank:
                flow.ranked = flow.path, flow.choices, self._rank(flow)
            if flow.ranked is not None:
                paths = [path for path in flow.ranked[2] if path in flow.routes]
                if paths:
                    elements.append(_element(flow, paths))
        elements.sort(key=lambda element: element["flow_id"])
        seq, published = self._published.get(host, (0, None))  # each epoch publishes at least once
        if elements == published:
            return None
        self._published[host] = (seq + 1, elements)
        return {
            "host": host,
            "shard": self._shard,
            "epoch": self._epoch,
            "seq": seq,
            "at_ns": self._options.now_ns,
            "config_version": limits.version,
            "flows": elements,
            "signature": None,
        }

    def _rank(self, flow: Flow) -> list[int]:
        """Return a flow's best alternative living paths, by health, links shared with its route, and load."""
        ranked: list[tuple[Rank, int]] = []
        loads: dict[Links, int] = {}
        exclusive, draw = flow.exclusive, self._options.draw(flow.live.flow_id)
        for route, paths, shared, new_links in _alternatives(flow).others:
            health = self._options.grade(route)
            if health.grade is Grade.DEAD:
                continue
            path = self._options.free_path(flow, paths, exclusive, draw)
            if path is None:
                continue
            load = loads.get(new_links)
            if load is None:
                load = round(LOAD_STEPS * self._loads.max_share(new_links, flow.weight))
                loads[new_links] = load
            ranked.append(((health[:2], shared, load), path))
        ranked.sort()
        if len(ranked) > MAX_FALLBACKS:  # only paths that may be published need a tie break
            last = ranked[MAX_FALLBACKS - 1][0]
            ranked = list(takewhile(lambda pair: pair[0] <= last, ranked))
        drawn = sorted((rank, (draw ^ path) * GOLDEN_MULTIPLIER & 2**64 - 1, path) for rank, path in ranked)
        return [path for _, _, path in drawn[:MAX_FALLBACKS]]


def _alternatives(flow: Flow) -> RouteAlternatives:
    """Return the alternative routes of a flow, cached until its route or its choices change."""
    alternatives = flow.alternatives
    if alternatives is not None and alternatives.route is flow.route and alternatives.choices is flow.choices:
        return alternatives
    own, links = frozenset(flow.route.all_links), flow.links
    others = [
        (
            route,
            paths,
            len(own.intersection(route.all_links)),
            tuple(link for link in route.links if link not in links),
        )
        for route, paths in flow.choices
        if route != flow.route
    ]
    flow.alternatives = alternatives = RouteAlternatives(flow.route, flow.choices, others)
    return alternatives


def _element(flow: Flow, paths: list[int]) -> FlowFallbacks:
    return {
        "flow_id": flow.live.flow_id,
        "path": flow.path,
        "other_paths": paths,
        "links": list(flow.route.all_links),
        "other_links": [list(flow.routes[path].all_links) for path in paths],
        "job": flow.live.job,
    }

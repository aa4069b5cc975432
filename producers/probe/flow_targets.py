"""Plans extra probes along the routes of a NIC's live flows (service tracing, R-Pingmesh).

A flow's route is the peer and the ordered links to it; flows on one route share its probes. Probes that cross
a route anyway count towards the wanted rate, and only the difference is added. If the cap does not allow the
wanted rate on all routes, each gets the same, highest possible rate (max-min fair). Where no port in use
takes a flow's route, the plan names spare ports that do. This module is pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Links = tuple[str, ...]
PathKey = tuple[str, int]
"""Peer and source port."""
KnownRoutes = Mapping[PathKey, Links]
"""The links that probes of each path take."""

MIN_SHARE: Final = 0.02
"""A route gets no extra probes if it lacks less than this share of the rate."""
ROUTES_PER_SLOT: Final = 4
"""Number of routes probed in one wake-up, if their rates allow it."""
MAX_ROUTES_PER_SLOT: Final = 9
PERIOD_S: Final = 0.25
"""Length of one schedule period; each route gets a whole number of probes in it, rounded up."""
NS_PER_S: Final = 1e9


class PeerRoute(NamedTuple):
    """A flow's route: the peer and the ordered, directed links to that peer."""

    peer: str
    links: Links


@dataclass(frozen=True, slots=True)
class FlowTargets:
    """A periodic schedule of extra probes. `probes`: `per_slot` entries per slot; None sends no probe."""

    slot_ns: float
    per_slot: int
    probes: tuple[PathKey | None, ...]
    rate_pps: float
    """Probe rate that every route with a port reaches: the wanted rate, or less if the cap requires it."""

    @property
    def period_s(self) -> float:
        """Length of one period of the schedule, s."""
        return len(self.probes) // max(1, self.per_slot) * self.slot_ns / NS_PER_S

    @property
    def pps(self) -> float:
        """Extra probes per second, summed over all routes."""
        if not self.probes:
            return 0.0
        return sum(path is not None for path in self.probes) / self.period_s

    def rates_pps(self) -> dict[PathKey, float]:
        """Return, by path, the extra probes per second."""
        counts = Counter(path for path in self.probes if path is not None)
        return {path: count / self.period_s for path, count in counts.items()}


NO_FLOW_TARGETS: Final = FlowTargets(0.0, 1, (), math.inf)


def schedule_rates_pps(paths: Sequence[PathKey], slot_ns: float, per_slot: int) -> dict[PathKey, float]:
    """Return, by path, the probes per second of a schedule that repeats `paths`, `per_slot` in each slot."""
    period_s = len(paths) / per_slot * slot_ns / NS_PER_S
    return {path: count / period_s for path, count in Counter(paths).items()}


def max_min_rate_pps(present_pps: Sequence[float], wanted_pps: float, cap_pps: float) -> float:
    """Return the highest rate, up to `wanted_pps`, that all routes reach with `cap_pps` extra probes.

    `present_pps` is the rate of each route without extra probes. The method is water filling: pour `cap_pps`
    into a vessel whose floor has the heights `present_pps`, and return the level.
    """
    if sum(max(0.0, wanted_pps - present) for present in present_pps) <= cap_pps:
        return wanted_pps
    floor, poured = sorted(present_pps), 0.0
    for at, present in enumerate(floor):
        above = floor[at + 1] if at + 1 < len(floor) else math.inf
        volume = (above - present) * (at + 1)
        if poured + volume >= cap_pps:
            return min(wanted_pps, present + (cap_pps - poured) / (at + 1))
        poured += volume
    return wanted_pps


def plan_flow_targets(
    peer_routes: Iterable[PeerRoute],
    links_by_path: KnownRoutes,
    rates_pps: Mapping[PathKey, float],
    wanted_pps: float,
    cap_pps: float,
) -> FlowTargets:
    """Return the schedule that lifts each wanted route to `wanted_pps` with at most `cap_pps` extra probes.

    `rates_pps` holds the present rate of each path. A route that no port takes is left out. Of several ports
    on one route, the one with the highest present rate is used. The probes of a route are spread evenly over
    the period, and routes with common links go into different slots. Equal input gives an equal schedule.
    """
    ports = _ports_by_route(peer_routes, links_by_path)
    present_pps = {route: sum(rates_pps.get(path, 0.0) for path in paths) for route, paths in ports.items()}
    rate_pps = max_min_rate_pps(list(present_pps.values()), wanted_pps, cap_pps)
    lacking_pps = {
        route: rate_pps - present
        for route, present in present_pps.items()
        if rate_pps - present > MIN_SHARE * rate_pps
    }
    if not lacking_pps:
        return NO_FLOW_TARGETS
    counts = {route: math.ceil(lack * PERIOD_S - 1e-9) for route, lack in lacking_pps.items()}
    # counts are rounded up, so a longer period keeps the cap
    period_s = max(PERIOD_S, sum(counts.values()) / cap_pps)
    path_of = {
        route: max(ports[route], key=lambda path: (rates_pps.get(path, 0.0), -path[1]))
        for route in lacking_pps
    }
    slots = max(max(counts.values()), -(-sum(counts.values()) // ROUTES_PER_SLOT))
    while (per_slot := max(map(len, plan := _spread(counts, slots)))) > MAX_ROUTES_PER_SLOT:
        slots *= 2
    probes: list[PathKey | None] = []
    for routes in plan:
        probes += [path_of[route] for route in routes] + [None] * (per_slot - len(routes))
    return FlowTargets(period_s * NS_PER_S / slots, per_slot, tuple(probes), rate_pps)


def _ports_by_route(
    routes: Iterable[PeerRoute], links_by_path: KnownRoutes
) -> dict[PeerRoute, list[PathKey]]:
    paths_by_route: dict[PeerRoute, list[PathKey]] = {}
    for route in sorted(set(routes)):
        paths = sorted(path for path, links in links_by_path.items() if (path[0], links) == route)
        if paths and route.links:
            paths_by_route[route] = paths
    return paths_by_route


def _spread(counts: Mapping[PeerRoute, int], slots: int) -> list[list[PeerRoute]]:
    """Distribute the probes of routes over the slots of a period; return the routes in each slot.

    Each route gets evenly spaced slots, at most one probe in each. The step between a route's n probes is
    slots/n, rounded down or up. Its first slot is chosen to fill the slots evenly; among equally full slots,
    the slot whose routes share the fewest links with this route is taken.
    """
    plan: list[list[PeerRoute]] = [[] for _ in range(slots)]
    links_in_slot: list[Counter[str]] = [Counter() for _ in range(slots)]
    for route in sorted(counts, key=lambda route: (-counts[route], route)):
        count = counts[route]
        inner_links = route.links[1:-1]

        def places(begin: int, count: int = count) -> list[int]:
            return [(begin + number * slots // count) % slots for number in range(count)]

        def cost(begin: int, inner_links: Links = inner_links) -> tuple[int, int, int]:
            used = places(begin)  # called before the loop goes on
            shared = sum(links_in_slot[slot][link] for slot in used for link in inner_links)
            return max(len(plan[slot]) for slot in used), shared, begin

        for slot in places(min(range(-(-slots // count)), key=cost)):
            plan[slot].append(route)
            links_in_slot[slot].update(inner_links)
    return plan


def choose_spare_ports(
    peer_routes: Iterable[PeerRoute],
    links_by_path: KnownRoutes,
    candidates: Mapping[int, Mapping[str, Links]],
    current: Sequence[int],
    other_ports: Iterable[int],
) -> list[int]:
    """Return the source ports of the spare paths: `current`, with ports that serve no route replaced.

    `links_by_path` holds the routes of the regular ports, `candidates` the traced links by port and peer, and
    `other_ports` the ports in use. The choice is greedy: in each step, the port that takes the most missing
    routes is added, and a current port wins a tie. Unused ports stay until replaced.
    """
    served = {(peer, links) for (peer, _), links in links_by_path.items()}
    missing = {route for route in peer_routes if route.links and (route.peer, route.links) not in served}
    in_use = set(other_ports)

    def routes_by(port: int) -> set[PeerRoute]:
        traced = candidates.get(port, {})
        return {route for route in missing if traced.get(route.peer) == route.links}

    selected: list[int] = []
    ports = [port for port in candidates if port not in in_use]
    while missing and len(selected) < len(current):
        free = [port for port in ports if port not in selected]
        best = max(free, key=lambda port: (len(routes_by(port)), port in current, -port), default=None)
        if best is None or not (routes := routes_by(best)):
            break
        selected.append(best)
        missing -= routes
    return _replace_unused(current, selected)


def _replace_unused(current: Sequence[int], selected: Sequence[int]) -> list[int]:
    fresh = [port for port in selected if port not in current]
    result = list(current)
    for at, port in enumerate(current):
        if port not in selected and fresh:
            result[at] = fresh.pop(0)
    return result

"""Chooses the few source ports of a NIC's probes so that together they use every route.

The route of each candidate port to each peer is any hashable, such as its hops. Pure.

Number of candidates: ECMP assigns a port to one of n routes as if at random. A given route is missed by k
ports with probability (1 - 1/n)^k < exp(-k/n), and there are n routes. So all n are seen with probability 1 -
eps after n ln n + n ln(1/eps) ports (coupon collector; Motwani and Raghavan, Randomized Algorithms, 3.6).
With 64 candidates, 8 spines are all seen with 99.7%. The few ports that cover as many routes are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Route = TypeVar("Route", bound=Hashable)
Routes = Mapping[int, Mapping[str, Hashable]]
"""For each source port, the route of its packets to each peer."""


class Coverage(NamedTuple):
    """How well a set of ports covers the routes. Coverages are compared field by field; larger is better.

    `routes`: distinct routes over all peers. `distinct`: sum over the peers of the distinct routes to each.
    `even`: minus the sum of the squared numbers of (peer, port) on each route.
    """

    routes: int
    distinct: int
    even: int


def coverage_of(ports: Sequence[int], routes: Routes) -> Coverage:
    """Return the coverage of `ports`; a port or peer without a known route covers nothing."""
    by_peer: dict[str, set[Hashable]] = {}
    shared: Counter[Hashable] = Counter()
    for port in ports:
        for peer, route in routes.get(port, {}).items():
            by_peer.setdefault(peer, set()).add(route)
            shared[route] += 1
    return Coverage(
        len(shared), sum(len(paths) for paths in by_peer.values()), -sum(n * n for n in shared.values())
    )


class _RouteCounts:
    """Counts how often the chosen ports use each route, over all peers and per peer."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._shared: Counter[Hashable] = Counter()
        self._of_peer: Counter[tuple[str, Hashable]] = Counter()

    def add(self, port: int, times: int = 1) -> None:
        """Count the routes of `port` `times` times; -1 removes the port."""
        for peer, route in self._routes[port].items():
            self._shared[route] += times
            self._of_peer[peer, route] += times

    def gain(self, port: int) -> Coverage:
        """Return the increase of the coverage if `port` is added."""
        fresh: Counter[Hashable] = Counter(self._routes[port].values())
        return Coverage(
            sum(not self._shared[route] for route in fresh),
            sum(not self._of_peer[pair] for pair in self._routes[port].items()),
            -sum((self._shared[route] + n) ** 2 - self._shared[route] ** 2 for route, n in fresh.items()),
        )


def choose_ports(routes: Routes, count: int, current: Sequence[int] = (), gain: float = 0.2) -> list[int]:
    """Return `count` source ports chosen from `routes`. Ports of `current` that stay keep their position.

    The choice is greedy: each step adds the port with the largest gain. Then each port is compared once with
    all other ports. New ports change the delay floors of their paths. So the current ports stay unless others
    cover more routes, or a share of `gain` more distinct routes. The current ports also stay if there are too
    few candidates.
    """
    routed_ports = [port for port in routes if routes[port]]
    if len(routed_ports) < count:
        return list(current)
    best_ports = _choose_greedily(routes, routed_ports, count, current)
    stay: list[int | None] = [None] * count
    if len(current) == count:
        now, then = coverage_of(current, routes), coverage_of(best_ports, routes)
        if then.routes <= now.routes and then.distinct < (1 + gain) * now.distinct:
            return list(current)
        stay = [port if port in best_ports else None for port in current]
    fresh = iter(sorted(port for port in best_ports if port not in current))
    return [port if port is not None else next(fresh) for port in stay]


def _choose_greedily(
    routes: Routes, routed_ports: Sequence[int], count: int, current: Sequence[int]
) -> list[int]:
    counts = _RouteCounts(routes)

    def best(others: Sequence[int]) -> int:
        left = [port for port in routed_ports if port not in others]
        return max(left, key=lambda port: (counts.gain(port), port in current, -port))

    best_ports: list[int] = []
    for _ in range(count):
        best_ports.append(best(best_ports))
        counts.add(best_ports[-1])
    for at in range(count):
        counts.add(best_ports[at], -1)
        best_ports[at] = best(best_ports[:at] + best_ports[at + 1 :])
        counts.add(best_ports[at])
    return best_ports

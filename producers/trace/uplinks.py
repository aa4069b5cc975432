"""Plans checks of a NIC's uplinks, which detect that switches moved a path without losing a packet.

A switch whose neighbour loses carrier uses another route at once, so no probe shows the change. One packet
per uplink route detects it, with a TTL that ends at the apex of the route. This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from producers.trace.tracer import TracedFlow

Hops = tuple[str | None, ...]
Path = TypeVar("Path")

MIN_PAUSE_S: Final = 0.125


def uplink_routes(paths: Iterable[tuple[Path, Hops]]) -> dict[Hops, list[Path]]:
    """Group paths by their hops up to the apex, the middle hop of the route.

    Paths whose apex did not answer, and paths that stay at their first switch, are left out.
    """
    paths_by_hops: dict[Hops, list[Path]] = {}
    for path, hops in paths:
        apex = (len(hops) + 1) // 2
        if len(hops) > 1 and hops[apex - 1] is not None:
            paths_by_hops.setdefault(hops[:apex], []).append(path)
    return paths_by_hops


class UplinkPlan(NamedTuple):
    """The uplink checks of one NIC: for each route a list of packets, of which each check sends one."""

    checks: list[list[TracedFlow]]
    max_routes_of_switch: int
    """Maximum number of uplink routes that end at the same switch."""


def plan_checks(
    paths: Iterable[tuple[TracedFlow, Hops]], switch_of: Callable[[str | None], object]
) -> UplinkPlan:
    """Plan the checks of the uplink routes of `paths`. `switch_of` returns the switch of a hop's address."""
    routes = uplink_routes(paths)
    apexes = Counter(switch_of(hops[-1]) for hops in routes)
    checks = [
        [flow._replace(max_ttl=len(hops), uplink_check=True) for flow in flows]
        for hops, flows in routes.items()
    ]
    return UplinkPlan(checks, max(apexes.values(), default=0))


def pause_s(nics: int, routes: int, switch_pps: float) -> float:
    """Return the time between two checks of all uplink routes of one NIC, s.

    Up to `nics` NICs check the same apex switch, each with one packet per route (`routes`). The pause limits
    the switch to `switch_pps` answers per second. Raises ValueError unless switch_pps > 0.
    """
    if switch_pps <= 0:
        raise ValueError(f"switch_pps: {switch_pps:g}, expected more than 0")
    return max(MIN_PAUSE_S, nics * routes / switch_pps)


class TokenBucket:
    """Limits the traces that other traces trigger.

    Every path may be traced `burst` times at once, and once per `rest_s` in the long run. If switches spray
    packets, no two traces agree, and each trace would trigger more traces.
    """

    def __init__(self, rest_s: float, burst: int) -> None:
        self._rest_s, self._burst = rest_s, burst
        self._spent = 0.0
        self._updated_s = float("-inf")

    def take(self, paths: int, now_s: float) -> bool:
        """Return whether the limit for `paths` paths allows a trace now, and count the trace if so."""
        self._spent = max(0.0, self._spent - (now_s - self._updated_s) * paths / self._rest_s)
        self._updated_s = now_s
        allowed = self._spent < self._burst * paths
        self._spent += allowed
        return allowed

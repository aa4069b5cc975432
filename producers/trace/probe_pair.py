"""Holds the traced probe paths between a NIC and one peer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from producers.trace.known_route import Hops, TracedRoute
from producers.trace.published_rows import PublishedRows
from producers.trace.route_names import RouteNames
from producers.trace.tracer import TracedFlow
from schemas.records import Leg, PathMap

LegPort = tuple[Leg, int]

SETTLE_S: Final = 5.0
"""Longest time for which a pair's first record waits until all of its paths are traced."""


@dataclass(slots=True)
class ProbePair:
    """Two NICs, in one direction: the traced paths between them, and their published record."""

    first_s: float
    routes: dict[LegPort, TracedRoute] = field(default_factory=dict)
    gone_s: float | None = None
    first_hop: str | None = None
    published: PublishedRows[PathMap] = field(default_factory=PublishedRows)

    def traced(self) -> Iterator[tuple[LegPort, TracedRoute, TracedFlow]]:
        """Yield each traced path: its direction and port, its known route, and its trace packets."""
        for key, route in self.routes.items():
            if route.flow is not None:
                yield key, route, route.flow

    def route_of(self, flow: TracedFlow) -> TracedRoute | None:
        """Return the known route of the path that is traced with `flow`; None if there is none."""
        route = self.routes.get((flow.leg, flow.port))
        return route if route is not None and route.flow == flow else None

    def reached_requests(self) -> Iterator[tuple[TracedFlow, Hops]]:
        """Yield, for each request whose trace reaches the peer, its trace packets and hops."""
        for _, route, flow in self.traced():
            if flow.leg == Leg.REQUEST and route.known is not None and route.known.reached:
                yield flow, route.known.hops

    def own_first_hops(self) -> Iterator[str]:
        """Yield the address of the first router on each path that reaches the peer."""
        for route in self.routes.values():
            known_route = route.known
            if (
                known_route is not None
                and known_route.reached
                and known_route.hops
                and known_route.hops[0] is not None
            ):
                yield known_route.hops[0]

    def request_hops(self) -> dict[int, Hops]:
        """Return, by source port, the hops of requests that reach the peer over a router that answers."""
        return {
            port: known_route.hops
            for (leg, port), route in self.routes.items()
            if leg == Leg.REQUEST
            and (known_route := route.known)
            and known_route.reached
            and any(known_route.hops)
        }

    def published_links(self) -> dict[int, list[str]]:
        """Return, by source port, the published links of requests whose links are all known."""
        return {
            row["path"]: row["links"]
            for row in self.published.rows or ()
            if row["leg"] == Leg.REQUEST and row["complete"]
        }

    def replace_flows(self, flows: Mapping[LegPort, TracedFlow], now_s: float) -> list[TracedFlow]:
        """Set the paths to trace; return the former paths' packets, whose traces must be cancelled."""
        self.gone_s = None
        cancelled = []
        for key, route, flow in list(self.traced()):
            new_flow = flows.get(key)
            if flow == new_flow:
                continue
            cancelled.append(flow)
            route.flow, route.due_s = None, float("inf")
            if new_flow is None:
                del self.routes[key]
            self.published.dirty = True
        for key, flow in flows.items():
            route = self.routes.setdefault(key, TracedRoute())
            if route.flow is None:
                route.flow = flow
                route.due_s = now_s if route.due_s == float("inf") else route.due_s
        return cancelled

    def pause(self, now_s: float) -> list[TracedFlow]:
        """Stop tracing but keep the known routes; return the packets whose traces must be cancelled."""
        self.gone_s = now_s
        cancelled = [flow for _, _, flow in self.traced()]
        for route in self.routes.values():
            route.flow, route.due_s = None, float("inf")
        return cancelled

    def rows(self, peer: str, names: RouteNames) -> list[PathMap]:
        """Return the rows of the pair's `PathMaps` record: one for each path with a known route."""
        rows: list[PathMap] = []
        for _, route, _ in self.traced():
            if route.known is not None:
                names.observe(peer, route.known.hops, route.known.reached, self.first_hop)
        for (leg, port), route, _ in sorted(self.traced(), key=lambda traced: traced[0]):
            known_route = route.known
            if known_route is None:
                continue
            named = names.name(peer, port, known_route.hops, known_route.reached, self.first_hop)
            rows.append(named.row(port, leg, since_ns=known_route.since_ns, changes=known_route.changes))
        return rows

    def must_wait(self, rows: Sequence[PathMap], now_s: float) -> bool:
        """Return whether the pair's changed record, with `rows`, must not be published yet."""
        if not rows:
            return True
        if now_s - self.first_s >= SETTLE_S:
            return False
        if len(rows) < sum(1 for _ in self.traced()):
            return True
        return self.published.rows is None and not all(row["complete"] for row in rows)

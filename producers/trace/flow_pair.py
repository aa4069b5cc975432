"""Holds the traced flow routes between a NIC and one peer, and the number of routers to the peer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.trace.known_route import TracedRoute
from producers.trace.published_rows import PublishedRows
from producers.trace.route_names import RouteNames
from producers.trace.tracer import Trace, TracedFlow
from schemas import records
from schemas.records import FlowLeg, FlowProtocol, Leg
from schemas.topology import Topology

TRACEROUTE_PORT: Final = 33_434
"""UDP port of traceroute: no program listens there, so the host answers and shows its distance."""
SETTLE_S: Final = 3.0
"""Longest time for which a pair's record waits until all of its routes are traced."""
ENDED_S: Final = 2.0
"""A flow has ended if it was not seen for this long."""
DISTANCE_RETRY_S: Final = 1.0
DISTANCE_FRESH_S: Final = 30.0


def shape_of(protocol: str) -> FlowProtocol:
    """Return the protocol, TCP or UDP, that switches see in the packets of a flow of `protocol`."""
    return FlowProtocol.TCP if protocol == FlowProtocol.TCP else FlowProtocol.UDP


class FlowRouteKey(NamedTuple):
    """Identifies a route: the direction (`leg`), the peer, and the flow's source and destination port."""

    leg: FlowLeg
    peer: str
    port: int
    peer_port: int

    @classmethod
    def of(cls, flow: TracedFlow) -> FlowRouteKey:
        """Return the key of the route that the packets of `flow` follow."""
        if flow.leg == Leg.REQUEST:
            return cls(FlowLeg.DATA, flow.peer, flow.port, flow.target[1])
        return cls(FlowLeg.ACK, flow.peer, flow.target[1], flow.port)

    def traced(self, address: str, socket: int, routers: int) -> TracedFlow:
        """Return the packets that trace this direction up to the last of `routers` routers."""
        if self.leg == FlowLeg.DATA:
            return TracedFlow(Leg.REQUEST, self.peer, self.port, (address, self.peer_port), socket, routers)
        return TracedFlow(Leg.ANSWER, self.peer, self.peer_port, (address, self.port), socket, routers)


@dataclass(slots=True, kw_only=True)
class FlowRoute(TracedRoute):
    """The traced route of the flows with one `FlowRouteKey`."""

    shape: FlowProtocol
    """Protocol of the trace packets: UDP or TCP."""
    wanted_s: float = 0.0
    """Time of the last request for this route."""
    in_use: bool = False
    """True if a live flow takes it."""
    links: tuple[str, ...] = ()
    complete: bool = False


@dataclass(slots=True)
class _Distance:
    """Number of routers to a peer, found with packets to a port where no program listens."""

    routers: int | None = None
    """None if the number is unknown."""
    flow: TracedFlow | None = None
    due_s: float = 0.0
    tries: int = 0
    """Consecutive traces without an answer."""

    @property
    def pause_s(self) -> float:
        """Pause from the start of the next trace to the start of the trace after it, s."""
        if self.routers is None:
            return min(DISTANCE_FRESH_S, DISTANCE_RETRY_S * 2.0**self.tries)
        return DISTANCE_FRESH_S

    def begin(self, peer: str, address: str, port: int, next_s: float) -> TracedFlow:
        """Begin a trace from `port` and return its packets. `next_s`: monotonic time of the next trace, s."""
        self.due_s = next_s
        self.tries += 1
        self.flow = TracedFlow(Leg.REQUEST, peer, port, (address, TRACEROUTE_PORT), 0)
        return self.flow

    def update(self, trace: Trace, topology: Topology, peer_first_hop: str | None) -> bool:
        """Update the distance from a trace; return whether it changed.

        A firewall can keep the peer silent. Then the distance counts if the last hop is the peer's router.
        """
        if trace.reached:
            self.tries = 0
        elif not trace.hops or not _is_same_node(topology, trace.hops[-1], peer_first_hop):
            return False
        changed = len(trace.hops) != self.routers
        self.routers = len(trace.hops)
        return changed


@dataclass(slots=True)
class FlowPair:
    """Two NICs, in one direction: the routes between them, their distance, and their published record."""

    wanted_s: float
    """Time of the last request for any of its routes."""
    routes: dict[FlowRouteKey, FlowRoute] = field(default_factory=dict)
    distance: _Distance = field(default_factory=_Distance)
    address: str | None = None
    first_hop: str | None = None
    movable: dict[int, tuple[FlowProtocol, float]] = field(default_factory=dict)
    """For each destination port of movable flows, their protocol and the time at which one was last seen."""
    published: PublishedRows[records.FlowRoute] = field(default_factory=PublishedRows)
    dirty_s: float = 0.0

    def mark_dirty(self, now_s: float) -> None:
        """Record at `now_s` that the pair's rows have changed and must be published again."""
        if not self.published.dirty:
            self.published.dirty, self.dirty_s = True, now_s

    def drop_unused(self, now_s: float, keep_s: float) -> list[FlowRoute]:
        """Drop and return the routes without a request for `keep_s` seconds, such as those of ended flows."""
        dropped = []
        for key, route in list(self.routes.items()):
            unused_s = now_s - route.wanted_s
            route.in_use = route.in_use and unused_s <= ENDED_S
            if unused_s > keep_s:
                dropped.append(self.routes.pop(key))
                self.mark_dirty(now_s)
        self.movable = {
            port: shape_seen for port, shape_seen in self.movable.items() if now_s - shape_seen[1] <= ENDED_S
        }
        return dropped

    def must_wait(self, now_s: float) -> bool:
        """Return whether a changed record must not be published yet."""
        if self.published.moved:
            return False
        settling = any(route.known is None for route in self.routes.values())
        return now_s < self.published.next_s or (settling and now_s - self.dirty_s < SETTLE_S)

    def name(self, key: FlowRouteKey, route: FlowRoute, names: RouteNames) -> bool:
        """Name the links of a route; return whether its links differ from those named before."""
        known_route = route.known
        if known_route is None:
            return False
        port = key.port if key.leg == FlowLeg.DATA else key.peer_port
        names.observe(key.peer, known_route.hops, known_route.reached, self.first_hop)
        named = names.name(key.peer, port, known_route.hops, known_route.reached, self.first_hop)
        complete = named.complete and named.contradiction is None
        changed = (named.links, complete) != (route.links, route.complete)
        route.links, route.complete = named.links, complete
        return changed

    def rows(self) -> list[records.FlowRoute]:
        """Return the rows of the pair's `FlowRoutes` record."""
        return [
            {
                "leg": key.leg,
                "path": key.port,
                "peer_port": key.peer_port,
                "links": list(route.links),
                "complete": route.complete,
                "since_ns": route.known.since_ns,
                "protocol": route.shape,
            }
            for key, route in sorted(self.routes.items(), key=lambda item: item[0])
            if route.known is not None
        ]


def _is_same_node(topology: Topology, hop: str | None, other: str | None) -> bool:
    """Return whether the topology file assigns both hops' addresses to one node."""
    place, other_place = topology.at(hop or ""), topology.at(other or "")
    return place is not None and other_place is not None and place[0] == other_place[0]

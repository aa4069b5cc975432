"""Traces the links that a NIC's flows take, and the links that they would take from other source ports.

Each trace uses a flow's own port pair. The result is the links of each flow, and a `FlowRoutes` record of
each pair: leg DATA for packets that this NIC sends, leg ACK for its answers to peers' flows.

No trace packet reaches a peer, where it could be mistaken for data: its TTL ends at the last router. The
number of routers is measured per peer with packets to a port where no program listens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final

from producers.flows.intervals import Key
from producers.settings import FlowSettings
from producers.trace.candidate_ports import flow_candidate_ports
from producers.trace.flow_pair import FlowPair, FlowRoute, FlowRouteKey, shape_of
from producers.trace.known_route import Change, KnownRoute
from producers.trace.requested_acks import RequestedAcks
from producers.trace.route_tracer import RouteTracer, TracedNic
from producers.trace.sockets import TraceSocket
from producers.trace.tracer import Packet, Trace
from schemas.records import FlowLeg, FlowProtocol, FlowRoutes, Nic
from schemas.topics import FLOW_ROUTES, MAX_ELEMENTS
from schemas.topology import Topology

_log = logging.getLogger(__name__)


MAX_ROUTES_PER_LEG: Final = MAX_ELEMENTS // 2
RETRACE_SHARE: Final = 0.5
"""Share of the trace packets used to trace known routes again."""
SUSPECT_REST_S: Final = 0.5
PUBLISH_S: Final = 0.02
DRAIN_S: Final = 0.25
"""Interval for reading errors that other sockets' packets caused, because they would fill the queue."""
SHAPES: Final = (FlowProtocol.UDP, FlowProtocol.TCP)

Wanted = tuple[str, Key, bool]
"""A flow: peer, key, and whether it may be moved."""


class FlowRouteTracer(RouteTracer):
    """Traces the routes of one NIC's flows. Call `tick` often while `busy`; it never blocks."""

    def __init__(
        self,
        settings: FlowSettings,
        nic: TracedNic,
        *,
        peers: Mapping[str, Nic],
        sockets: Mapping[str, TraceSocket],
        seed: int | None = None,
    ) -> None:
        """Start without routes. The caller updates `peers`, which maps NICs to announcements.

        `sockets` has one entry per protocol.
        """
        super().__init__(settings, nic, seed)
        self.settings = settings
        self.links_changed = False
        """True if links of a live flow have become known or changed; the caller resets it."""
        self._peers, self._sockets_by_shape = peers, sockets
        self._sockets = list({id(sock): sock for sock in sockets.values()}.values())
        self._pairs: dict[str, FlowPair] = {}
        self._requested = RequestedAcks(MAX_ROUTES_PER_LEG)
        self._publish_s = self._drain_s = 0.0
        self._warned = False
        self._count = 0

    # ---- inputs

    def on_announcement(self, peer: str, now_s: float) -> None:
        """Adapt the routes to a peer to its changed announcement; drop them if it was removed."""
        pair, record = self._pairs.get(peer), self._peers.get(peer)
        if pair is None:
            return
        if record is None:
            self._drop_pair(peer, pair)
        else:
            self._apply_announcement(pair, record, now_s)

    def _apply_announcement(self, pair: FlowPair, record: Nic, now_s: float) -> None:
        is_ipv6 = ":" in self.address
        address = next((address for address in record["addresses"] if (":" in address) == is_ipv6), None)
        if address != pair.address:
            pair.address, pair.distance.routers = address, None
            for route in pair.routes.values():
                self._cancel(route)
        if record["first_hop"] is not None and record["first_hop"] != pair.first_hop:
            pair.first_hop = record["first_hop"]
            self._name_all(pair, now_s)

    def on_peer_routes(self, peer: str, record: FlowRoutes | None, now_s: float) -> None:
        """Read a peer's record of its flows to this NIC; trace this NIC's answers to these flows."""
        self._keep_requested(peer, self._requested.take(peer, record, now_s), now_s)

    def on_own_routes(self, peer: str, record: FlowRoutes | None, now_s: float) -> None:
        """Keep the record of an earlier run of this reporter until it is no longer needed, then delete it."""
        if record is not None and peer not in self._pairs:
            pair = self._pairs[peer] = FlowPair(now_s)
            pair.published.rows, pair.published.at_s = record["routes"], now_s

    def trace_flows(self, flows: Iterable[Wanted], now_s: float) -> None:
        """Trace the routes of the flows that this NIC sends now, and keep the routes already known."""
        for peer, (protocol, _, port, _, peer_port), may_move in flows:
            record, shape = self._peers.get(peer), shape_of(protocol)
            if record is None or shape not in self._sockets_by_shape:
                continue
            pair = self._pair(peer, record, now_s)
            self._keep(pair, FlowRouteKey(FlowLeg.DATA, peer, port, peer_port), shape, now_s, in_use=True)
            if pair.distance.routers is None:
                self._measure_distance(peer, pair, now_s)
            if may_move:
                is_new = peer_port not in pair.movable
                pair.movable[peer_port] = (shape, now_s)
                if is_new:
                    self._keep_candidates(peer, pair, now_s)

    def trace_soon(self, peer: str, port: int, peer_port: int, now_s: float) -> None:
        """Trace a flow's route at once, because the flow's counters indicate a change."""
        pair = self._pairs.get(peer)
        route = None if pair is None else pair.routes.get(FlowRouteKey(FlowLeg.DATA, peer, port, peer_port))
        if route is not None and route.flow is not None and now_s - route.traced_s > SUSPECT_REST_S:
            self._tracer.schedule(route.flow, soon=True)

    def links_of(self, peer: str, key: Key) -> tuple[str, ...]:
        """Return the links of a flow's data packets, in order; empty unless all links are known."""
        pair = self._pairs.get(peer)
        route = None if pair is None else pair.routes.get(FlowRouteKey(FlowLeg.DATA, peer, key[2], key[4]))
        if route is None or not route.complete or route.shape != shape_of(key[0]):
            return ()
        return route.links

    def set_topology(self, topology: Topology, now_s: float) -> None:
        """Replace the topology and name all routes again."""
        self._names.set_topology(topology)
        for pair in self._pairs.values():
            self._name_all(pair, now_s)

    # ---- periodic work

    @property
    def busy(self) -> bool:
        """Whether any trace is open or queued."""
        return self._tracer.busy

    def tick(self, now_s: float) -> None:
        """Receive answers, send trace packets, and publish records that are due."""
        for sock in self._sockets if self.busy or now_s >= self._drain_s else ():
            self._drain_s = now_s + DRAIN_S
            for reply in sock.replies():
                if reply.hop is None:
                    self._tracer.on_arrival(reply.seq)
                else:
                    self._tracer.on_hop(reply.seq, reply.hop)
        self._run_traces(now_s)
        if now_s >= self._publish_s:
            self._publish_s = now_s + PUBLISH_S
            for peer, pair in list(self._pairs.items()):
                self._publish(peer, pair, now_s)

    def refresh(self, now_s: float) -> None:
        """Schedule traces that are due and drop routes that are no longer needed."""
        self._count = sum(len(pair.routes) for pair in self._pairs.values())
        for peer, needed in self._requested.by_peer(now_s).items():
            self._keep_requested(peer, needed, now_s)
        for peer, pair in list(self._pairs.items()):
            self._keep_candidates(peer, pair, now_s)
            for route in pair.drop_unused(now_s, self.settings.routes_keep_s):
                self._cancel(route)
            if pair.routes:
                self._measure_distance(peer, pair, now_s)
                self._schedule_due(pair, now_s)
            elif now_s - pair.wanted_s > self.settings.routes_keep_s:
                self._drop_pair(peer, pair)

    def _schedule_due(self, pair: FlowPair, now_s: float) -> None:
        if pair.distance.routers is None or pair.address is None:
            return
        for route in pair.routes.values():
            if route.flow is not None and now_s >= route.due_s:
                route.due_s = now_s + self._retrace_pause_s(route)
                self._tracer.schedule(route.flow)

    def close(self) -> None:
        """Close the sockets that send trace packets."""
        for sock in self._sockets:
            sock.close()

    # ---- the set of traced routes

    def _pair(self, peer: str, record: Nic, now_s: float) -> FlowPair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = FlowPair(now_s)
        if pair.address is None:
            self._apply_announcement(pair, record, now_s)
        return pair

    def _keep_requested(self, peer: str, needed: Mapping[FlowRouteKey, FlowProtocol], now_s: float) -> None:
        record = self._peers.get(peer)
        if record is None or not needed:
            return
        pair = self._pair(peer, record, now_s)
        for key, shape in needed.items():
            if shape in self._sockets_by_shape:
                self._keep(pair, key, shape, now_s)

    def _keep_candidates(self, peer: str, pair: FlowPair, now_s: float) -> None:
        if pair.address is None:
            return
        for peer_port, (shape, _) in pair.movable.items():
            for port in flow_candidate_ports(
                self.address,
                pair.address,
                peer_port,
                self.settings.flow_candidate_ports,
                self.settings.first_candidate_port,
            ):
                self._keep(pair, FlowRouteKey(FlowLeg.DATA, peer, port, peer_port), shape, now_s)

    def _keep(
        self, pair: FlowPair, key: FlowRouteKey, shape: FlowProtocol, now_s: float, in_use: bool = False
    ) -> None:
        route = pair.routes.get(key)
        if route is not None and route.shape != shape and route.wanted_s < now_s:
            self._cancel(route)  # another flow has the ports
            route = None
        if route is None:
            if self._is_full(pair, key.leg, in_use):
                self._warn_full()
                return
            route = pair.routes[key] = FlowRoute(shape=shape, in_use=in_use)
            self._count += 1
            if pair.distance.routers is not None:
                self._begin(pair, key, route, now_s)
        route.wanted_s = pair.wanted_s = now_s
        if in_use and not route.in_use:
            route.in_use, route.due_s = True, min(route.due_s, now_s)

    def _is_full(self, pair: FlowPair, leg: FlowLeg, in_use: bool) -> bool:
        might_fill_leg = len(pair.routes) >= MAX_ROUTES_PER_LEG
        if might_fill_leg and sum(route.leg == leg for route in pair.routes) >= MAX_ROUTES_PER_LEG:
            return True
        return self._count >= self.settings.max_routes and not in_use

    def _warn_full(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: more routes than %d per NIC or %d per pair: some are not traced",
                self.nic,
                self.settings.max_routes,
                MAX_ROUTES_PER_LEG,
            )

    def _begin(self, pair: FlowPair, key: FlowRouteKey, route: FlowRoute, now_s: float) -> None:
        """Start tracing a route that is new, or whose number of routers changed."""
        routers = pair.distance.routers
        if not routers or pair.address is None:  # no router in between
            route.known, route.due_s = KnownRoute((), True, time.time_ns()), float("inf")
            self._name(pair, key, route, now_s)
            pair.mark_dirty(now_s)
            return
        route.flow = key.traced(pair.address, SHAPES.index(route.shape), routers)
        route.due_s = float("inf")
        self._tracer.schedule(route.flow, soon=route.in_use)

    def _cancel(self, route: FlowRoute) -> None:
        if route.flow is not None:
            self._tracer.cancel(route.flow)
            route.flow = None

    def _measure_distance(self, peer: str, pair: FlowPair, now_s: float) -> None:
        distance = pair.distance
        if pair.address is not None and now_s >= distance.due_s:
            next_s = now_s + self._jittered(distance.pause_s)
            flow = distance.begin(peer, pair.address, self.settings.first_candidate_port, next_s)
            self._tracer.schedule(flow, soon=True)

    def _send(self, packet: Packet) -> None:
        flow = packet.flow
        self._sockets_by_shape[SHAPES[flow.socket]].send(flow.port, flow.target, packet.ttl, packet.seq)

    def _retrace_pause_s(self, route: FlowRoute) -> float:
        """Return the pause before a routine trace, s: shorter for a live flow, longer if routes are many."""
        hops = route.flow.max_ttl if route.flow is not None else 1
        min_s = self.settings.retrace_own_s if route.in_use else self.settings.retrace_s
        budget_s = self._count * max(1, hops) / (RETRACE_SHARE * self.settings.trace_pps)
        return self._jittered(max(min_s, budget_s))

    # ---- results

    def _on_trace(self, trace: Trace, now_s: float) -> None:
        flow = trace.flow
        pair = self._pairs.get(flow.peer)
        if pair is None:
            return
        if flow == pair.distance.flow:
            self._on_distance(pair, trace, now_s)
            return
        key = FlowRouteKey.of(flow)
        route = pair.routes.get(key)
        if route is None or route.flow != flow:
            return
        # the last router answered: one link remains to the peer
        trace = Trace(flow, trace.hops, trace.reached or len(trace.hops) == flow.max_ttl)
        route.due_s = now_s + self._retrace_pause_s(route)
        self._note_traced(route, trace, now_s)
        change = route.accept(trace, time.time_ns())
        if change is Change.UNCONFIRMED:
            self._tracer.schedule(flow, soon=True)
        elif change is not Change.NONE:
            self._name(pair, key, route, now_s)
            pair.mark_dirty(now_s)
            if change is Change.MOVED:
                pair.published.moved = True
                self._on_moved(pair, now_s)

    def _on_moved(self, pair: FlowPair, now_s: float) -> None:
        """Trace other routes, of the pair or of the whole NIC, because they may have moved with this one."""
        affected = self._pairs.values() if self._all_rested(now_s) else [pair]
        for other in affected:
            for route in other.routes.values():
                if route.flow is not None:
                    self._tracer.schedule(route.flow, soon=route.in_use)

    def _on_distance(self, pair: FlowPair, trace: Trace, now_s: float) -> None:
        """Process a distance trace. If the distance changed, trace the peer's routes to the new length."""
        if pair.distance.update(trace, self._names.topology, pair.first_hop):
            for key, route in pair.routes.items():
                self._cancel(route)
                self._begin(pair, key, route, now_s)

    def _name_all(self, pair: FlowPair, now_s: float) -> None:
        for key, route in pair.routes.items():
            if route.known is not None:
                self._name(pair, key, route, now_s)
        pair.mark_dirty(now_s)

    def _name(self, pair: FlowPair, key: FlowRouteKey, route: FlowRoute, now_s: float) -> None:
        if pair.name(key, route, self._names):
            self.links_changed = self.links_changed or route.in_use
        if self._names.renamed:  # this route showed whose addresses answer
            self._names.renamed = False
            for other in self._pairs.values():
                self._name_all(other, now_s)

    def _publish(self, peer: str, pair: FlowPair, now_s: float) -> None:
        published = pair.published
        if published.is_old(now_s) and pair.routes:
            pair.mark_dirty(now_s)
            published.rows = []
        if not published.dirty or pair.must_wait(now_s):
            return
        rows = pair.rows()
        if published.replace(rows, now_s, self._random):
            record: FlowRoutes = {
                "nic": self.nic,
                "peer": peer,
                "shard": self.shard,
                "traced_ns": time.time_ns(),
                "routes": rows,
            }
            self._publish_record(FLOW_ROUTES, peer, record)

    def _drop_pair(self, peer: str, pair: FlowPair) -> None:
        for route in pair.routes.values():
            self._cancel(route)
        if pair.distance.flow is not None:
            self._tracer.cancel(pair.distance.flow)
        del self._pairs[peer]
        if pair.published.rows is not None:
            self._publish_tombstone(FLOW_ROUTES, self.nic, peer)

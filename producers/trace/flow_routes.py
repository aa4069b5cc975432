"""Traces the links that a NIC's flows take, and would take from other source ports.

Each trace uses a flow's own port pair. The result is the links of each flow and `FlowRoutes` of each pair:
leg FlowLeg.DATA for packets that this NIC sends, leg FlowLeg.ACK for its answers to peers' flows.

No trace packet reaches a peer, where it could be taken for data: its TTL ends at the last router. The number
of routers is found once per peer, with packets to a port where no program listens.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.flows.intervals import Key
from producers.settings import FlowSettings
from producers.trace.route_tracer import (
    ALL_REST_S,
    MIN_RECORD_GAP_S,
    REPUBLISH_S,
    Change,
    Put,
    RouteTracer,
    without_since,
)
from producers.trace.sockets import TraceSocket
from producers.trace.tracer import KnownRoute, Packet, Trace, TracedFlow
from schemas import codec
from schemas.records import FlowLeg, FlowProtocol, FlowRoute, FlowRoutes, Leg, Nic
from schemas.topics import FLOW_ROUTES, MAX_ELEMENTS
from schemas.topology import Topology

__all__ = ["FlowRouteKey", "FlowRouteTracer", "flow_candidate_ports"]

_log = logging.getLogger(__name__)

LAST_PORT: Final = 65_535
TRACEROUTE_PORT: Final = 33_434
"""UDP port of traceroute: no program listens there, so the host answers and shows its distance."""
ROCE_PORT: Final = 4791
"""Destination port of RoCEv2 data and acknowledgements; each end has its own source port."""
MAX_ROUTES_PER_LEG: Final = MAX_ELEMENTS // 2
RETRACE_SHARE: Final = 0.5
"""Share of the trace packets used to trace known routes again."""
SUSPECT_REST_S: Final = 0.5
PUBLISH_S: Final = 0.02
SETTLE_S: Final = 3.0
"""A pair's record waits this long for all of its routes."""
DRAIN_S: Final = 0.25
"""Interval for reading errors of other sockets' packets, which would fill the queue."""
DISTANCE_RETRY_S: Final = 1.0
DISTANCE_FRESH_S: Final = 30.0
ENDED_S: Final = 2.0
"""A flow that was not seen for this long has ended."""
SILENT_PEER_S: Final = 3 * REPUBLISH_S
"""Answers to a peer are no longer traced after this time without a record from its reporter."""
SHAPES: Final = (FlowProtocol.UDP, FlowProtocol.TCP)
BYTES_PER_PORT_DRAW: Final = 4

Wanted = tuple[str, Key, bool]
"""A flow: peer, key, and whether it may be moved."""


class FlowRouteKey(NamedTuple):
    """One direction of a port pair: `leg`, the peer, and the flow's source and destination port."""

    leg: FlowLeg
    peer: str
    port: int
    peer_port: int


def shape_of(protocol: str) -> FlowProtocol:
    """Return the protocol that switches see for a flow: TCP or UDP."""
    return FlowProtocol.TCP if protocol == FlowProtocol.TCP else FlowProtocol.UDP


def flow_candidate_ports(source: str, peer: str, peer_port: int, count: int, first: int) -> list[int]:
    """Return `count` candidate source ports from `first` on for flows from `source` to a port of `peer`.

    The ports are drawn by a hash of addresses and port, so a restarted reporter and any other program get the
    same ones. With `count` above the number of ports, all are returned.

    `first` is 61,000 by default: the kernel assigns 32,768 to 60,999 to sockets (ip_local_port_range), so a
    port there may be taken when a flow should move to it. All ports are within RoCEv2's 49,152 to 65,535.

    Why 32 candidates: ECMP assigns each port to one of n routes as if at random. k ports miss one of n routes
    with probability below n (1 - 1/n)^k, and hit one less than twice with probability below n (1 - 1/n)^(k-1)
    (1 + (k-1)/n). So 32 ports see all of 4 spines with 99.96%, and each at least twice with 99.5%. Then a
    choice remains on the best route. 8 spines need 64 ports (see `source_ports.py`).
    """
    span = LAST_PORT + 1 - first
    if count >= span:
        return list(range(first, LAST_PORT + 1))
    chosen: dict[int, None] = {}
    number = 0
    while len(chosen) < count:
        drawn = hashlib.blake2b(f"{source}>{peer}:{peer_port}/{number}".encode(), digest_size=32).digest()
        for at in range(0, len(drawn), BYTES_PER_PORT_DRAW):
            chosen.setdefault(first + int.from_bytes(drawn[at : at + BYTES_PER_PORT_DRAW], "big") % span)
            if len(chosen) == count:
                break
        number += 1
    return sorted(chosen)


@dataclass(slots=True)
class _Route:
    shape: FlowProtocol
    """Protocol of its packets: UDP or TCP."""
    flow: TracedFlow | None = None
    known: KnownRoute | None = None
    due_s: float = 0.0
    incomplete_traces: int = 0
    traced_s: float = float("-inf")
    wanted_s: float = 0.0
    """Time of the last request for this route."""
    in_use: bool = False
    """True if a live flow takes it."""
    links: tuple[str, ...] = ()
    complete: bool = False


@dataclass(slots=True)
class _Pair:
    """One directed pair of NICs: its routes, the distance to the peer, and the last published record."""

    wanted_s: float
    """Time of the last request for any of its routes."""
    routes: dict[FlowRouteKey, _Route] = field(default_factory=dict)
    routers: int | None = None
    """Number of routers between the NICs; None if unknown."""
    distance_flow: TracedFlow | None = None
    distance_due_s: float = 0.0
    distance_tries: int = 0
    """Consecutive distance traces without an answer."""
    address: str | None = None
    first_hop: str | None = None
    movable: dict[int, tuple[FlowProtocol, float]] = field(default_factory=dict)
    """Destination port of movable flows to their protocol and the time of the last one."""
    dirty: bool = False
    moved: bool = False
    published: list[FlowRoute] | None = None
    published_s: float = 0.0
    next_record_s: float = 0.0
    dirty_s: float = 0.0

    def mark_dirty(self, now_s: float) -> None:
        """Note that the record differs from the published one."""
        if not self.dirty:
            self.dirty, self.dirty_s = True, now_s

    def must_wait(self, now_s: float) -> bool:
        """Return True if a changed record is not to be published yet."""
        if self.moved:
            return False
        settling = any(route.known is None for route in self.routes.values())
        return now_s < self.next_record_s or (settling and now_s - self.dirty_s < SETTLE_S)

    def rows(self) -> list[FlowRoute]:
        """Return the elements of the pair's `FlowRoutes`."""
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


class FlowRouteTracer(RouteTracer):
    """Traces the routes of one NIC's flows. Call `tick` often while `busy`; it never blocks."""

    def __init__(
        self,
        settings: FlowSettings,
        *,
        nic: str,
        shard: str,
        address: str,
        peers: Mapping[str, Nic],
        sockets: Mapping[str, TraceSocket],
        put: Put,
        registry: codec.Registry | None = None,
        seed: int | None = None,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`peers` maps NICs to announcements and is updated by the caller; `sockets` has one per protocol."""
        super().__init__(
            nic=nic,
            shard=shard,
            address=address,
            trace_pps=settings.trace_pps,
            max_hops=settings.trace_max_hops,
            link_prefix=settings.link_prefix,
            put=put,
            registry=registry,
            seed=seed,
            system_ns=system_ns,
        )
        self.settings = settings
        self.topology = Topology()
        self.links_changed = False
        """Set when links of a live flow became known or changed; the caller resets it."""
        self._peers, self._sockets_by_shape = peers, sockets
        self._sockets = list({id(each): each for each in sockets.values()}.values())
        self._pairs: dict[str, _Pair] = {}
        self._candidates: dict[tuple[str, str, int], list[int]] = {}
        self._requested: dict[str, tuple[float, dict[FlowRouteKey, str]]] = {}
        """Peer to the time of its newest record and the answers that it needs, each with its protocol."""
        self._moved_s = float("-inf")
        self._publish_s = self._drain_s = 0.0
        self._warned = False
        self._count = 0

    # ---- inputs

    def on_announcement(self, peer: str, now_s: float) -> None:
        """Apply a changed or removed announcement of a NIC."""
        pair, record = self._pairs.get(peer), self._peers.get(peer)
        if pair is None:
            return
        if record is None:
            self._drop_pair(peer, pair)
        else:
            self._apply_announcement(pair, record, now_s)

    def _apply_announcement(self, pair: _Pair, record: Nic, now_s: float) -> None:
        is_ipv6 = ":" in self.address
        address = next((each for each in record["addresses"] if (":" in each) == is_ipv6), None)
        if address != pair.address:
            pair.address, pair.routers = address, None
            for route in pair.routes.values():
                self._cancel(route)
        if record["first_hop"] is not None and record["first_hop"] != pair.first_hop:
            pair.first_hop = record["first_hop"]
            self._name_all(pair, now_s)

    def on_peer_routes(self, peer: str, record: FlowRoutes | None, now_s: float) -> None:
        """Apply a peer's record of its flows to this NIC, whose answers start here.

        RoCE is left out, because its acknowledgements use the responder queue pair's own source port.
        """
        needed: dict[FlowRouteKey, str] = {}
        for row in () if record is None else record["routes"]:
            is_roce = row["peer_port"] == ROCE_PORT and shape_of(row["protocol"]) == FlowProtocol.UDP
            if row["leg"] == FlowLeg.DATA and not is_roce and len(needed) < MAX_ROUTES_PER_LEG:
                needed[FlowRouteKey(FlowLeg.ACK, peer, row["path"], row["peer_port"])] = row["protocol"]
        self._requested[peer] = (now_s, needed)
        self._keep_requested(peer, now_s)
        if not needed:
            del self._requested[peer]

    def on_own_routes(self, peer: str, record: FlowRoutes | None, now_s: float) -> None:
        """Note a record of an earlier run of this reporter, so that it is deleted once it is not needed."""
        if record is not None and peer not in self._pairs:
            pair = self._pairs[peer] = _Pair(now_s)
            pair.published, pair.published_s = record["routes"], now_s

    def trace_flows(self, flows: Iterable[Wanted], now_s: float) -> None:
        """Keep the routes of flows that this NIC sends now."""
        for peer, (protocol, _, port, _, peer_port), may_move in flows:
            record, shape = self._peers.get(peer), shape_of(protocol)
            if record is None or shape not in self._sockets_by_shape:
                continue
            pair = self._pair(peer, record, now_s)
            self._keep(pair, FlowRouteKey(FlowLeg.DATA, peer, port, peer_port), shape, now_s, in_use=True)
            if pair.routers is None:
                self._measure_distance(peer, pair, now_s)
            if may_move:
                is_new = peer_port not in pair.movable
                pair.movable[peer_port] = (shape, now_s)
                if is_new:
                    self._keep_candidates(peer, pair, now_s)

    def trace_soon(self, peer: str, port: int, peer_port: int, now_s: float) -> None:
        """Trace a flow's route at once, because the flow shows a change."""
        pair = self._pairs.get(peer)
        route = None if pair is None else pair.routes.get(FlowRouteKey(FlowLeg.DATA, peer, port, peer_port))
        if route is not None and route.flow is not None and now_s - route.traced_s > SUSPECT_REST_S:
            self._tracer.schedule(route.flow, soon=True)

    def links_of(self, peer: str, key: Key) -> tuple[str, ...]:
        """Return the links of a flow's data; empty unless all are known."""
        pair = self._pairs.get(peer)
        route = None if pair is None else pair.routes.get(FlowRouteKey(FlowLeg.DATA, peer, key[2], key[4]))
        if route is None or not route.complete or route.shape != shape_of(key[0]):
            return ()
        return route.links

    def set_topology(self, topology: Topology, now_s: float) -> None:
        """Replace the topology and name all routes again."""
        self.topology = topology
        for pair in self._pairs.values():
            self._name_all(pair, now_s)

    # ---- periodic work

    @property
    def busy(self) -> bool:
        """True if traces are open or wait."""
        return self._tracer.busy

    def tick(self, now_s: float) -> None:
        """Receive answers, send packets and publish records that are due."""
        for each in self._sockets if self.busy or now_s >= self._drain_s else ():
            self._drain_s = now_s + DRAIN_S
            for reply in each.replies():
                if reply.hop is None:
                    self._tracer.on_arrival(reply.seq)
                else:
                    self._tracer.on_hop(reply.seq, reply.hop)
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            self._send(packet)
        for trace in traces:
            self._on_trace(trace, now_s)
        if now_s >= self._publish_s:
            self._publish_s = now_s + PUBLISH_S
            for peer, pair in list(self._pairs.items()):
                self._publish(peer, pair, now_s)

    def refresh(self, now_s: float) -> None:
        """Schedule traces that are due and drop routes that are no longer needed."""
        self._count = sum(len(pair.routes) for pair in self._pairs.values())
        for peer in list(self._requested):
            if now_s - self._requested[peer][0] > SILENT_PEER_S:
                del self._requested[peer]
            else:
                self._keep_requested(peer, now_s)
        for peer, pair in list(self._pairs.items()):
            self._keep_candidates(peer, pair, now_s)
            self._drop_unused(pair, now_s)
            if pair.routes:
                self._measure_distance(peer, pair, now_s)
                self._schedule_due(pair, now_s)
            elif now_s - pair.wanted_s > self.settings.routes_keep_s:
                self._drop_pair(peer, pair)

    def _schedule_due(self, pair: _Pair, now_s: float) -> None:
        if pair.routers is None or pair.address is None:
            return
        for route in pair.routes.values():
            if route.flow is not None and now_s >= route.due_s:
                route.due_s = now_s + self._retrace_pause_s(route)
                self._tracer.schedule(route.flow)

    def _drop_unused(self, pair: _Pair, now_s: float) -> None:
        for key, route in list(pair.routes.items()):
            unused_s = now_s - route.wanted_s
            if route.in_use and unused_s > ENDED_S:
                route.in_use = False
            if unused_s > self.settings.routes_keep_s:
                self._cancel(route)
                del pair.routes[key]
                pair.mark_dirty(now_s)
        for port in [port for port, (_, seen_s) in pair.movable.items() if now_s - seen_s > ENDED_S]:
            del pair.movable[port]

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()

    # ---- the set of traced routes

    def _pair(self, peer: str, record: Nic, now_s: float) -> _Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = _Pair(now_s)
        if pair.address is None:
            self._apply_announcement(pair, record, now_s)
        return pair

    def _candidate_ports(self, address: str, peer_port: int) -> list[int]:
        key = (self.address, address, peer_port)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) > MAX_ROUTES_PER_LEG:
                self._candidates.clear()
            count, first = self.settings.flow_candidate_ports, self.settings.first_candidate_port
            found = self._candidates[key] = flow_candidate_ports(*key, count, first)
        return found

    def _keep_requested(self, peer: str, now_s: float) -> None:
        _, needed = self._requested[peer]
        record = self._peers.get(peer)
        if record is None or not needed:
            return
        pair = self._pair(peer, record, now_s)
        for key, protocol in needed.items():
            if (shape := shape_of(protocol)) in self._sockets_by_shape:
                self._keep(pair, key, shape, now_s)

    def _keep_candidates(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.address is None:
            return
        for peer_port, (shape, _) in pair.movable.items():
            for port in self._candidate_ports(pair.address, peer_port):
                self._keep(pair, FlowRouteKey(FlowLeg.DATA, peer, port, peer_port), shape, now_s)

    def _keep(
        self, pair: _Pair, key: FlowRouteKey, shape: FlowProtocol, now_s: float, in_use: bool = False
    ) -> None:
        route = pair.routes.get(key)
        if (
            route is not None and route.shape != shape and route.wanted_s < now_s
        ):  # another flow has the ports
            self._cancel(route)
            route = None
        if route is None:
            if self._is_full(pair, key.leg, in_use):
                self._warn_full()
                return
            route = pair.routes[key] = _Route(shape, in_use=in_use)
            self._count += 1
            if pair.routers is not None:
                self._begin(pair, key, route, now_s)
        route.wanted_s = pair.wanted_s = now_s
        if in_use and not route.in_use:
            route.in_use, route.due_s = True, min(route.due_s, now_s)

    def _is_full(self, pair: _Pair, leg: FlowLeg, in_use: bool) -> bool:
        might_fill_leg = len(pair.routes) >= MAX_ROUTES_PER_LEG
        if might_fill_leg and sum(each.leg == leg for each in pair.routes) >= MAX_ROUTES_PER_LEG:
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

    def _begin(self, pair: _Pair, key: FlowRouteKey, route: _Route, now_s: float) -> None:
        """Trace a route for the first time, or with a new length."""
        if not pair.routers or pair.address is None:  # no router in between
            route.known, route.due_s = KnownRoute((), True, self._system_ns()), float("inf")
            self._name(pair, key, route)
            pair.mark_dirty(now_s)
            return
        source, target = (key.port, key.peer_port) if key.leg == FlowLeg.DATA else (key.peer_port, key.port)
        leg = Leg.REQUEST if key.leg == FlowLeg.DATA else Leg.ANSWER
        socket = SHAPES.index(route.shape)
        route.flow = TracedFlow(leg, key.peer, source, (pair.address, target), socket, pair.routers)
        route.due_s = float("inf")
        self._tracer.schedule(route.flow, soon=route.in_use)

    def _cancel(self, route: _Route) -> None:
        if route.flow is not None:
            self._tracer.cancel(route.flow)
            route.flow = None

    def _measure_distance(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.address is None or now_s < pair.distance_due_s:
            return
        pause_s = DISTANCE_FRESH_S
        if pair.routers is None:
            pause_s = min(DISTANCE_FRESH_S, DISTANCE_RETRY_S * 2**pair.distance_tries)
        pair.distance_due_s = now_s + self._jittered(pause_s)
        pair.distance_tries += 1
        target = (pair.address, TRACEROUTE_PORT)
        pair.distance_flow = TracedFlow(Leg.REQUEST, peer, self.settings.first_candidate_port, target, 0)
        self._tracer.schedule(pair.distance_flow, soon=True)

    def _send(self, packet: Packet) -> None:
        flow = packet.flow
        self._sockets_by_shape[SHAPES[flow.socket]].send(flow.port, flow.target, packet.ttl, packet.seq)

    def _retrace_pause_s(self, route: _Route) -> float:
        """Return the pause before the next routine trace: shorter for live flows, longer for many routes."""
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
        if flow == pair.distance_flow:
            self._on_distance(pair, trace, now_s)
            return
        key = (
            FlowRouteKey(FlowLeg.DATA, flow.peer, flow.port, flow.target[1])
            if flow.leg == Leg.REQUEST
            else FlowRouteKey(FlowLeg.ACK, flow.peer, flow.target[1], flow.port)
        )
        route = pair.routes.get(key)
        if route is None or route.flow != flow:
            return
        # the last router answered: one link remains to the peer
        trace = Trace(flow, trace.hops, trace.reached or len(trace.hops) == flow.max_ttl)
        self._set_due(route, trace, now_s)
        if route.known is None:
            route.known = self._new_route(trace)
            self._name(pair, key, route)
            pair.mark_dirty(now_s)
            return
        change = self._update_route(route.known, trace)
        if change is Change.UNCONFIRMED:
            self._tracer.schedule(flow, soon=True)
        elif change is not Change.NONE:
            self._name(pair, key, route)
            pair.mark_dirty(now_s)
            if change is Change.MOVED:
                pair.moved = True
                self._on_moved(pair, now_s)

    def _set_due(self, route: _Route, trace: Trace, now_s: float) -> None:
        route.traced_s = now_s
        route.due_s = now_s + self._retrace_pause_s(route)
        if trace.is_complete:
            route.incomplete_traces = 0
        else:
            route.incomplete_traces += 1
            route.due_s = min(route.due_s, now_s + self._retry_pause_s(route.incomplete_traces))

    def _on_moved(self, pair: _Pair, now_s: float) -> None:
        """Trace the other routes, because they may have moved too."""
        affected = self._pairs.values() if now_s - self._moved_s > ALL_REST_S else [pair]
        self._moved_s = now_s
        for other in affected:
            for route in other.routes.values():
                if route.flow is not None:
                    self._tracer.schedule(route.flow, soon=route.in_use)

    def _on_distance(self, pair: _Pair, trace: Trace, now_s: float) -> None:
        """Set the number of routers to a peer.

        A peer behind a firewall does not answer. Its distance is accepted if the last hop is the peer's
        router.
        """
        if trace.reached:
            pair.distance_tries = 0
        elif not trace.hops or trace.hops[-1] is None or not self._is_router_of(trace.hops[-1], pair):
            return
        if len(trace.hops) == pair.routers:
            return
        pair.routers = len(trace.hops)
        for key, route in pair.routes.items():
            self._cancel(route)
            self._begin(pair, key, route, now_s)

    def _is_router_of(self, hop: str, pair: _Pair) -> bool:
        found, first = self.topology.at(hop), self.topology.at(pair.first_hop or "")
        return found is not None and first is not None and found[0] == first[0]

    def _name_all(self, pair: _Pair, now_s: float) -> None:
        for key, route in pair.routes.items():
            if route.known is not None:
                self._name(pair, key, route)
        pair.mark_dirty(now_s)

    def _name(self, pair: _Pair, key: FlowRouteKey, route: _Route) -> None:
        known = route.known
        if known is None:
            return
        port = key.port if key.leg == FlowLeg.DATA else key.peer_port
        named = self._name_route(key.peer, port, known.hops, known.reached, pair.first_hop, self.topology)
        complete = named.complete and named.contradiction is None
        if (named.links, complete) != (route.links, route.complete):
            route.links, route.complete = named.links, complete
            self.links_changed = self.links_changed or route.in_use

    def _publish(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.published is not None and pair.routes and now_s - pair.published_s > REPUBLISH_S:
            pair.mark_dirty(now_s)
            pair.published = []
        if not pair.dirty or pair.must_wait(now_s):
            return
        pair.dirty = pair.moved = False
        rows = pair.rows()
        if not rows or (pair.published is not None and without_since(rows) == without_since(pair.published)):
            return
        pair.published, pair.next_record_s = rows, now_s + MIN_RECORD_GAP_S
        pair.published_s = now_s + self._random.uniform(0, REPUBLISH_S / 4)
        record: FlowRoutes = {
            "nic": self.nic,
            "peer": peer,
            "shard": self.shard,
            "traced_ns": self._system_ns(),
            "routes": rows,
        }
        self._publish_record(FLOW_ROUTES, peer, record)

    def _drop_pair(self, peer: str, pair: _Pair) -> None:
        for route in pair.routes.values():
            self._cancel(route)
        if pair.distance_flow is not None:
            self._tracer.cancel(pair.distance_flow)
        del self._pairs[peer]
        if pair.published is not None:
            self._publish_tombstone(FLOW_ROUTES, self.nic, peer)

"""The links that flows take, and would take from other source ports: traced with the flows' own port pairs.

In: one NIC's flows, the records of its peers, the inventory, the topology file. Out: the links of each flow,
and `FlowRoutes` of each pair in `fabric.flow-routes`: leg DATA of what this NIC sends, leg ACK of what it answers to
peers.

No trace packet ever comes to a peer, where somebody might take it for data: its TTL ends at the last router.
How many routers there are is asked once for each peer, by packets to a port where nobody listens.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from producers.flows.intervals import Key
from producers.settings import FlowSettings
from producers.trace.route_names import name_path
from producers.trace.sockets import TraceSocket
from producers.trace.tracer import KnownRoute, Packet, Trace, TracedFlow, Tracer
from schemas import codec
from schemas.topics import FLOW_ROUTES, MAX_ELEMENTS
from schemas.topology import Topology

__all__ = ["FlowRouteTracer", "FlowRouteKey", "flow_candidate_ports"]

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Put = Callable[[str, str, bytes | None], None]

DATA: Final = "DATA"
ACK: Final = "ACK"
LAST_PORT: Final = 65_535
NOBODY_PORT: Final = 33_434
"""UDP port where traceroute expects nobody, too: a host that gets there says so, and how far it is."""
ROCE_PORT: Final = 4791
"""Of RoCEv2: to it go data and acknowledgements, from ports of their own."""
LEG_MOST: Final = MAX_ELEMENTS // 2
SHARE: Final = 0.5
"""Of the trace packets a second, for tracing again what is known."""
GAP_AGAIN_S: Final = 1.0
"""A way that a trace does not tell whole is traced again after twice this, then twice that, and so on up to
the usual pause."""
ALL_REST_S: Final = 5.0
"""A way that moved has all of the NIC's traced anew, but not more often than this."""
SUSPECT_REST_S: Final = 0.5
ADD_S: Final = 0.5
"""Between two records of a pair, unless a way of it moved."""
PUBLISH_S: Final = 0.02
SETTLE_S: Final = 3.0
"""How long a pair's record may wait for all of its ways."""
REPUBLISH_S: Final = 900.0
DRAIN_S: Final = 0.25
"""Between two looks at errors of other sockets' packets, that would fill the queue."""
FAR_REST_S: Final = 1.0
FAR_FRESH_S: Final = 30.0
ENDED_S: Final = 2.0
"""A flow that was not seen for so long has ended."""
SILENT_S: Final = 3 * REPUBLISH_S
"""A peer whose reporter has said nothing for so long is not answered for."""
SHAPES: Final = ("UDP", "TCP")

Wanted = tuple[str, Key, bool]
"""Peer, key and whether it may be moved, of a flow."""


class FlowRouteKey(NamedTuple):
    """One direction of one port pair: `leg`, the peer, the flow's source and destination port."""

    leg: str
    peer: str
    port: int
    peer_port: int


def shape_of(protocol: str) -> str:
    """Return how packets of a flow of this protocol look to switches."""
    return "TCP" if protocol == "TCP" else "UDP"


def flow_candidate_ports(source: str, peer: str, peer_port: int, count: int, first: int) -> list[int]:
    """Return the source ports to try for flows from address `source` to that port of `peer`: `count` of those
    from `first` on, drawn by addresses and port, so that a reporter that starts anew, and anybody who knows
    the rule, comes to the same. All there are where they are no more.

    From 61,000 on: the kernel gives away 32,768 to 60,999 by itself (ip_local_port_range), and a port there
    may be another socket's by the time that a flow should move to it. All are within RoCEv2's 49,152 to
    65,535.

    Why 32: routing draws one of n ways for each port as if by lot; k ports miss one of n with a chance below
    n (1 - 1/n)^k, and hit one less than twice with one below n (1 - 1/n)^(k-1) (1 + (k-1)/n). So 32 ports see
    all of 4 spines with 99.96%, and each twice or more with 99.5%: there is a choice on whichever is best. 8
    spines want 64 (see `ports.py`).
    """
    span = LAST_PORT + 1 - first
    if count >= span:
        return list(range(first, LAST_PORT + 1))
    chosen: dict[int, None] = {}
    number = 0
    while len(chosen) < count:
        drawn = hashlib.blake2b(f"{source}>{peer}:{peer_port}/{number}".encode(), digest_size=32).digest()
        for at in range(0, len(drawn), 4):
            chosen.setdefault(first + int.from_bytes(drawn[at : at + 4], "big") % span)
            if len(chosen) == count:
                break
        number += 1
    return sorted(chosen)


@dataclass(slots=True)
class _Way:
    shape: str
    """Of its packets: UDP or TCP."""
    flow: TracedFlow | None = None
    known: KnownRoute | None = None
    due_s: float = 0.0
    gaps: int = 0
    traced_s: float = float("-inf")
    kept_s: float = 0.0
    """When it was last wanted."""
    own: bool = False
    links: tuple[str, ...] = ()
    complete: bool = False


@dataclass(slots=True)
class _Pair:
    """One directed pair: its ways, how far the peer is, and what was said."""

    kept_s: float
    """When any way of it was last wanted."""
    ways: dict[FlowRouteKey, _Way] = field(default_factory=dict)
    far: int | None = None
    """Routers on the way."""
    far_flow: TracedFlow | None = None
    far_due_s: float = 0.0
    far_tries: int = 0
    """In a row, without an answer."""
    address: str | None = None
    first_hop: str | None = None
    groups: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Destination port of flows that may be moved to their protocol, and when there was one last."""
    dirty: bool = False
    moved: bool = False
    said: list[Record] | None = None
    said_s: float = 0.0
    again_s: float = 0.0
    since_s: float = 0.0
    """When it became dirty."""


class FlowRouteTracer:
    """The ways of one NIC's packets. `tick` is called often while `busy`; it never blocks."""

    def __init__(
        self,
        settings: FlowSettings,
        *,
        nic: str,
        shard: str,
        address: str,
        roster: Mapping[str, Record],
        tracers: Mapping[str, TraceSocket],
        put: Put,
        registry: codec.Registry | None = None,
        seed: int | None = None,
    ) -> None:
        """`roster`: NIC to announcement, kept by the caller; `tracers`: what sends, by the protocol of the
        flows; `put` takes topic, key and value."""
        self.settings, self.nic, self.shard, self.address = settings, nic, shard, address
        self.topology = Topology()
        self.news = False
        """Whether links of a live flow became known, or others, since it was last set to False."""
        self._roster, self._tracers, self._put, self._registry = roster, tracers, put, registry
        self._sockets = list({id(each): each for each in tracers.values()}.values())
        self._random = random.Random(seed)  # noqa: S311  # pauses, nothing that anybody must not guess
        self._tracer = Tracer(settings.trace_pps, settings.trace_max_hops, self._random.getrandbits(32))
        self._pairs: dict[str, _Pair] = {}
        self._candidates: dict[tuple[str, str, int], list[int]] = {}
        self._asked: dict[str, tuple[float, dict[FlowRouteKey, str]]] = {}
        """Peer to when its newest record came and the answers that it asks for, each with its protocol."""
        self._moved_s = float("-inf")
        self._publish_s = self._drain_s = 0.0
        self._warned = False
        self._count = 0

    # ---- what is told

    def meet(self, peer: str) -> None:
        """Take that a NIC's announcement is another, or gone."""
        pair, record = self._pairs.get(peer), self._roster.get(peer)
        if pair is None:
            return
        if record is None:
            self._let_go(peer, pair)
        else:
            self._know(pair, record)

    def _know(self, pair: _Pair, record: Record) -> None:
        six = ":" in self.address
        address = next((each for each in record["addresses"] if (":" in each) == six), None)
        if address != pair.address:
            pair.address, pair.far = address, None
            for way in pair.ways.values():
                self._drop_flow(way)
        if record["first_hop"] is not None and record["first_hop"] != pair.first_hop:
            pair.first_hop = record["first_hop"]
            self._rename(pair)

    def hear(self, peer: str, record: Record | None, now_s: float) -> None:
        """Take what another NIC says of its flows to this one: what is answered to them goes from here, but
        for RoCE: that goes from the answering queue pair's own port."""
        asked: dict[FlowRouteKey, str] = {}
        for way in () if record is None else record["routes"]:
            roce = way["peer_port"] == ROCE_PORT and shape_of(way["protocol"]) == "UDP"
            if way["leg"] == DATA and not roce and len(asked) < LEG_MOST:
                asked[FlowRouteKey(ACK, peer, way["path"], way["peer_port"])] = way["protocol"]
        self._asked[peer] = (now_s, asked)
        self._take_asked(peer, now_s)
        if not asked:
            del self._asked[peer]

    def remember(self, peer: str, record: Record | None, now_s: float) -> None:
        """Take what an earlier run of this NIC's reporter said, so that it is taken back once nobody asks."""
        if record is not None and peer not in self._pairs:
            pair = self._pairs[peer] = _Pair(now_s)
            pair.said, pair.said_s = record["routes"], now_s

    def want(self, flows: Iterable[Wanted], now_s: float) -> None:
        """Take flows that this NIC sends now: peer, key, and whether they may be moved."""
        for peer, (protocol, _, port, _, peer_port), may_move in flows:
            record, shape = self._roster.get(peer), shape_of(protocol)
            if record is None or shape not in self._tracers:
                continue
            pair = self._pair(peer, record, now_s)
            self._keep(pair, FlowRouteKey(DATA, peer, port, peer_port), shape, now_s, own=True)
            if pair.far is None:
                self._see_far(peer, pair, now_s)
            if may_move:
                fresh = peer_port not in pair.groups
                pair.groups[peer_port] = (shape, now_s)
                if fresh:
                    self._keep_groups(peer, pair, now_s)

    def suspect(self, peer: str, port: int, peer_port: int, now_s: float) -> None:
        """Trace a flow's way at once: something changed for it."""
        pair = self._pairs.get(peer)
        way = None if pair is None else pair.ways.get(FlowRouteKey(DATA, peer, port, peer_port))
        if way is not None and way.flow is not None and now_s - way.traced_s > SUSPECT_REST_S:
            self._tracer.want(way.flow, soon=True)

    def hops_of(self, peer: str, key: Key) -> tuple[str, ...]:
        """Return the links of a flow's data; empty where they are not all known."""
        pair = self._pairs.get(peer)
        way = None if pair is None else pair.ways.get(FlowRouteKey(DATA, peer, key[2], key[4]))
        return way.links if way is not None and way.complete and way.shape == shape_of(key[0]) else ()

    def rename(self, topology: Topology) -> None:
        """Take a topology file that says otherwise than before."""
        self.topology = topology
        for pair in self._pairs.values():
            self._rename(pair)

    # ---- work

    @property
    def busy(self) -> bool:
        """Whether traces are under way or wait."""
        return self._tracer.busy

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        for each in self._sockets if self.busy or now_s >= self._drain_s else ():
            self._drain_s = now_s + DRAIN_S
            for hit in each.hits():
                if hit.hop is None:
                    self._tracer.arrived(hit.seq)
                else:
                    self._tracer.hop(hit.seq, hit.hop)
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            self._send(packet)
        for trace in traces:
            self._take(trace, now_s)
        if now_s >= self._publish_s:
            self._publish_s = now_s + PUBLISH_S
            for peer, pair in list(self._pairs.items()):
                self._publish(peer, pair, now_s)

    def survey(self, now_s: float) -> None:
        """See what is to be traced again, and what nobody asks for any more. Called now and then."""
        self._count = sum(len(pair.ways) for pair in self._pairs.values())
        for peer in list(self._asked):
            if now_s - self._asked[peer][0] > SILENT_S:
                del self._asked[peer]
            else:
                self._take_asked(peer, now_s)
        for peer, pair in list(self._pairs.items()):
            self._keep_groups(peer, pair, now_s)
            self._forget(pair, now_s)
            if not pair.ways:
                if now_s - pair.kept_s > self.settings.routes_keep_s:
                    self._let_go(peer, pair)
                continue
            self._see_far(peer, pair, now_s)
            if pair.far is None or pair.address is None:
                continue
            for way in pair.ways.values():
                if way.flow is not None and now_s >= way.due_s:
                    way.due_s = now_s + self._pause_s(way)
                    self._tracer.want(way.flow)

    def _forget(self, pair: _Pair, now_s: float) -> None:
        for key, way in list(pair.ways.items()):
            gone_s = now_s - way.kept_s
            if way.own and gone_s > ENDED_S:
                way.own = False
            if gone_s > self.settings.routes_keep_s:
                self._drop_flow(way)
                del pair.ways[key]
                self._dirty(pair, now_s)
        for port in [port for port, (_, seen_s) in pair.groups.items() if now_s - seen_s > ENDED_S]:
            del pair.groups[port]

    def close(self) -> None:
        """Let go of the sockets."""
        for each in self._sockets:
            each.close()

    # ---- what is traced

    def _pair(self, peer: str, record: Record, now_s: float) -> _Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = _Pair(now_s)
        if pair.address is None:
            self._know(pair, record)
        return pair

    def _ports(self, address: str, peer_port: int) -> list[int]:
        key = (self.address, address, peer_port)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) > LEG_MOST:
                self._candidates.clear()
            found = self._candidates[key] = flow_candidate_ports(
                *key, self.settings.ways, self.settings.first_candidate_port
            )
        return found

    def _take_asked(self, peer: str, now_s: float) -> None:
        _, asked = self._asked[peer]
        record = self._roster.get(peer)
        if record is None or not asked:
            return
        pair = self._pair(peer, record, now_s)
        for key, protocol in asked.items():
            if (shape := shape_of(protocol)) in self._tracers:
                self._keep(pair, key, shape, now_s)

    def _keep_groups(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.address is None:
            return
        for peer_port, (shape, _) in pair.groups.items():
            for port in self._ports(pair.address, peer_port):
                self._keep(pair, FlowRouteKey(DATA, peer, port, peer_port), shape, now_s)

    def _keep(self, pair: _Pair, key: FlowRouteKey, shape: str, now_s: float, own: bool = False) -> None:
        way = pair.ways.get(key)
        if way is not None and way.shape != shape and way.kept_s < now_s:  # the ports are another flow's now
            self._drop_flow(way)
            way = None
        if way is None:
            of_leg = sum(each.leg == key.leg for each in pair.ways) if len(pair.ways) >= LEG_MOST else 0
            if of_leg >= LEG_MOST or (self._count >= self.settings.max_routes and not own):
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "%s: more ways than %d of the NIC or %d of a pair: some are not traced",
                        self.nic,
                        self.settings.max_routes,
                        LEG_MOST,
                    )
                return
            way = pair.ways[key] = _Way(shape, own=own)
            self._count += 1
            if pair.far is not None:
                self._begin(pair, key, way, now_s)
        way.kept_s = pair.kept_s = now_s
        if own and not way.own:
            way.own, way.due_s = True, min(way.due_s, now_s)

    def _begin(self, pair: _Pair, key: FlowRouteKey, way: _Way, now_s: float) -> None:
        """Trace a way for the first time, or with another length."""
        if not pair.far or pair.address is None:  # no router between them
            way.known, way.due_s = KnownRoute((), True, time.time_ns()), float("inf")
            self._name(pair, key, way)
            self._dirty(pair, now_s)
            return
        source, goal = (key.port, key.peer_port) if key.leg == DATA else (key.peer_port, key.port)
        leg: Literal["REQUEST", "ANSWER"] = "REQUEST" if key.leg == DATA else "ANSWER"
        at = SHAPES.index(way.shape)
        way.flow = TracedFlow(leg, key.peer, source, (pair.address, goal), at, pair.far)
        way.due_s = float("inf")
        self._tracer.want(way.flow, soon=way.own)

    def _drop_flow(self, way: _Way) -> None:
        if way.flow is not None:
            self._tracer.forget(way.flow)
            way.flow = None

    def _see_far(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.address is None or now_s < pair.far_due_s:
            return
        pause_s = FAR_FRESH_S if pair.far is not None else min(FAR_FRESH_S, FAR_REST_S * 2**pair.far_tries)
        pair.far_due_s, pair.far_tries = (
            now_s + pause_s * self._random.uniform(0.75, 1.25),
            pair.far_tries + 1,
        )
        pair.far_flow = TracedFlow("REQUEST", peer, self.settings.first_candidate_port, (pair.address, NOBODY_PORT), 0)
        self._tracer.want(pair.far_flow, soon=True)

    def _send(self, packet: Packet) -> None:
        flow = packet.flow
        self._tracers[SHAPES[flow.socket]].send(flow.port, flow.target, packet.ttl, packet.seq)

    def _pause_s(self, way: _Way) -> float:
        """Return the pause until a way is traced again without a reason: flows' own ways sooner than others,
        and all of them slower where they are many."""
        pair_hops = way.flow.most if way.flow is not None else 1
        least_s = self.settings.retrace_own_s if way.own else self.settings.retrace_s
        slowest_s = self._count * max(1, pair_hops) / (SHARE * self.settings.trace_pps)
        return max(least_s, slowest_s) * self._random.uniform(0.75, 1.25)

    def _take(self, trace: Trace, now_s: float) -> None:
        flow = trace.flow
        pair = self._pairs.get(flow.peer)
        if pair is None:
            return
        if flow == pair.far_flow:
            self._take_far(pair, trace, now_s)
            return
        key = (
            FlowRouteKey(DATA, flow.peer, flow.port, flow.target[1])
            if flow.leg == "REQUEST"
            else FlowRouteKey(ACK, flow.peer, flow.target[1], flow.port)
        )
        way = pair.ways.get(key)
        if way is None or way.flow != flow:
            return
        # the last router's word: from there it is one link to the peer
        trace = Trace(flow, trace.hops, trace.reached or len(trace.hops) == flow.most)
        way.traced_s = now_s
        way.due_s = now_s + self._pause_s(way)
        if trace.reached and all(trace.hops):
            way.gaps = 0
        else:
            way.gaps += 1
            again_s = GAP_AGAIN_S * 2.0 ** min(way.gaps, 20) * self._random.uniform(0.75, 1.25)
            way.due_s = min(way.due_s, now_s + again_s)
        if way.known is None:
            way.known = KnownRoute(trace.hops, trace.reached, time.time_ns())
            self._name(pair, key, way)
            self._dirty(pair, now_s)
            return
        before = (way.known.hops, way.known.reached, way.known.changes)
        if way.known.take(trace, time.time_ns()):
            self._tracer.want(flow, soon=True)
        elif (way.known.hops, way.known.reached, way.known.changes) != before:
            self._name(pair, key, way)
            self._dirty(pair, now_s)
            if way.known.changes != before[2]:
                pair.moved = True
                self._moved(pair, now_s)

    def _moved(self, pair: _Pair, now_s: float) -> None:
        """A way moved: so may have others."""
        near = self._pairs.values() if now_s - self._moved_s > ALL_REST_S else [pair]
        self._moved_s = now_s
        for other in near:
            for way in other.ways.values():
                if way.flow is not None:
                    self._tracer.want(way.flow, soon=way.own)

    def _take_far(self, pair: _Pair, trace: Trace, now_s: float) -> None:
        """Learn how many routers there are to a peer. One that does not say that it was reached, as behind a
        firewall, is as far as was heard, where the last that was heard is the peer's own router."""
        far = len(trace.hops)
        if trace.reached:
            pair.far_tries = 0
        if not trace.reached:
            heard = trace.hops[-1] if trace.hops else None
            if heard is None or not self._is_last(heard, pair):
                return
        if far == pair.far:
            return
        pair.far = far
        for key, way in pair.ways.items():
            self._drop_flow(way)
            self._begin(pair, key, way, now_s)

    def _is_last(self, hop: str, pair: _Pair) -> bool:
        own, theirs = self.topology.at(hop), self.topology.at(pair.first_hop or "")
        return own is not None and theirs is not None and own[0] == theirs[0]

    # ---- what is said

    def _rename(self, pair: _Pair) -> None:
        for key, way in pair.ways.items():
            if way.known is not None:
                self._name(pair, key, way)
        self._dirty(pair, time.monotonic())

    def _name(self, pair: _Pair, key: FlowRouteKey, way: _Way) -> None:
        if way.known is None:
            return
        named = name_path(
            self.nic,
            key.peer,
            way.known.hops,
            way.known.reached,
            path=key.port if key.leg == DATA else key.peer_port,
            peer_first_hop=pair.first_hop,
            topology=self.topology,
            link_prefix=self.settings.link_prefix,
        )
        complete = named.complete and named.contradiction is None
        if (named.links, complete) != (way.links, way.complete):
            way.links, way.complete = named.links, complete
            self.news = self.news or way.own

    def _dirty(self, pair: _Pair, now_s: float) -> None:
        if not pair.dirty:
            pair.dirty, pair.since_s = True, now_s

    def _publish(self, peer: str, pair: _Pair, now_s: float) -> None:
        if pair.said is not None and pair.ways and now_s - pair.said_s > REPUBLISH_S:
            self._dirty(pair, now_s)
            pair.said = []
        if not pair.dirty or (now_s < pair.again_s and not pair.moved):
            return
        waits = any(way.known is None for way in pair.ways.values())
        if waits and not pair.moved and now_s - pair.since_s < SETTLE_S:
            return
        pair.dirty = pair.moved = False
        rows = self._rows(pair)
        if not rows or (pair.said is not None and _content(rows) == _content(pair.said)):
            return
        pair.said, pair.again_s = rows, now_s + ADD_S
        pair.said_s = now_s + self._random.uniform(0, REPUBLISH_S / 4)
        record = {
            "nic": self.nic,
            "peer": peer,
            "shard": self.shard,
            "traced_ns": time.time_ns(),
            "routes": rows,
        }
        self._put(FLOW_ROUTES.name, f"{self.nic}>{peer}", codec.encode(FLOW_ROUTES.record, record, self._registry))

    def _rows(self, pair: _Pair) -> list[Record]:
        return [
            {
                "leg": key.leg,
                "path": key.port,
                "peer_port": key.peer_port,
                "links": list(way.links),
                "complete": way.complete,
                "since_ns": way.known.since_ns,
                "protocol": way.shape,
            }
            for key, way in sorted(pair.ways.items(), key=lambda item: item[0])
            if way.known is not None
        ]

    def _let_go(self, peer: str, pair: _Pair) -> None:
        for way in pair.ways.values():
            self._drop_flow(way)
        if pair.far_flow is not None:
            self._tracer.forget(pair.far_flow)
        del self._pairs[peer]
        if pair.said is not None:
            self._put(FLOW_ROUTES.name, f"{self.nic}>{peer}", None)


def _content(rows: Sequence[Record]) -> list[Record]:
    return [{key: value for key, value in row.items() if key != "since_ns"} for row in rows]

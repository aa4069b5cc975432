"""Traces the links that a NIC's probes take, with the probes' own port pairs.

The result is a `PathMaps` record of each pair, published when a route changes. Requests are traced from each
path's own socket, answers from the responder's socket to every port that probes us. So each end knows the
routes over which it sends. The engine passes on the ICMP errors that return to its sockets.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from native.core.columns import ProbeColumns
from native.core.probe import Engine
from producers.probe.flow_targets import PathKey
from producers.settings import ProbeSettings
from producers.trace.known_route import Change, Hops, KnownRoute, TracedRoute
from producers.trace.path_changes import PathChangeDetector
from producers.trace.port_search import apply_trace_hit
from producers.trace.port_selection import OpenCandidates, PortSelector
from producers.trace.probe_answers import RESPONDER, ProbeAnswers, Wanted
from producers.trace.probe_pair import LegPort, ProbePair
from producers.trace.route_tracer import ALL_REST_S, RouteTracer, TracedNic
from producers.trace.topology_watch import TopologyWatch
from producers.trace.tracer import Packet, Trace, TracedFlow
from producers.trace.uplinks import TokenBucket, UplinkPlan, pause_s, plan_checks
from schemas.records import Leg, Nic, PathMaps
from schemas.topics import PATHS
from schemas.topology import Topology

_log = logging.getLogger(__name__)

REFRESH_S: Final = 0.5
BUSY_PAUSE_S: Final = 0.01
CHECK_PAUSE_S: Final = 0.05
"""Time between steps while only answers to uplink checks are awaited."""
PUBLISH_S: Final = 0.05
ANSWERS_REST_S: Final = 2.0
"""Minimum time between traces of an answer that follow the peer's traces."""
UNRELATED_S: Final = 1.5
"""Paths that share no abandoned hop with a moved path are traced at a random time within this."""
RETRACE_BURST: Final = 16
"""Maximum traces per path that other traces may trigger in a burst; in the long run it is one per
`ALL_REST_S`. A spine that fails and returns needs four to six, because switches then hash all flows again."""
ANSWER_PAUSE_FACTOR: Final = 1.5
"""Routine traces of answers are rarer by this factor, because the peer's traces usually trigger ours."""


class ProbeRouteTracer(RouteTracer):
    """Traces the routes of one NIC's probes and answers. Call `tick` often; it never blocks."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        nic: TracedNic,
        open_candidates: OpenCandidates | None = None,
    ) -> None:
        """Start without peers. Raises TopologyError if the topology file cannot be used."""
        super().__init__(settings, nic)
        self.engine, self.settings = engine, settings
        self.first_hop: str | None = None
        self._watch = TopologyWatch(settings.topology_file)
        self._names.set_topology(self._watch.topology)
        self.ports = PortSelector(
            engine,
            settings,
            self,
            nic=self.nic,
            address=self.address,
            open_candidates=open_candidates,
            rng=self._random,
        )
        self._first_hop_changed = False
        self._retrace_bucket = TokenBucket(ALL_REST_S, RETRACE_BURST)
        self._expected: set[TracedFlow] = set()
        """Flows that are traced because other traces show that they moved."""
        self._changes = PathChangeDetector()
        self._answers = ProbeAnswers(engine)
        self._pairs: dict[str, ProbePair] = {}
        self._alive: Mapping[str, Nic] = {}
        self._fleet_nics = 0
        self._uplinks: UplinkPlan | None = None  # None: to be planned from the known routes
        self._nic_of: dict[str, str] = {}
        self._refresh_at_s = self._publish_at_s = self._uplinks_at_s = 0.0

    # ---- inputs

    @property
    def announcement_changed(self) -> bool:
        """Whether the NIC's announced ports or first hop changed; the caller resets this flag."""
        return self._first_hop_changed or self.ports.ports_changed

    @announcement_changed.setter
    def announcement_changed(self, changed: bool) -> None:
        self._first_hop_changed = self.ports.ports_changed = changed

    def set_fleet(self, alive: Mapping[str, Nic], fleet_nics: int = 0) -> None:
        """Set the living NICs of the shard, as announced, and the number of NICs of all shards."""
        self._alive, self._fleet_nics = alive, fleet_nics
        self._nic_of = {
            address: name
            for name, record in alive.items()
            if name != self.nic
            for address in record["addresses"]
        }
        for name, pair in self._pairs.items():
            first_hop = alive[name]["first_hop"] if name in alive else None
            if first_hop is not None and first_hop != pair.first_hop:
                pair.first_hop, pair.published.dirty = first_hop, True
        self.refresh_soon()

    def observe(self, batch: ProbeColumns, now_s: float) -> None:
        """Trace paths at once if the measurements in a probe batch indicate that they have moved."""
        for peer, port in self._changes.observe(batch, now_s):
            pair = self._pairs.get(peer)
            route = pair.routes.get((Leg.REQUEST, port)) if pair is not None else None
            if route is not None and route.flow is not None:
                self._tracer.schedule(route.flow, soon=True)

    # ---- results

    def links_of(self, peer: str, port: int) -> list[str]:
        """Return the published links of the probes to a peer from source port `port`; empty if unknown."""
        pair = self._pairs.get(peer)
        return [] if pair is None else pair.published_links().get(port, [])

    def known_routes(self) -> dict[PathKey, tuple[str, ...]]:
        """Return, by (peer, source port), the published links of requests whose links are all known."""
        return {
            (name, port): tuple(links)
            for name, pair in self._pairs.items()
            for port, links in pair.published_links().items()
        }

    def request_hops(self, peer: str) -> dict[int, Hops]:
        """Return, by source port, the hops of requests that reach the peer over a router that answers."""
        pair = self._pairs.get(peer)
        return {} if pair is None else pair.request_hops()

    def peers_with_routes(self) -> Iterable[str]:
        """Return the names of the peers of all traced pairs."""
        return self._pairs

    def name_hops(self, peer: str, port: int, hops: Hops) -> tuple[str, ...]:
        """Return the links of a path to `peer` by its `hops`; empty if any link is unknown."""
        pair = self._pairs.get(peer)
        return self._names.complete_links(peer, port, hops, None if pair is None else pair.first_hop)

    # ---- periodic work

    def tick(self, now_s: float) -> float:
        """Send and receive trace packets and publish routes; return the seconds until the next call."""
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + REFRESH_S
            if self._watch.check(now_s):
                self._set_topology(self._watch.topology)
            self._refresh(now_s)
        if now_s >= self._uplinks_at_s:
            self._check_uplinks(now_s)
        for hit in self.engine.trace_hits():
            apply_trace_hit(self._tracer, hit.path, hit)
        self._run_traces(now_s)
        self.ports.tick(now_s)
        if now_s >= self._publish_at_s:
            self._publish_at_s = now_s + PUBLISH_S
            for name, pair in self._pairs.items():
                self._publish(name, pair, now_s)
        if self.ports.is_searching or self._tracer.is_tracing_routes:
            return BUSY_PAUSE_S
        pause_s = CHECK_PAUSE_S if self._tracer.busy else REFRESH_S / 2
        return min(pause_s, max(0.0, self._uplinks_at_s - now_s))

    def refresh_soon(self) -> None:
        """Update the set of traced paths from the engine's paths at the next tick."""
        self._refresh_at_s = 0.0

    def close(self) -> None:
        """Close the sockets of the port search in progress."""
        self.ports.close()

    def _set_topology(self, topology: Topology) -> None:
        """Use a new topology, and name all routes again."""
        self._names.set_topology(topology)
        self._name_all_again()

    def _name_all_again(self) -> None:
        for pair in self._pairs.values():
            pair.published.dirty = True

    def _refresh(self, now_s: float) -> None:
        """Update the set of traced paths: the requests to our peers and the answers to NICs that probe us."""
        self._uplinks = None
        self.ports.drop_unused_spares(now_s)
        flows_by_peer = self._wanted_requests()
        for name, answers in self._answers.refresh(self._alive, self._nic_of, now_s).items():
            flows_by_peer.setdefault(name, {}).update(answers)
        for name, flows in flows_by_peer.items():
            pair = self._pairs.setdefault(name, ProbePair(now_s))
            for flow in pair.replace_flows(flows, now_s):
                self._cancel(flow)
            self._schedule_pair(name, pair, now_s)
        self._drop_unwanted(flows_by_peer, now_s)
        self._update_first_hop()
        self.ports.search_if_due(frozenset(peer.nic for peer in self.engine.peers), now_s)

    def _wanted_requests(self) -> Wanted:
        flows_by_peer: Wanted = {}
        for peer in self.engine.peers:
            flows = flows_by_peer.setdefault(peer.nic, {})
            for at, port in enumerate(self.engine.all_ports):
                if self.ports.is_traced(peer.nic, at, port):
                    target = (peer.address, peer.port)
                    flows[Leg.REQUEST, port] = TracedFlow(Leg.REQUEST, peer.nic, port, target, at)
        return flows_by_peer

    def _schedule_pair(self, name: str, pair: ProbePair, now_s: float) -> None:
        """Schedule the traces of a pair's paths that are due."""
        for key, route, flow in pair.traced():
            if not self.settings.trace:
                if route.known is None:
                    route.known, pair.published.dirty = KnownRoute((), False, time.time_ns()), True
            elif now_s >= route.due_s or self._must_trace_back(name, key, route, now_s):
                route.due_s = now_s + self._retrace_pause_s(key[0])
                self._tracer.schedule(flow)

    def _must_trace_back(self, name: str, key: LegPort, route: TracedRoute, now_s: float) -> bool:
        """Return whether the peer has traced its path to us since our last trace of the answers to it."""
        theirs_s = self._answers.traced_s.get((name, key[1])) if key[0] == Leg.ANSWER else None
        return theirs_s is not None and theirs_s > route.traced_s and now_s - route.traced_s > ANSWERS_REST_S

    def _drop_unwanted(self, flows_by_peer: Wanted, now_s: float) -> None:
        """Drop pairs in which neither NIC has probed the other for `silent_s`: a prober may restart."""
        for name in [name for name in self._pairs if name not in flows_by_peer]:
            pair = self._pairs[name]
            if pair.gone_s is None:
                for flow in pair.pause(now_s):
                    self._cancel(flow)
            elif now_s - pair.gone_s > self.settings.silent_s:
                del self._pairs[name]
                self._answers.forget(name)
                self._publish_tombstone(PATHS, self.nic, name)
                if name not in self._alive:  # the peer is gone and cannot delete its own record
                    self._publish_tombstone(PATHS, name, self.nic)

    def _update_first_hop(self) -> None:
        """Set the NIC's first hop to the router that most of its paths pass first."""
        first_hops = Counter(
            first_hop for pair in self._pairs.values() for first_hop in pair.own_first_hops()
        )
        if first_hops and self.first_hop not in first_hops:
            self.first_hop, self._first_hop_changed = first_hops.most_common(1)[0][0], True

    def _check_uplinks(self, now_s: float) -> None:
        """Send one check packet along one path of each uplink route, if a check is due."""
        self._uplinks_at_s = now_s + REFRESH_S
        switch_pps = self.settings.uplink_check_switch_pps
        if not (self.settings.trace and switch_pps):
            return
        paths = (path for pair in self._pairs.values() for path in pair.reached_requests())
        plan = self._uplinks = self._uplinks or plan_checks(paths, self._names.switch_of)
        if len(plan.checks) < 2:  # no alternative uplink
            return
        for checks in plan.checks:
            self._tracer.schedule(self._random.choice(checks))
        pause = pause_s(max(self._fleet_nics, len(self._alive)), plan.max_routes_of_switch, switch_pps)
        self._uplinks_at_s = now_s + self._jittered(pause)

    def _retrace_pause_s(self, leg: Leg) -> float:
        factor = ANSWER_PAUSE_FACTOR if leg == Leg.ANSWER else 1.0
        return self._jittered(self.settings.retrace_s * factor)

    def _cancel(self, flow: TracedFlow) -> None:
        self._tracer.cancel(flow)
        self._expected.discard(flow)

    def _send(self, packet: Packet) -> None:
        _send_packet(self.engine, self.address, packet)

    # ---- traces

    def _on_trace(self, trace: Trace, now_s: float) -> None:
        flow = trace.flow
        if flow.uplink_check:
            self._on_uplink_check(trace, now_s)
            return
        pair = self._pairs.get(flow.peer)
        route = pair.route_of(flow) if pair is not None else None
        if pair is None or route is None:
            return
        self._note_traced(route, trace, now_s)
        before = None if route.known is None else (route.known.hops, route.known.reached)
        expected = flow in self._expected
        self._expected.discard(flow)
        change = route.accept(trace, time.time_ns(), expected)
        if change is Change.UNCONFIRMED:
            self._trace_again(flow, now_s)
        elif change is not Change.NONE:
            pair.published.dirty, self._uplinks = True, None
        if change is Change.MOVED and route.known is not None and before is not None:
            pair.published.moved = True
            if expected:  # accepted without confirmation, so confirm it now
                self._trace_soon(route, now_s)
            self._on_moved(flow, before, route.known, now_s)

    def _on_uplink_check(self, trace: Trace, now_s: float) -> None:
        """Trace a path completely if its uplink check contradicts the known route."""
        flow = trace.flow._replace(max_ttl=0, uplink_check=False)
        pair = self._pairs.get(flow.peer)
        route = pair.route_of(flow) if pair is not None else None
        if route is not None and route.known is not None and route.known.differs_from(trace.hops):
            self._trace_again(flow, now_s)

    def _on_moved(
        self, flow: TracedFlow, before: tuple[Hops, bool], known_route: KnownRoute, now_s: float
    ) -> None:
        """Trace other paths, first the paths over a hop that this path left: they most likely moved too."""
        _log.info(
            "%s: %s port %d of %s takes %s, before %s",
            self.nic,
            flow.leg.lower(),
            flow.port,
            flow.peer,
            _hops_text(known_route.hops, known_route.reached),
            _hops_text(*before),
        )
        abandoned = set(before[0]) - {None, *known_route.hops}
        all_rested = self._all_rested(now_s)
        for name, pair in self._pairs.items():
            for _, route, other in pair.traced():
                if route.known is not None and abandoned & set(route.known.hops):
                    self._expected.add(other)
                    self._trace_again(other, now_s)
                elif all_rested or name == flow.peer:
                    self._trace_soon(route, now_s)
        self.ports.search_later(now_s)

    def _trace_again(self, flow: TracedFlow, now_s: float) -> None:
        """Trace a path at once because of another trace, or later if the limit of such traces is reached."""
        paths = sum(1 for pair in self._pairs.values() for _ in pair.traced())
        if self._tracer.is_pending(flow) or self._retrace_bucket.take(paths, now_s):
            self._tracer.schedule(flow, soon=True)
        elif (route := self._pairs[flow.peer].route_of(flow)) is not None:
            route.due_s = min(route.due_s, now_s + self._random.uniform(0.5, 1.5) * ALL_REST_S)

    def _trace_soon(self, route: TracedRoute, now_s: float) -> None:
        route.due_s = min(route.due_s, now_s + self._random.uniform(0, UNRELATED_S))

    def accept_trace(self, peer: str, port: int, trace: Trace, now_s: float) -> None:
        """Replace the known route of a path by a trace from a port search."""
        pair = self._pairs.get(peer)
        if pair is not None:
            route = pair.routes.setdefault((Leg.REQUEST, port), TracedRoute())
            route.known = KnownRoute(trace.hops, trace.reached, time.time_ns())
            route.due_s = now_s + self._retrace_pause_s(Leg.REQUEST)
            pair.published.dirty = True

    # ---- records

    def _publish(self, name: str, pair: ProbePair, now_s: float) -> None:
        published = pair.published
        if published.is_old(now_s, silent=name in self._changes.silent_peers):
            published.dirty, published.rows = True, []
        if not published.dirty or pair.gone_s is not None:
            return
        if now_s < published.next_s and not published.moved:
            return
        rows = pair.rows(name, self._names)
        if self._names.renamed:
            self._names.renamed = False
            self._name_all_again()
        if not pair.must_wait(rows, now_s) and published.replace(rows, now_s, self._random):
            record: PathMaps = {
                "nic": self.nic,
                "peer": name,
                "shard": self.shard,
                "run": self.engine.run_id,
                "traced_ns": time.time_ns(),
                "paths": rows,
            }
            self._publish_record(PATHS, name, record)


def _send_packet(engine: Engine, address: str, packet: Packet) -> None:
    """Send a trace packet from its flow's socket, unless that socket now has another port."""
    flow, ports = packet.flow, engine.all_ports
    if flow.socket != RESPONDER and (flow.socket >= len(ports) or ports[flow.socket] != flow.port):
        return
    own = (address, engine.responder_port if flow.socket == RESPONDER else flow.port)
    data = engine.trace_packet(own, flow.target, flow.peer, packet.seq, packet.ttl)
    engine.send(flow.socket, data, flow.target, ttl=packet.ttl)


def _hops_text(hops: Sequence[str | None], reached: bool) -> str:
    return " ".join(hop or "*" for hop in hops) + ("" if reached else " ...")

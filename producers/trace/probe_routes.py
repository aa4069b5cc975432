"""Traces the links that a NIC's probes take, with the probes' own port pairs.

The result is `PathMaps` of each pair, published when a route changes. Requests are traced from each path's
own socket, answers from the responder's socket to every port that probes us. So each end knows the routes
that it sends over. The engine passes on the errors that come back to its sockets.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from native.core.columns import ProbeColumns
from native.core.probe import Engine, Prober
from producers.probe.flow_targets import PathKey, PeerRoute
from producers.settings import ProbeSettings
from producers.trace.path_changes import PathChangeDetector
from producers.trace.port_search import apply_trace_hit
from producers.trace.port_selection import OpenCandidates, PortSelector
from producers.trace.route_tracer import (
    ALL_REST_S,
    MIN_RECORD_GAP_S,
    REPUBLISH_S,
    Change,
    Put,
    RouteTracer,
    without_since,
)
from producers.trace.sockets import send_trace
from producers.trace.tracer import KnownRoute, Packet, Trace, TracedFlow
from producers.trace.uplinks import TokenBucket, pause_s, uplink_routes
from schemas import codec
from schemas.records import Leg, Nic, PathMap, PathMaps
from schemas.topics import PATHS
from schemas.topology import TopologyError, TopologySource

__all__ = ["ProbeRouteTracer"]

_log = logging.getLogger(__name__)

Hops = tuple[str | None, ...]
LegPort = tuple[Leg, int]

RESPONDER: Final = -1
REFRESH_S: Final = 0.5
BUSY_PAUSE_S: Final = 0.01
PUBLISH_S: Final = 0.05
SETTLE_S: Final = 5.0
"""A pair's first record waits this long for all of its paths."""
ANSWERS_REST_S: Final = 2.0
"""A path whose peer traced us is traced back, but not more often than this."""
UNRELATED_S: Final = 1.5
"""Paths that share no abandoned hop with a moved path are traced within this time."""
RETRACE_BURST: Final = 16
"""Traces per path that other traces may trigger at once; in the long run one per `ALL_REST_S`. A spine that
fails and returns needs four to six, because switches then hash all flows again."""
PROBER_TIMEOUT_S: Final = 600.0
FILE_CHECK_S: Final = 2.0
MAX_NAMED_HOPS: Final = 16_384
UNANNOUNCED_KEEP_S: Final = 60.0
"""Answers to an unannounced port are traced for this long after its last probe."""
ANSWER_PAUSE_FACTOR: Final = 1.5
"""Answers are traced less often, because the peer's traces usually trigger ours."""


@dataclass(slots=True)
class _Pair:
    """One directed pair: its traced paths, known routes and last published record."""

    first_s: float
    flows: dict[LegPort, TracedFlow] = field(default_factory=dict)
    known: dict[LegPort, KnownRoute] = field(default_factory=dict)
    due_s: dict[LegPort, float] = field(default_factory=dict)
    traced_s: dict[LegPort, float] = field(default_factory=dict)
    incomplete_traces: dict[LegPort, int] = field(default_factory=dict)
    """Consecutive incomplete traces."""
    probed_s: float = float("-inf")
    """Time of the peer's last probe to us."""
    unannounced: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Ports that the peer probes from but does not announce, with address and time of the last probe."""
    gone_s: float | None = None
    first_hop: str | None = None
    dirty: bool = False
    moved: bool = False
    """True if the published record is wrong, not only incomplete."""
    published: list[PathMap] | None = None
    published_s: float = 0.0
    next_record_s: float = 0.0

    def trace_by(self, key: LegPort, due_s: float) -> None:
        """Bring the next trace of a path forward."""
        self.due_s[key] = min(self.due_s.get(key, due_s), due_s)

    def must_wait(self, rows: Sequence[PathMap], now_s: float) -> bool:
        """Return True if the record is not to be published yet."""
        if not rows:
            return True
        if now_s - self.first_s >= SETTLE_S:
            return False
        if len(rows) < len(self.flows):
            return True
        return self.published is None and not all(row["complete"] for row in rows)


Wanted = dict[str, dict[LegPort, TracedFlow]]


class ProbeRouteTracer(RouteTracer):
    """Traces the routes of one NIC's probes and answers. Call `tick` often; it never blocks."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        *,
        nic: str,
        shard: str,
        address: str,
        put: Put,
        open_candidates: OpenCandidates | None = None,
        registry: codec.Registry | None = None,
        seed: int | None = None,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Raises TopologyError if the topology file cannot be used."""
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
        self.engine, self.settings = engine, settings
        self.first_hop: str | None = None
        self.source = TopologySource(settings.topology_file)
        self.ports = PortSelector(
            engine,
            settings,
            self,
            nic=nic,
            address=address,
            open_candidates=open_candidates,
            rng=self._random,
        )
        self._first_hop_changed = False
        self._file_due_s = 0.0
        self._retrace_bucket = TokenBucket(ALL_REST_S, RETRACE_BURST)
        self._expected: set[TracedFlow] = set()
        """Flows that are traced because other traces show that they moved."""
        self._changes = PathChangeDetector()
        self._pairs: dict[str, _Pair] = {}
        self._alive: Mapping[str, Nic] = {}
        self._fleet_nics = 0
        self._nic_of: dict[str, str] = {}
        self._refresh_at_s = self._publish_at_s = self._uplinks_at_s = 0.0
        self._moved_s = float("-inf")
        self._named_hops: dict[tuple[str, int, str | None, Hops], tuple[str, ...]] = {}
        """Peer, port, the peer's first hop and hops to links; empty if any link is unknown."""

    # ---- inputs

    @property
    def announcement_changed(self) -> bool:
        """True if the NIC's announced ports or first hop changed; the caller resets it."""
        return self._first_hop_changed or self.ports.ports_changed

    @announcement_changed.setter
    def announcement_changed(self, changed: bool) -> None:
        self._first_hop_changed = self.ports.ports_changed = changed

    def set_fleet(self, alive: Mapping[str, Nic], fleet_nics: int = 0) -> None:
        """Set the announcements of the shard's living NICs and the number of NICs of all shards."""
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
                pair.first_hop, pair.dirty = first_hop, True
        self.refresh_soon()

    def observe(self, batch: ProbeColumns, now_s: float) -> None:
        """Trace the paths at once that seem to have moved by these measurements."""
        for peer, port in self._changes.observe(batch, now_s):
            pair = self._pairs.get(peer)
            flow = pair.flows.get((Leg.REQUEST, port)) if pair is not None else None
            if flow is not None:
                self._tracer.schedule(flow, soon=True)

    def serve_routes(
        self, wanted: Iterable[PeerRoute], known: Mapping[PathKey, tuple[str, ...]], now_s: float
    ) -> None:
        """Provide spare paths for flows' routes; `known_routes` contains them once they are traced."""
        self.ports.serve_routes(wanted, known, now_s)

    # ---- results

    def links_of(self, peer: str, port: int) -> list[str]:
        """Return the published links of probes to a peer from a source port; empty if unknown."""
        pair = self._pairs.get(peer)
        for row in (pair.published or ()) if pair is not None else ():
            if row["path"] == port and row["leg"] == Leg.REQUEST and row["complete"]:
                return row["links"]
        return []

    def known_routes(self) -> dict[PathKey, tuple[str, ...]]:
        """Return the published, complete links of requests by (peer, source port)."""
        return {
            (name, row["path"]): tuple(row["links"])
            for name, pair in self._pairs.items()
            for row in pair.published or ()
            if row["leg"] == Leg.REQUEST and row["complete"]
        }

    def request_hops(self, peer: str) -> dict[int, Hops]:
        """Return hops by source port, of requests that reach the peer and met an answering router."""
        pair = self._pairs.get(peer)
        return {
            port: known.hops
            for (leg, port), known in (pair.known.items() if pair is not None else ())
            if leg == Leg.REQUEST and known.reached and any(known.hops)
        }

    def peers_with_routes(self) -> Iterable[str]:
        """Return the peers of all pairs."""
        return self._pairs

    def name_hops(self, peer: str, port: int, hops: Hops) -> tuple[str, ...]:
        """Return the links of hops to a peer; empty if any is unknown."""
        pair = self._pairs.get(peer)
        key = (peer, port, None if pair is None else pair.first_hop, hops)
        links = self._named_hops.get(key)
        if links is None:
            if len(self._named_hops) >= MAX_NAMED_HOPS:
                self._named_hops.clear()
            named = self._name_route(peer, port, hops, True, key[2], self.source.topology)
            links = self._named_hops[key] = named.links if named.complete else ()
        return links

    # ---- periodic work

    def tick(self, now_s: float) -> float:
        """Do the work that is due; return the seconds until the next call."""
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + REFRESH_S
            self._check_file(now_s)
            self._refresh(now_s)
        if now_s >= self._uplinks_at_s:
            self._check_uplinks(now_s)
        for hit in self.engine.trace_hits():
            apply_trace_hit(self._tracer, hit.path, hit)
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            self._send(packet)
        for trace in traces:
            self._on_trace(trace, now_s)
        self.ports.tick(now_s)
        if now_s >= self._publish_at_s:
            self._publish_at_s = now_s + PUBLISH_S
            for name, pair in self._pairs.items():
                self._publish(name, pair, now_s)
        if self._tracer.busy or self.ports.is_searching:
            return BUSY_PAUSE_S
        return max(0.0, min(REFRESH_S / 2, self._uplinks_at_s - now_s))

    def refresh_soon(self) -> None:
        """Compare the traced paths with the engine's at the next tick."""
        self._refresh_at_s = 0.0

    def close(self) -> None:
        """Close the sockets of a search."""
        self.ports.close()

    def _check_file(self, now_s: float) -> None:
        """Reload the topology file if it changed; an unusable file is ignored."""
        if now_s < self._file_due_s:
            return
        self._file_due_s = now_s + FILE_CHECK_S
        try:
            if not self.source.refresh():
                return
        except TopologyError as error:
            _log.error("%s: %s; the last valid file stays in use", self.nic, error)
            return
        self._named_hops.clear()
        for pair in self._pairs.values():
            pair.dirty = True

    def _refresh(self, now_s: float) -> None:
        """Update the set of traced paths: those to our peers and the answers to our probers."""
        self.ports.drop_unused_spares(now_s)
        wanted = self._wanted_requests()
        peer_traced_s = self._add_answers(wanted, now_s)
        self._add_former_answers(wanted, now_s)
        for name, flows in wanted.items():
            pair = self._pairs.setdefault(name, _Pair(now_s))
            self._schedule_pair(name, pair, flows, peer_traced_s, now_s)
        self._drop_unwanted(wanted, now_s)
        self._update_first_hop()
        self.ports.search_if_due(frozenset(peer.nic for peer in self.engine.peers), now_s)

    def _wanted_requests(self) -> Wanted:
        wanted: Wanted = {}
        for peer in self.engine.peers:
            flows = wanted.setdefault(peer.nic, {})
            for at, port in enumerate(self.engine.all_ports):
                if self.ports.is_traced(peer.nic, at, port):
                    target = (peer.address, peer.port)
                    flows[Leg.REQUEST, port] = TracedFlow(Leg.REQUEST, peer.nic, port, target, at)
        return wanted

    def _add_answers(self, wanted: Wanted, now_s: float) -> dict[PathKey, float]:
        """Add the answers to present probers; return when each (peer, port) last traced us."""
        traced_s: dict[PathKey, float] = {}
        for prober in self.engine.probers():
            name = self._nic_of.get(prober.address)
            if name is None:
                continue
            flows = wanted.setdefault(name, {})
            for port in self._announced_ports(name, prober, now_s):
                flows[Leg.ANSWER, port] = TracedFlow(
                    Leg.ANSWER, name, port, (prober.address, port), RESPONDER
                )
            if prober.traced_s is not None:
                traced_s[name, prober.port] = now_s - prober.traced_s
        return traced_s

    def _announced_ports(self, name: str, prober: Prober, now_s: float) -> Sequence[int]:
        """Return a prober's announced ports, and note the port if it probes from an unannounced one.

        A port that is neither announced nor probed from only carries the peer's traces.
        """
        pair = self._pairs.setdefault(name, _Pair(now_s))
        pair.probed_s = now_s
        announced: Sequence[int] = self._alive[name]["path_ports"] or [prober.port]
        if prober.probed_s is not None and prober.port not in announced:
            pair.unannounced[prober.port] = (prober.address, now_s - prober.probed_s)
        return announced

    def _add_former_answers(self, wanted: Wanted, now_s: float) -> None:
        """Keep the answers to peers that probed us recently: a peer that stopped may be cut off."""
        for name, pair in self._pairs.items():
            record = self._alive.get(name)
            if record is None or now_s - pair.probed_s > PROBER_TIMEOUT_S:
                continue
            ports = record["path_ports"] or [port for leg, port in pair.flows if leg == Leg.ANSWER]
            for port, (address, last_s) in list(pair.unannounced.items()):
                if now_s - last_s > UNANNOUNCED_KEEP_S or port in ports:
                    del pair.unannounced[port]
                else:
                    flow = TracedFlow(Leg.ANSWER, name, port, (address, port), RESPONDER)
                    wanted.setdefault(name, {})[Leg.ANSWER, port] = flow
            for key, flow in pair.flows.items():
                if key[0] == Leg.ANSWER and key[1] in ports:
                    wanted.setdefault(name, {}).setdefault(key, flow)

    def _schedule_pair(
        self,
        name: str,
        pair: _Pair,
        flows: dict[LegPort, TracedFlow],
        peer_traced_s: Mapping[PathKey, float],
        now_s: float,
    ) -> None:
        pair.gone_s = None
        for key in [key for key in pair.flows if pair.flows[key] != flows.get(key)]:
            self._cancel(pair.flows.pop(key))
            if key not in flows:
                pair.known.pop(key, None)
            pair.due_s.pop(key, None)
            pair.dirty = True
        for key, flow in flows.items():
            if key not in pair.flows:
                pair.flows[key] = flow
                pair.due_s.setdefault(key, now_s)
            if not self.settings.trace:
                if key not in pair.known:
                    pair.known[key], pair.dirty = KnownRoute((), False, self._system_ns()), True
                continue
            last_s = pair.traced_s.get(key, float("-inf"))
            theirs_s = peer_traced_s.get((name, key[1])) if key[0] == Leg.ANSWER else None
            trace_back = theirs_s is not None and theirs_s > last_s and now_s - last_s > ANSWERS_REST_S
            if now_s >= pair.due_s[key] or trace_back:
                pair.due_s[key] = now_s + self._retrace_pause_s(key[0])
                self._tracer.schedule(flow)

    def _drop_unwanted(self, wanted: Wanted, now_s: float) -> None:
        """Forget pairs without probes in either direction, after a pause for a prober that restarts."""
        for name in [name for name in self._pairs if name not in wanted]:
            pair = self._pairs[name]
            if pair.gone_s is None:
                pair.gone_s = now_s
                for flow in pair.flows.values():
                    self._cancel(flow)
                pair.due_s.clear()
                pair.flows.clear()
            elif now_s - pair.gone_s > self.settings.silent_s:
                del self._pairs[name]
                self._publish_tombstone(PATHS, self.nic, name)
                if name not in self._alive:  # the peer is gone and cannot delete its own record
                    self._publish_tombstone(PATHS, name, self.nic)

    def _update_first_hop(self) -> None:
        """Set the router that this NIC's packets meet first; of several, the most frequent."""
        first_hops = Counter(
            known.hops[0]
            for pair in self._pairs.values()
            for known in pair.known.values()
            if known.reached and known.hops and known.hops[0] is not None
        )
        if first_hops and self.first_hop not in first_hops:
            self.first_hop, self._first_hop_changed = first_hops.most_common(1)[0][0], True

    def _check_uplinks(self, now_s: float) -> None:
        """Check each uplink route with one packet along one of its paths."""
        self._uplinks_at_s = now_s + REFRESH_S
        switch_pps = self.settings.uplink_check_switch_pps
        if not (self.settings.trace and switch_pps):
            return
        routes = uplink_routes(
            (flow, known.hops)
            for pair in self._pairs.values()
            for key, flow in pair.flows.items()
            if key[0] == Leg.REQUEST and (known := pair.known.get(key)) is not None and known.reached
        )
        if len(routes) < 2:  # no alternative uplink
            return
        for hops, flows in routes.items():
            flow = self._random.choice(flows)
            self._tracer.schedule(flow._replace(max_ttl=len(hops), uplink_check=True))
        apexes = Counter(self._switch_of(hops[-1]) for hops in routes)
        pause = pause_s(max(self._fleet_nics, len(self._alive)), max(apexes.values()), switch_pps)
        self._uplinks_at_s = now_s + self._jittered(pause)

    def _switch_of(self, hop: str | None) -> str | None:
        """Return the switch with a hop's address, or the address if no file names it."""
        at = self.source.topology.at(hop) if hop is not None else None
        return hop if at is None else at[0]

    def _retrace_pause_s(self, leg: str) -> float:
        factor = ANSWER_PAUSE_FACTOR if leg == Leg.ANSWER else 1.0
        return self._jittered(self.settings.retrace_s * factor)

    def _cancel(self, flow: TracedFlow) -> None:
        self._tracer.cancel(flow)
        self._expected.discard(flow)

    def _send(self, packet: Packet) -> None:
        flow = packet.flow
        sockets = self.engine.path_sockets
        if flow.socket >= len(sockets):
            return
        sock = self.engine.responder_socket if flow.socket == RESPONDER else sockets[flow.socket]
        if flow.socket != RESPONDER and self.engine.all_ports[flow.socket] != flow.port:
            return
        own = (self.address, sock.getsockname()[1])
        data = self.engine.trace_packet(own, flow.target, flow.peer, packet.seq, packet.ttl)
        send_trace(sock, data, packet.ttl, flow.target)

    # ---- traces

    def _on_trace(self, trace: Trace, now_s: float) -> None:
        flow = trace.flow
        if flow.uplink_check:
            self._on_uplink_check(trace, now_s)
            return
        pair = self._pairs.get(flow.peer)
        key = (flow.leg, flow.port)
        if pair is None or pair.flows.get(key) != flow:
            return
        pair.traced_s[key] = now_s
        if trace.is_complete:
            pair.incomplete_traces.pop(key, None)
        else:
            count = pair.incomplete_traces[key] = pair.incomplete_traces.get(key, 0) + 1
            pair.due_s[key] = min(pair.due_s[key], now_s + self._retry_pause_s(count))
        known = pair.known.get(key)
        if known is None:
            pair.known[key] = self._new_route(trace)
            pair.dirty = True
            return
        before = (known.hops, known.reached)
        expected = flow in self._expected
        self._expected.discard(flow)
        change = self._update_route(known, trace, expected)
        if change is Change.UNCONFIRMED:
            self._trace_again(flow, now_s)
        elif change is not Change.NONE:
            pair.dirty = True
        if change is Change.MOVED:
            pair.moved = True
            if expected:  # accepted without confirmation, so confirm it now
                self._trace_soon(pair, key, now_s)
            self._on_moved(flow, before, known, now_s)

    def _on_uplink_check(self, trace: Trace, now_s: float) -> None:
        """Trace the whole path if its uplink route differs from the known one."""
        flow = trace.flow._replace(max_ttl=0, uplink_check=False)
        pair, key = self._pairs.get(flow.peer), (flow.leg, flow.port)
        known = pair.known.get(key) if pair is not None and pair.flows.get(key) == flow else None
        if known is not None and known.differs_from(trace.hops):
            self._trace_again(flow, now_s)

    def _on_moved(self, flow: TracedFlow, before: tuple[Hops, bool], known: KnownRoute, now_s: float) -> None:
        """Trace other paths: first those over an abandoned hop, which most likely moved too."""
        _log.info(
            "%s: %s port %d of %s takes %s, before %s",
            self.nic,
            flow.leg.lower(),
            flow.port,
            flow.peer,
            _hops_text(known.hops, known.reached),
            _hops_text(*before),
        )
        abandoned = set(before[0]) - {None, *known.hops}
        all_rested = now_s - self._moved_s > ALL_REST_S
        for name, pair in self._pairs.items():
            for key, other in pair.flows.items():
                if key in pair.known and abandoned & set(pair.known[key].hops):
                    self._expected.add(other)
                    self._trace_again(other, now_s)
                elif all_rested or name == flow.peer:
                    self._trace_soon(pair, key, now_s)
        self._moved_s = now_s
        self.ports.search_later(now_s)

    def _trace_again(self, flow: TracedFlow, now_s: float) -> None:
        """Trace a path at once because of another trace, or later if the limit is used up."""
        pair = self._pairs[flow.peer]
        paths = sum(len(each.flows) for each in self._pairs.values())
        if self._tracer.is_pending(flow) or self._retrace_bucket.take(paths, now_s):
            self._tracer.schedule(flow, soon=True)
        else:
            pair.trace_by((flow.leg, flow.port), now_s + self._random.uniform(0.5, 1.5) * ALL_REST_S)

    def _trace_soon(self, pair: _Pair, key: LegPort, now_s: float) -> None:
        pair.trace_by(key, now_s + self._random.uniform(0, UNRELATED_S))

    def accept_trace(self, peer: str, port: int, trace: Trace, now_s: float) -> None:
        """Replace the known route of a path by a trace from a port search."""
        pair = self._pairs.get(peer)
        if pair is not None:
            pair.known[Leg.REQUEST, port] = self._new_route(trace)
            pair.due_s[Leg.REQUEST, port] = now_s + self._retrace_pause_s(Leg.REQUEST)
            pair.dirty = True

    # ---- records

    def _publish(self, name: str, pair: _Pair, now_s: float) -> None:
        if pair.published is not None and now_s - pair.published_s > REPUBLISH_S:
            pair.dirty, pair.published = True, []
        if not pair.dirty or pair.gone_s is not None or not pair.flows:
            return
        if now_s < pair.next_record_s and not pair.moved:
            return
        rows = self._rows(name, pair)
        if pair.must_wait(rows, now_s):
            return
        pair.dirty = pair.moved = False
        if pair.published is not None and without_since(rows) == without_since(pair.published):
            return
        pair.published, pair.published_s = rows, now_s + self._random.uniform(0, REPUBLISH_S / 4)
        pair.next_record_s = now_s + MIN_RECORD_GAP_S
        record: PathMaps = {
            "nic": self.nic,
            "peer": name,
            "shard": self.shard,
            "run": self.engine.run_id,
            "traced_ns": self._system_ns(),
            "paths": rows,
        }
        self._publish_record(PATHS, name, record)

    def _rows(self, name: str, pair: _Pair) -> list[PathMap]:
        """Return the elements of the pair's `PathMaps`, of the paths that were traced."""
        rows: list[PathMap] = []
        for leg, port in sorted(pair.flows):
            known = pair.known.get((leg, port))
            if known is None:
                continue
            named = self._name_route(
                name, port, known.hops, known.reached, pair.first_hop, self.source.topology
            )
            rows.append(
                {
                    "path": port,
                    "leg": leg,
                    "links": list(named.links),
                    "found": named.found,
                    "complete": named.complete,
                    "since_ns": known.since_ns,
                    "changes": known.changes,
                    "contradiction": named.contradiction,
                }
            )
        return rows


def _hops_text(hops: Sequence[str | None], reached: bool) -> str:
    return " ".join(hop or "*" for hop in hops) + ("" if reached else " ...")

"""Which links this NIC's packets take: traced over the probes' own port pairs, named, published when they
change.

In: the engine's sockets and peers, the inventory, the topology file. Out: `PathMaps` of each pair in
`fabric.paths`, and the source ports to probe from. Requests are traced from each path's own socket, answers
from the responder's to every port that asks: so both ends know the way that they send. All of it stands
beside probing: the engine takes the errors that come back and hands them on.
"""

from __future__ import annotations

import logging
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from native.core.columns import ProbeColumns
from native.core.probe import Engine, TraceHit
from producers.probe.flow_targets import PeerRoute, PathKey, choose_spare_ports
from producers.settings import ProbeSettings
from producers.trace.path_changes import PathChangeDetector
from producers.trace.route_names import NamedPath, name_path
from producers.trace.sockets import (
    IP_RECVERR,
    IPV6_RECVERR,
    ORIGIN_ICMP,
    ORIGIN_ICMP6,
    TIME_EXCEEDED,
    UNREACHABLE,
    error_of,
    send_trace,
)
from producers.trace.source_ports import choose_ports
from producers.trace.tracer import TracedFlow, KnownRoute, Packet, Trace, Tracer
from producers.trace.uplinks import TokenBucket, pause_s, uplink_routes
from schemas import codec
from schemas.topics import PATHS
from schemas.topology import TopologyError, TopologySource

__all__ = ["ProbeRouteTracer"]

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Put = Callable[[str, str, bytes | None], None]

RESPONDER: Final = -1
READS_A_TURN: Final = 64
SURVEY_S: Final = 0.5
GAP_AGAIN_S: Final = 1.0
"""A path that a trace does not tell from end to end is traced again after twice this, then twice that, and so
on up to the usual pause."""
PUBLISH_S: Final = 0.05
ADD_S: Final = 0.5
"""Between two records of a pair, unless a path of it moved."""
SETTLE_S: Final = 5.0
"""How long a pair's first record may wait for all of its paths to be known."""
ANSWERS_REST_S: Final = 2.0
"""A flow whose peer traced us is traced in turn, but not more often than this."""
ALL_REST_S: Final = 5.0
"""A path that moved has all paths traced anew, but not more often than this."""
OTHERS_S: Final = 1.5
"""Within this, those that share nothing with it which it left."""
ROUNDS: Final = 16
"""So often at once each path may be traced for what others showed, and else once in `ALL_REST_S`: a spine
that goes and comes back takes four to six, since switches then hash all flows anew."""
SEARCH_AFTER_S: Final = 1.0
SEARCH_REST_S: Final = 60.0
REPUBLISH_S: Final = 900.0
NO_ASKER_S: Final = 600.0
FILE_CHECK_S: Final = 2.0
FLOW_SEARCH_REST_S: Final = 10.0
"""Between two searches for ports that go flows' ways."""
LINKS_MOST: Final = 16_384
KEEP_S: Final = 60.0
"""How long a port that served a flow's way is traced to that peer after the last flow, and answered for after
the last probe."""


@dataclass(slots=True)
class _Pair:
    """One directed pair: what is believed of its paths, and what was said of it."""

    first_s: float
    flows: dict[tuple[str, int], TracedFlow] = field(default_factory=dict)
    known: dict[tuple[str, int], KnownRoute] = field(default_factory=dict)
    due_s: dict[tuple[str, int], float] = field(default_factory=dict)
    traced_s: dict[tuple[str, int], float] = field(default_factory=dict)
    gaps: dict[tuple[str, int], int] = field(default_factory=dict)
    """Traces in a row that did not tell all."""
    seen_s: float = float("-inf")
    others: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Ports that the peer probes from but does not announce, with its address and when it last did."""
    gone_s: float | None = None
    first_hop: str | None = None
    dirty: bool = False
    moved: bool = False
    """Whether what was said of it is wrong now, not merely not all."""
    said: list[Record] | None = None
    said_s: float = 0.0
    again_s: float = 0.0


class ProbeRouteTracer:
    """The paths of one NIC. `tick` is called often; it never blocks."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        *,
        nic: str,
        shard: str,
        address: str,
        put: Put,
        open_candidates: Callable[[Sequence[int]], list[socket.socket]] | None = None,
        registry: codec.Registry | None = None,
        seed: int | None = None,
    ) -> None:
        """`put` takes topic, key and value. `open_candidates` opens sockets on the ports of its argument,
        those that it can have. Raises TopologyError where the topology file cannot be used."""
        self.engine, self.settings, self.nic, self.shard, self.address = engine, settings, nic, shard, address
        self.first_hop: str | None = None
        self.news = False
        """Whether what the NIC announces of itself changed: its ports or its first hop."""
        self.source = TopologySource(settings.topology_file)
        self._file_due_s = 0.0
        self._put, self._registry, self._open_candidates = put, registry, open_candidates
        self._random = random.Random(seed)  # noqa: S311  # pauses, nothing that anybody must not guess
        self._tracer = Tracer(settings.trace_pps, settings.trace_max_hops, self._random.getrandbits(32))
        self._again = TokenBucket(ALL_REST_S, ROUNDS)
        self._expected: set[TracedFlow] = set()
        """Flows that are traced since others tell that they moved."""
        self._floors = PathChangeDetector()
        self._pairs: dict[str, _Pair] = {}
        self._roster: Mapping[str, Record] = {}
        self._fleet = 0
        self._nic_of: dict[str, str] = {}
        self._survey_s = self._publish_s = self._look_s = 0.0
        self._peers: frozenset[str] = frozenset()
        self._peers_s = 0.0
        self._search: _Search | None = None
        self._search_due_s: float | None = None
        self._searched_s = self._moved_s = self._flow_searched_s = float("-inf")
        self._candidates: dict[int, dict[str, tuple[str | None, ...]]] = {}
        """Port to peer to hops, of the candidates as they were last traced."""
        self._links: dict[tuple[str, int, str | None, tuple[str | None, ...]], tuple[str, ...]] = {}
        """Peer, port, the peer's first hop and hops, to the links that these name; empty: not all."""
        self._aimed: dict[PathKey, float] = {}
        """Peer and port of a spare path, with when a flow's way last wanted it."""

    # ---- what the prober tells

    def meet(self, alive: Mapping[str, Record], fleet: int = 0) -> None:
        """Take who is alive: NIC to announcement, this one's own left out or not. `fleet`: how many NICs
        there are with those of other shards."""
        self._roster, self._fleet = alive, fleet
        self._nic_of = {
            address: name
            for name, record in alive.items()
            if name != self.nic
            for address in record["addresses"]
        }
        for name, pair in self._pairs.items():
            first_hop = alive.get(name, {}).get("first_hop")
            if first_hop is not None and first_hop != pair.first_hop:
                pair.first_hop, pair.dirty = first_hop, True
        self._survey_s = 0.0

    def adopt(self, ports: Sequence[int]) -> None:
        """Probe from the ports of an earlier run, where they are to be had: its paths stay what they were."""
        wanted = [port for port in ports if port in self._candidate_ports()]
        if len(wanted) != len(self.engine.path_ports) or self._open_candidates is None:
            return
        new = [port for port in wanted if port not in self.engine.path_ports]
        free = [at for at, port in enumerate(self.engine.path_ports) if port not in wanted]
        for at, sock in zip(free, self._open_candidates(new), strict=False):
            self.engine.set_path(at, sock)
            self.news = True

    def observe(self, batch: ProbeColumns, now_s: float) -> None:
        """Take what was measured: a path that seems to have moved is traced at once."""
        for peer, port in self._floors.observe(batch, now_s):
            pair = self._pairs.get(peer)
            flow = pair.flows.get(("REQUEST", port)) if pair is not None else None
            if flow is not None:
                self._tracer.want(flow, soon=True)

    # ---- work

    def tick(self, now_s: float) -> float:
        """Do what is due; return in how many seconds to come again."""
        if now_s >= self._survey_s:
            self._survey_s = now_s + SURVEY_S
            self._check_file(now_s)
            self._survey(now_s)
        if now_s >= self._look_s:
            self._look_up(now_s)
        for hit in self.engine.trace_hits():
            _note(self._tracer, hit.path, hit)
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            self._send(packet)
        for trace in traces:
            self._take(trace, now_s)
        if self._search is not None and self._search.tick(now_s):
            for port, ways in self._search.ways.items():
                self._candidates.setdefault(port, {}).update(ways)
            if self._search.whole:
                self._choose(self._search, now_s)
            self._search.close()
            self._search = None
        self._publish(now_s)
        if self._tracer.busy or self._search is not None:
            return 0.01
        return max(0.0, min(SURVEY_S / 2, self._look_s - now_s))

    def links_of(self, peer: str, port: int) -> list[str]:
        """Return the links that probes to a peer take from a source port, as far as they were last told."""
        pair = self._pairs.get(peer)
        rows = (pair.said or ()) if pair is not None else ()
        return next(
            (
                row["links"]
                for row in rows
                if row["path"] == port and row["leg"] == "REQUEST" and row["complete"]
            ),
            [],
        )

    def known(self) -> dict[PathKey, tuple[str, ...]]:
        """Return (peer, source port) to the links of requests, as they were last told, where whole."""
        return {
            (name, row["path"]): tuple(row["links"])
            for name, pair in self._pairs.items()
            for row in pair.said or ()
            if row["leg"] == "REQUEST" and row["complete"]
        }

    def serve(self, wanted: Iterable[PeerRoute], known: Mapping[PathKey, tuple[str, ...]], now_s: float) -> None:
        """See that a port goes each of these ways, by spare paths where none of `known` (without them) does.
        Which one does shows in `known()` once it is traced."""
        spares = self.engine.all_ports[len(self.engine.path_ports) :]
        if not spares or not self.settings.trace or self._search is not None:
            return
        served = {(peer, links) for (peer, _), links in known.items()}
        lacking = sorted(way for way in set(wanted) if (way.peer, way.links) not in served)
        if not lacking:
            return
        candidates = self._named({way.peer for way in lacking})
        chosen = choose_spare_ports(lacking, known, candidates, spares, self.engine.path_ports)
        for at, port in enumerate(chosen):
            if port != spares[at] and not self._put_spare(len(self.engine.path_ports) + at, port):
                self._candidates.pop(port, None)
                chosen[at] = spares[at]
        still = []
        for way in lacking:
            ports = [port for port in chosen if candidates.get(port, {}).get(way.peer) == way.links]
            if not ports:
                still.append(way)
                continue
            if (way.peer, ports[0]) not in self._aimed:
                self._survey_s = 0.0
            self._aimed[way.peer, ports[0]] = now_s
        if still and now_s - self._flow_searched_s > FLOW_SEARCH_REST_S:
            self._flow_searched_s = now_s
            self._begin_search(now_s, {way.peer for way in still})

    def close(self) -> None:
        """Let go of what is open."""
        if self._search is not None:
            self._search.close()
            self._search = None

    def _survey(self, now_s: float) -> None:
        """See whom to trace: our peers, and who asks us."""
        wanted: dict[str, dict[tuple[str, int], TracedFlow]] = {}
        peers = self.engine.peers
        for shot, last_s in list(self._aimed.items()):
            if now_s - last_s > KEEP_S or shot[1] not in self.engine.all_ports:
                del self._aimed[shot]
        for peer in peers:
            flows = wanted.setdefault(peer.nic, {})
            for at, port in enumerate(self.engine.all_ports):
                if at < len(self.engine.path_ports) or (peer.nic, port) in self._aimed:
                    flows["REQUEST", port] = TracedFlow("REQUEST", peer.nic, port, (peer.address, peer.port), at)
        traced_s: dict[tuple[str, int], float] = {}
        for asker in self.engine.probers():
            name = self._nic_of.get(asker.address)
            if name is None:
                continue
            pair = self._pairs.setdefault(name, _Pair(now_s))
            pair.seen_s = now_s
            flows = wanted.setdefault(name, {})
            announced = self._roster[name].get("path_ports") or [asker.port]
            if asker.probed_s is not None and asker.port not in announced:
                pair.others[asker.port] = (asker.address, now_s - asker.probed_s)
            # a port that is neither announced nor probed from is one that the peer merely looks at
            for port in announced:
                flows["ANSWER", port] = TracedFlow("ANSWER", name, port, (asker.address, port), RESPONDER)
            if asker.traced_s is not None:
                traced_s[name, asker.port] = now_s - asker.traced_s
        for name, pair in self._pairs.items():  # who asks no more may be cut off: its ways stay
            record = self._roster.get(name)
            if record is None or now_s - pair.seen_s > NO_ASKER_S:
                continue
            ports = record.get("path_ports") or [port for leg, port in pair.flows if leg == "ANSWER"]
            for port, (address, last_s) in list(pair.others.items()):
                if now_s - last_s > KEEP_S or port in ports:
                    del pair.others[port]
                else:
                    flow = TracedFlow("ANSWER", name, port, (address, port), RESPONDER)
                    wanted.setdefault(name, {})["ANSWER", port] = flow
            for key, flow in pair.flows.items():
                if key[0] == "ANSWER" and key[1] in ports:
                    wanted.setdefault(name, {}).setdefault(key, flow)
        for name, flows in wanted.items():
            self._want(name, self._pairs.setdefault(name, _Pair(now_s)), flows, traced_s, now_s)
        self._let_go(wanted, now_s)
        self._hear_first_hop()
        self._see_to_search(frozenset(peer.nic for peer in peers), now_s)

    def _want(
        self,
        name: str,
        pair: _Pair,
        flows: dict[tuple[str, int], TracedFlow],
        traced_s: Mapping[tuple[str, int], float],
        now_s: float,
    ) -> None:
        pair.gone_s = None
        for key in [key for key in pair.flows if pair.flows[key] != flows.get(key)]:
            self._forget(pair.flows.pop(key))
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
                    pair.known[key], pair.dirty = KnownRoute((), False, time.time_ns()), True
                continue
            last_s = pair.traced_s.get(key, float("-inf"))
            seen_s = traced_s.get((name, key[1])) if key[0] == "ANSWER" else None
            in_turn = seen_s is not None and seen_s > last_s and now_s - last_s > ANSWERS_REST_S
            if now_s >= pair.due_s[key] or in_turn:
                pair.due_s[key] = now_s + self._pause_s(key[0])
                self._tracer.want(flow)

    def _look_up(self, now_s: float) -> None:
        """Look at each way up from here, by a path of those that take it."""
        self._look_s = now_s + SURVEY_S
        switch_pps = self.settings.uplink_check_switch_pps
        if not (self.settings.trace and switch_pps):
            return
        ways = uplink_routes(
            (flow, known.hops)
            for pair in self._pairs.values()
            for key, flow in pair.flows.items()
            if key[0] == "REQUEST" and (known := pair.known.get(key)) is not None and known.reached
        )
        if len(ways) < 2:  # nothing can be led anywhere else
            return
        for hops, flows in ways.items():
            self._tracer.want(self._random.choice(flows)._replace(most=len(hops), look=True))
        turns = Counter(self._switch_of(hops[-1]) for hops in ways)
        pause = pause_s(max(self._fleet, len(self._roster)), max(turns.values()), switch_pps)
        self._look_s = now_s + pause * self._random.uniform(0.75, 1.25)

    def _switch_of(self, hop: str | None) -> str | None:
        """Return the switch of a hop's address, or that address where no file names it."""
        at = self.source.topology.at(hop) if hop is not None else None
        return hop if at is None else at[0]

    def _looked(self, look: Trace, now_s: float) -> None:
        """Take a look at a way up: where it is not what was known, its path is traced whole."""
        flow = look.flow._replace(most=0, look=False)
        pair, key = self._pairs.get(flow.peer), (flow.leg, flow.port)
        known = pair.known.get(key) if pair is not None and pair.flows.get(key) == flow else None
        if known is not None and known.other_than(look.hops):
            self._trace_again(flow, now_s)

    def _trace_again(self, flow: TracedFlow, now_s: float) -> None:
        """Trace a path at once for what a trace showed; in a while where there was too much of that."""
        pair = self._pairs[flow.peer]
        paths = sum(len(each.flows) for each in self._pairs.values())
        if self._tracer.wants(flow) or self._again.take(paths, now_s):
            self._tracer.want(flow, soon=True)
        else:
            key = (flow.leg, flow.port)
            again_s = now_s + self._random.uniform(0.5, 1.5) * ALL_REST_S
            pair.due_s[key] = min(pair.due_s.get(key, again_s), again_s)

    def _hear_first_hop(self) -> None:
        """See which router this NIC's packets meet first; where there are several, the one of most paths."""
        heard = Counter(
            known.hops[0]
            for pair in self._pairs.values()
            for known in pair.known.values()
            if known.reached and known.hops and known.hops[0] is not None
        )
        if heard and self.first_hop not in heard:
            self.first_hop, self.news = heard.most_common(1)[0][0], True

    def _pause_s(self, leg: str) -> float:
        """Return the pause until a flow is traced again without a reason. Answers mostly have one: the peer's
        own traces."""
        pause_s = self.settings.retrace_s * (1.5 if leg == "ANSWER" else 1.0)
        return pause_s * self._random.uniform(0.75, 1.25)

    def _let_go(self, wanted: Mapping[str, Any], now_s: float) -> None:
        """Forget pairs that neither end asks in any more. Not at once: a prober that starts anew is back
        soon."""
        for name in [name for name in self._pairs if name not in wanted]:
            pair = self._pairs[name]
            if pair.gone_s is None:
                pair.gone_s = now_s
                for flow in pair.flows.values():
                    self._forget(flow)
                pair.due_s.clear()
                pair.flows.clear()
            elif now_s - pair.gone_s > self.settings.silent_s:
                del self._pairs[name]
                self._put(PATHS.name, f"{self.nic}>{name}", None)
                if name not in self._roster:  # nobody else will: it is gone for good
                    self._put(PATHS.name, f"{name}>{self.nic}", None)

    def _forget(self, flow: TracedFlow) -> None:
        self._tracer.forget(flow)
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

    def _take(self, trace: Trace, now_s: float) -> None:
        flow = trace.flow
        if flow.look:
            self._looked(trace, now_s)
            return
        pair = self._pairs.get(flow.peer)
        key = (flow.leg, flow.port)
        if pair is None or pair.flows.get(key) != flow:
            return
        pair.traced_s[key] = now_s
        if trace.reached and all(trace.hops):
            pair.gaps.pop(key, None)
        else:
            tries = pair.gaps[key] = pair.gaps.get(key, 0) + 1
            again_s = GAP_AGAIN_S * 2.0 ** min(tries, 20) * self._random.uniform(0.75, 1.25)
            pair.due_s[key] = min(pair.due_s[key], now_s + again_s)
        known = pair.known.get(key)
        if known is None:
            pair.known[key] = KnownRoute(trace.hops, trace.reached, time.time_ns())
            pair.dirty = True
        else:
            before = (known.hops, known.reached, known.changes)
            expected = flow in self._expected
            self._expected.discard(flow)
            if known.take(trace, time.time_ns(), expected):
                self._trace_again(flow, now_s)
            elif (known.hops, known.reached, known.changes) != before:
                pair.dirty = True
                if known.changes != before[2]:
                    pair.moved = True
                    if expected:  # believed at once: to be sure
                        self._trace_soon(pair, key, now_s)
                    self._moved(flow, before, known, now_s)

    def _moved(self, flow: TracedFlow, before: tuple[Any, ...], known: KnownRoute, now_s: float) -> None:
        """A path moved: so have most that took a hop which it takes no more, and maybe others."""
        _log.info(
            "%s: %s port %d of %s goes %s, before %s",
            self.nic,
            flow.leg.lower(),
            flow.port,
            flow.peer,
            _hops_text(known.hops, known.reached),
            _hops_text(before[0], before[1]),
        )
        left = set(before[0]) - {None, *known.hops}
        rested = now_s - self._moved_s > ALL_REST_S
        for name, pair in self._pairs.items():
            for key, other in pair.flows.items():
                if key in pair.known and left & set(pair.known[key].hops):
                    self._expected.add(other)
                    self._trace_again(other, now_s)
                elif rested or name == flow.peer:
                    self._trace_soon(pair, key, now_s)
        self._moved_s = now_s
        if self._search_due_s is None:
            self._search_due_s = now_s + SEARCH_AFTER_S

    def _trace_soon(self, pair: _Pair, key: tuple[str, int], now_s: float) -> None:
        again_s = now_s + self._random.uniform(0, OTHERS_S)
        pair.due_s[key] = min(pair.due_s.get(key, again_s), again_s)

    # ---- what is said

    def _publish(self, now_s: float) -> None:
        if now_s < self._publish_s:
            return
        self._publish_s = now_s + PUBLISH_S
        for name, pair in self._pairs.items():
            if pair.said is not None and now_s - pair.said_s > REPUBLISH_S:
                pair.dirty, pair.said = True, []
            if not pair.dirty or pair.gone_s is not None or not pair.flows:
                continue
            if now_s < pair.again_s and not pair.moved:
                continue
            rows = self._rows(name, pair)
            whole = len(rows) == len(pair.flows) and all(row["complete"] for row in rows)
            if not rows or (not whole and pair.said is None and now_s - pair.first_s < SETTLE_S):
                continue
            if len(rows) < len(pair.flows) and now_s - pair.first_s < SETTLE_S:
                continue
            pair.dirty = pair.moved = False
            if pair.said is not None and _content(rows) == _content(pair.said):
                continue
            pair.said, pair.said_s = rows, now_s + self._random.uniform(0, REPUBLISH_S / 4)
            pair.again_s = now_s + ADD_S
            record = {
                "nic": self.nic,
                "peer": name,
                "shard": self.shard,
                "run": self.engine.run_id,
                "traced_ns": time.time_ns(),
                "paths": rows,
            }
            self._put(PATHS.name, f"{self.nic}>{name}", codec.encode(PATHS.record, record, self._registry))

    def _rows(self, name: str, pair: _Pair) -> list[Record]:
        """Return the elements of the pair's record: those of its paths that were traced."""
        rows = []
        for leg, port in sorted(pair.flows):
            known = pair.known.get((leg, port))
            if known is None:
                continue
            named: NamedPath = name_path(
                self.nic,
                name,
                known.hops,
                known.reached,
                path=port,
                peer_first_hop=pair.first_hop,
                topology=self.source.topology,
                link_prefix=self.settings.link_prefix,
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

    def _check_file(self, now_s: float) -> None:
        """Take the topology file anew where it changed; one that cannot be used changes nothing."""
        if now_s < self._file_due_s:
            return
        self._file_due_s = now_s + FILE_CHECK_S
        try:
            if not self.source.refresh():
                return
        except TopologyError as error:
            _log.error("%s: %s; what it said before stays", self.nic, error)
            return
        self._links.clear()
        for pair in self._pairs.values():
            pair.dirty = True

    # ---- which ports

    def _candidate_ports(self) -> range:
        first = self.settings.first_path_port
        return (
            range(first, first + max(self.settings.paths, self.settings.path_candidates))
            if first
            else range(0)
        )

    def _see_to_search(self, peers: frozenset[str], now_s: float) -> None:
        """Look for better ports once the peers stand, and when they or their paths change, now and then."""
        settings = self.settings
        if self._open_candidates is None or not settings.trace or settings.path_candidates <= settings.paths:
            return
        if peers != self._peers:
            self._peers = peers
            self._search_due_s = now_s + SEARCH_AFTER_S
        if self._search is not None or self._search_due_s is None or not peers:
            return
        if now_s < max(self._search_due_s, self._searched_s + SEARCH_REST_S):
            return
        self._search_due_s, self._searched_s = None, now_s
        self._candidates.clear()
        self._begin_search(now_s)

    def _begin_search(self, now_s: float, peers: Set[str] | None = None) -> None:
        """Trace the candidate ports; to some peers: for flows' ways alone, nothing is chosen by it."""
        settings = self.settings
        if self._open_candidates is None or settings.path_candidates <= settings.paths:
            return
        targets = {
            peer.nic: (peer.address, peer.port)
            for peer in self.engine.peers
            if peers is None or peer.nic in peers
        }
        if settings.first_path_port:
            ports = [port for port in self._candidate_ports() if port not in self.engine.all_ports]
        else:
            ports = [0] * (settings.path_candidates - settings.paths)
        try:
            sockets = self._open_candidates(ports)
        except OSError as error:
            _log.warning("%s: no sockets to look for better ports: %s", self.nic, error)
            return
        self._search = _Search(self.engine, self.address, sockets, targets, self.settings, self._random)
        self._search.whole = peers is None

    def _named(self, peers: Set[str]) -> dict[int, dict[str, tuple[str, ...]]]:
        """Return port to peer to links, of the candidates and of the spare paths as they are now."""
        hops = {port: dict(of) for port, of in self._candidates.items()}
        for name in peers:
            pair = self._pairs.get(name)
            for (leg, port), known in pair.known.items() if pair is not None else ():
                if leg == "REQUEST" and known.reached and any(known.hops):
                    hops.setdefault(port, {})[name] = known.hops
        found: dict[int, dict[str, tuple[str, ...]]] = {}
        for port, of in hops.items():
            for name in peers & of.keys():
                links = self._links_by(name, port, of[name])
                if links:
                    found.setdefault(port, {})[name] = links
        return found

    def _links_by(self, name: str, port: int, hops: tuple[str | None, ...]) -> tuple[str, ...]:
        """Return the links of hops to a peer; empty where they do not name all."""
        pair = self._pairs.get(name)
        key = (name, port, None if pair is None else pair.first_hop, hops)
        links = self._links.get(key)
        if links is None:
            if len(self._links) >= LINKS_MOST:
                self._links.clear()
            named = name_path(
                self.nic,
                name,
                hops,
                True,
                path=port,
                peer_first_hop=key[2],
                topology=self.source.topology,
                link_prefix=self.settings.link_prefix,
            )
            links = self._links[key] = named.links if named.complete else ()
        return links

    def _put_spare(self, at: int, port: int) -> bool:
        """Let a spare path probe from a port; return whether it can be had."""
        if self._open_candidates is None:
            return False
        try:
            opened = self._open_candidates([port])
        except OSError as error:
            _log.warning("%s: no socket for port %d: %s", self.nic, port, error)
            return False
        if not opened:
            return False
        self.engine.set_path(at, opened[0])
        self._survey_s = 0.0
        return True

    def _choose(self, search: _Search, now_s: float) -> None:
        current = list(self.engine.path_ports)
        ways = {port: dict(found) for port, found in search.ways.items()}
        for name, pair in self._pairs.items():
            for (leg, port), known in pair.known.items():
                if leg == "REQUEST" and port in current and known.reached and any(known.hops):
                    ways.setdefault(port, {})[name] = known.hops
        chosen = choose_ports(ways, len(current), current)
        if chosen == current:
            return
        for at, port in enumerate(chosen):
            if port == current[at]:
                continue
            self.engine.set_path(at, search.hand_over(port))
            for name, trace in search.found[port].items():
                found = self._pairs.get(name)
                if found is not None and trace.reached:
                    found.known["REQUEST", port] = KnownRoute(trace.hops, True, time.time_ns())
                    found.due_s["REQUEST", port] = now_s + self._pause_s("REQUEST")
                    found.dirty = True
        self.news = True
        self._survey_s = 0.0
        _log.info("%s: probes from ports %s now, before %s", self.nic, chosen, current)


class _Search:
    """Traces of candidate ports, over sockets of their own."""

    def __init__(
        self,
        engine: Engine,
        address: str,
        sockets: list[socket.socket],
        targets: Mapping[str, tuple[str, int]],
        settings: ProbeSettings,
        rng: random.Random,
    ) -> None:
        self._engine, self._address = engine, address
        self._sockets: dict[int, socket.socket] = {sock.getsockname()[1]: sock for sock in sockets}
        self._tracer = Tracer(settings.trace_pps, settings.trace_max_hops, rng.getrandbits(32))
        self.whole = True
        """Whether it is to all peers, so that paths are chosen by it."""
        self.found: dict[int, dict[str, Trace]] = {}
        self._poll = select.poll()
        self._by_fd = {sock.fileno(): port for port, sock in self._sockets.items()}
        for sock in sockets:
            self._poll.register(sock, select.POLLIN)
            six = sock.family == socket.AF_INET6
            sock.setsockopt(*((socket.IPPROTO_IPV6, IPV6_RECVERR) if six else (socket.SOL_IP, IP_RECVERR)), 1)
        for port in self._sockets:
            for name, target in targets.items():
                self._tracer.want(TracedFlow("REQUEST", name, port, target, port))

    @property
    def ways(self) -> dict[int, dict[str, tuple[str | None, ...]]]:
        """Port to peer to hops, of the traces that came through and heard anything."""
        return {
            port: {name: trace.hops for name, trace in of.items() if trace.reached and any(trace.hops)}
            for port, of in self.found.items()
        }

    def tick(self, now_s: float) -> bool:
        """Go on; return whether all is traced."""
        for fd, _ in self._poll.poll(0):
            port = self._by_fd[fd]
            self._read(port, self._sockets[port])
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            flow = packet.flow
            data = self._engine.trace_packet(
                (self._address, flow.port), flow.target, flow.peer, packet.seq, packet.ttl
            )
            send_trace(self._sockets[flow.port], data, packet.ttl, flow.target)
        for trace in traces:
            self.found.setdefault(trace.flow.port, {})[trace.flow.peer] = trace
        return not self._tracer.busy

    def hand_over(self, port: int) -> socket.socket:
        """Return a port's socket, which is the caller's then."""
        return self._sockets.pop(port)

    def close(self) -> None:
        """Close the sockets that nobody took."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _read(self, port: int, sock: socket.socket) -> None:
        own = (self._address, port)
        for flags in (socket.MSG_ERRQUEUE, 0):
            for _ in range(READS_A_TURN):
                try:
                    data, ancillary, _, sender = sock.recvmsg(512, 512, flags | socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError:  # an error of the network, in the queue as well
                    continue
                if not flags:
                    seq = self._engine.traced_seq(data, sender[:2], own)
                    if seq is not None:
                        self._tracer.arrived(seq)
                    continue
                error = error_of(ancillary)
                if error is not None:
                    quoted = int.from_bytes(data[4:8], "big") if len(data) >= 16 else None
                    hit = TraceHit(port, sender[:2], error.hop, error.type, error.code, quoted)
                    _note(self._tracer, port, hit)


def _note(tracer: Tracer, sock: int, hit: TraceHit) -> None:
    """Tell the tracer what came back."""
    if hit.hop is None:
        if hit.seq is not None:
            tracer.arrived(hit.seq)
        return
    six = ":" in hit.hop
    origin = ORIGIN_ICMP6 if six else ORIGIN_ICMP
    if hit.type == TIME_EXCEEDED[origin]:
        if hit.seq is not None:
            tracer.hop(hit.seq, hit.hop)
        else:
            tracer.hop_unquoted(sock, hit.target, hit.hop)
    elif hit.type == UNREACHABLE[origin] and hit.hop == hit.target[0] and hit.seq is not None:
        tracer.arrived(hit.seq)  # the host is there, nobody listens


def _content(rows: Iterable[Record]) -> list[Record]:
    return [{key: value for key, value in row.items() if key != "since_ns"} for row in rows]


def _hops_text(hops: Sequence[str | None], reached: bool) -> str:
    return " ".join(hop or "*" for hop in hops) + ("" if reached else " ...")

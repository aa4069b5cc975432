"""Runs traceroutes as pure logic: decides which packets to send and combines the answers to routes.

Packets with TTL 1, 2, 3 ... are sent at once, paced over all traced flows. Unanswered packets are repeated,
and a hop that never answers is None. One packet with the largest TTL shows whether the path works at all.
Only if it works does the search for the path's length continue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.records import Leg

Hops = tuple[str | None, ...]

FIRST_GUESS_HOPS: Final = 4
"""Number of TTLs that are tried first: the links of a path across a two-tier leaf-spine fabric."""
MAX_TRIES: Final = 3
TIMEOUT_S: Final = 0.25
BURST_PACKETS: Final = 32
SEQ_MASK: Final = 0xFFFFFFFF


class TracedFlow(NamedTuple):
    """The trace packets of one direction, from one of our ports to a port of a peer.

    `socket` selects the sending socket. `max_ttl` above 0 is the largest TTL sent, so that no packet reaches
    the peer. With `uplink_check`, only one packet with that TTL is sent, to verify that the known hop is
    unchanged.
    """

    leg: Leg
    peer: str
    port: int
    target: tuple[str, int]
    socket: int
    max_ttl: int = 0
    uplink_check: bool = False


class Packet(NamedTuple):
    """A trace packet to send, with its TTL and sequence number."""

    flow: TracedFlow
    ttl: int
    seq: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Result of one trace: the address of each hop before the far end, or None for a silent hop.

    `reached`: the trace arrived at the far end. Otherwise the hops end at the last router that answered.
    """

    flow: TracedFlow
    hops: Hops
    reached: bool

    @property
    def is_complete(self) -> bool:
        """Whether the far end was reached and every hop answered."""
        return self.reached and all(self.hops)


@dataclass(slots=True)
class _Attempt:
    tries: int = 0
    due_s: float = 0.0
    queued: bool = False


@dataclass(slots=True)
class _OpenTrace:
    flow: TracedFlow
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    hops: dict[int, str] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    seqs: list[int] = field(default_factory=list)
    one_by_one: bool = False

    def result(self, length: int | None) -> Trace:
        """Return the result of this trace. `length`: lowest TTL with which a packet arrived; None if none."""
        last = max(self.hops, default=0) if length is None else length - 1
        return Trace(self.flow, tuple(self.hops.get(ttl) for ttl in range(1, last + 1)), length is not None)


class Tracer:
    """Runs all traces of one NIC, at most `packets_per_s`. Times are seconds of any steady clock."""

    def __init__(
        self, packets_per_s: float, max_hops: int, seq: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.packets_per_s = packets_per_s
        self.max_hops = max_hops
        self.timeout_s = timeout_s
        self.unmatched = 0
        """Number of answers that match no open trace, or quote too little to identify the packet's TTL."""
        self._seq = seq & SEQ_MASK
        self._open: dict[TracedFlow, _OpenTrace] = {}
        self._waiting: OrderedDict[TracedFlow, None] = OrderedDict()
        self._queue: deque[tuple[TracedFlow, int]] = deque()
        self._by_seq: dict[int, tuple[TracedFlow, int]] = {}
        self._lengths: dict[str, int] = {}
        self._tokens = float(BURST_PACKETS)
        self._now_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether any trace is open or queued."""
        return bool(self._open or self._waiting)

    @property
    def is_tracing_routes(self) -> bool:
        """Whether any trace other than an uplink check is open or queued."""
        return not all(flow.uplink_check for flows in (self._open, self._waiting) for flow in flows)

    def schedule(self, flow: TracedFlow, soon: bool = False) -> None:
        """Queue a trace of `flow`, first in the queue if `soon`; ignore a flow that is pending already."""
        if flow in self._open:
            return
        self._waiting.setdefault(flow)
        if soon:
            self._waiting.move_to_end(flow, last=False)

    def is_pending(self, flow: TracedFlow) -> bool:
        """Return whether a trace of the flow is open or queued."""
        return flow in self._open or flow in self._waiting

    def cancel(self, flow: TracedFlow) -> None:
        """Drop the open and queued traces of a flow."""
        self._close(flow)
        self._waiting.pop(flow, None)

    def step(self, now_s: float) -> tuple[list[Packet], list[Trace]]:
        """Return the packets to send now and the traces that ended."""
        if self._now_s is None:
            self._now_s = now_s
        earned = (now_s - self._now_s) * self.packets_per_s
        self._tokens = min(float(BURST_PACKETS), self._tokens + earned)
        self._now_s = now_s
        results = [self._progress(open_trace, now_s) for open_trace in list(self._open.values())]
        ended = [trace for trace in results if trace is not None]
        for trace in ended:
            self._close(trace.flow)
            if trace.reached and not trace.flow.max_ttl:
                self._lengths[trace.flow.peer] = len(trace.hops) + 1
        while self._waiting and len(self._queue) < BURST_PACKETS:
            self._begin(self._waiting.popitem(last=False)[0])
        return self._packets(now_s), ended

    def on_hop(self, seq: int, address: str) -> None:
        """Process a router's report that the TTL of packet number `seq` expired at `address`."""
        packet = self._by_seq.get(seq)
        trace = self._open.get(packet[0]) if packet is not None else None
        if packet is None or trace is None:
            self.unmatched += 1
        else:
            trace.hops.setdefault(packet[1], address)

    def on_arrival(self, seq: int) -> None:
        """Process the far end's report that it received packet number `seq`."""
        packet = self._by_seq.get(seq)
        trace = self._open.get(packet[0]) if packet is not None else None
        if packet is None or trace is None:
            self.unmatched += 1
        else:
            trace.arrived.add(packet[1])

    def on_unquoted_hop(self, socket: int, target: tuple[str, int], address: str) -> None:
        """Process a router's report that does not identify the packet whose TTL expired.

        The report counts if only one packet can be meant. If not, the TTLs are tried one by one from then on.
        """
        traces = [
            open_trace
            for open_trace in self._open.values()
            if (open_trace.flow.socket, open_trace.flow.target) == (socket, target)
        ]
        unanswered = [
            (trace, ttl)
            for trace in traces
            for ttl, attempt in trace.attempts.items()
            if attempt.due_s > (self._now_s or 0.0) and ttl not in trace.hops and ttl not in trace.arrived
        ]
        if len(unanswered) == 1:
            trace, ttl = unanswered[0]
            trace.hops[ttl] = address
            return
        for open_trace in traces:
            open_trace.one_by_one = True
        self.unmatched += 1

    def _packets(self, now_s: float) -> list[Packet]:
        packets = []
        while self._queue and self._tokens >= 1:
            flow, ttl = self._queue.popleft()
            trace = self._open.get(flow)
            if trace is None:
                continue
            self._tokens -= 1
            attempt = trace.attempts[ttl]
            attempt.queued = False
            attempt.tries += 1
            attempt.due_s = now_s + self.timeout_s
            self._seq = (self._seq + 1) & SEQ_MASK
            self._by_seq[self._seq] = (flow, ttl)
            trace.seqs.append(self._seq)
            packets.append(Packet(flow, ttl, self._seq))
        return packets

    def _close(self, flow: TracedFlow) -> None:
        trace = self._open.pop(flow, None)
        for seq in trace.seqs if trace is not None else ():
            self._by_seq.pop(seq, None)

    def _begin(self, flow: TracedFlow) -> None:
        trace = self._open[flow] = _OpenTrace(flow)
        if flow.max_ttl:
            for ttl in range(flow.max_ttl if flow.uplink_check else 1, flow.max_ttl + 1):
                self._enqueue(trace, ttl)
            return
        guess = min(self._lengths.get(flow.peer, FIRST_GUESS_HOPS), self.max_hops)
        for ttl in [*range(1, guess + 1), *([self.max_hops] if guess < self.max_hops else [])]:
            self._enqueue(trace, ttl)

    def _enqueue(self, trace: _OpenTrace, ttl: int) -> None:
        attempt = trace.attempts.setdefault(ttl, _Attempt())
        attempt.queued = True
        self._queue.append((trace.flow, ttl))

    def _progress(self, trace: _OpenTrace, now_s: float) -> Trace | None:
        """Return the result of a complete trace; otherwise queue the packets that are due and return None."""
        length = min(trace.arrived, default=None)
        needed = range(1, length) if length is not None else sorted(trace.attempts)
        max_tries = 1 if trace.flow.uplink_check else MAX_TRIES
        waiting = False
        for ttl in needed:
            attempt = trace.attempts.get(ttl)
            if attempt is None:
                self._enqueue(trace, ttl)
                waiting = True
            elif ttl in trace.hops or ttl in trace.arrived:
                continue
            elif attempt.queued or attempt.due_s > now_s:
                waiting = True
            elif attempt.tries < max_tries and not (trace.one_by_one and waiting):
                self._enqueue(trace, ttl)
                waiting = True
        return None if waiting else trace.result(length)

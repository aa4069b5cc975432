"""Traces as pure logic: which trace packets to send now, and what the answers say of a path.

In: flows to trace, answers of hops and far ends, a time. Out: packets to send, and one `Trace` a flow.
Packets with TTL 1, 2, 3 ... go at once, paced over all flows; what stays unanswered is sent again, and a hop
that never answers is None. One packet with the largest TTL tells whether anything gets through: only then is
the length of the path looked for any further. `KnownRoute` holds what is believed of one path over several traces.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

__all__ = ["TracedFlow", "KnownRoute", "Packet", "Trace", "Tracer"]

Leg = Literal["REQUEST", "ANSWER"]

FIRST_GUESS: Final = 4
"""Links of a path across a leaf-spine fabric of two tiers: as many TTLs are tried first."""
TRIES: Final = 3
TIMEOUT_S: Final = 0.25
BURST: Final = 32
SEQ_MASK: Final = 0xFFFFFFFF
SILENT_ROUNDS: Final = 3
"""Traces in a row in which a hop that once answered is silent, on a path that works, before it counts as
unknown."""


class TracedFlow(NamedTuple):
    """Packets that go one way: from one of our ports to one of a peer's. `socket`: which of our sockets
    sends. `most`: TTL above which no packet is sent, so that none comes to the peer; 0: as far as it goes.
    `look`: that TTL alone, and once: whether the hop there is still the one that is known."""

    leg: Leg
    peer: str
    port: int
    target: tuple[str, int]
    socket: int
    most: int = 0
    look: bool = False


class Packet(NamedTuple):
    """A trace packet to send."""

    flow: TracedFlow
    ttl: int
    seq: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one trace of a flow found: a hop's address for each TTL before the far end, None for a silent one.

    `reached`: the packet came to the far end, after the last hop. Else the hops end where nothing more was
    heard.
    """

    flow: TracedFlow
    hops: tuple[str | None, ...]
    reached: bool


@dataclass(slots=True)
class _Try:
    tries: int = 0
    due_s: float = 0.0
    queued: bool = False


@dataclass(slots=True)
class _Open:
    """A trace under way."""

    flow: TracedFlow
    tried: dict[int, _Try] = field(default_factory=dict)
    hops: dict[int, str] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    seqs: list[int] = field(default_factory=list)
    one_by_one: bool = False


class Tracer:
    """All traces of one NIC. `packets_per_s` paces them; times are seconds of any steady clock."""

    def __init__(
        self, packets_per_s: float, max_hops: int, seq: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.packets_per_s = packets_per_s
        self.max_hops = max_hops
        self.timeout_s = timeout_s
        self.unmatched = 0
        """Answers that belong to no trace under way, or quote too little to tell to which TTL."""
        self._seq = seq & SEQ_MASK
        self._open: dict[TracedFlow, _Open] = {}
        self._wanted: OrderedDict[TracedFlow, None] = OrderedDict()
        self._queue: deque[tuple[TracedFlow, int]] = deque()
        self._by_seq: dict[int, tuple[TracedFlow, int]] = {}
        self._lengths: dict[str, int] = {}
        self._tokens = float(BURST)
        self._at_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether any trace is under way or waits."""
        return bool(self._open or self._wanted)

    def want(self, flow: TracedFlow, soon: bool = False) -> None:
        """Trace a flow once, before all others with `soon`; one that waits or is under way is not doubled."""
        if flow in self._open:
            return
        self._wanted.setdefault(flow)
        if soon:
            self._wanted.move_to_end(flow, last=False)

    def wants(self, flow: TracedFlow) -> bool:
        """Return whether a trace of a flow waits or is under way."""
        return flow in self._open or flow in self._wanted

    def forget(self, flow: TracedFlow) -> None:
        """Trace it no more."""
        self._close(flow)
        self._wanted.pop(flow, None)

    def step(self, now_s: float) -> tuple[list[Packet], list[Trace]]:
        """Return the packets to send now, and the traces that ended."""
        if self._at_s is None:
            self._at_s = now_s
        self._tokens = min(float(BURST), self._tokens + (now_s - self._at_s) * self.packets_per_s)
        self._at_s = now_s
        ended = [
            trace for each in list(self._open.values()) if (trace := self._look(each, now_s)) is not None
        ]
        for trace in ended:
            self._close(trace.flow)
            if trace.reached and not trace.flow.most:
                self._lengths[trace.flow.peer] = len(trace.hops) + 1
        while self._wanted and len(self._queue) < BURST:
            self._begin(self._wanted.popitem(last=False)[0])
        packets = []
        while self._queue and self._tokens >= 1:
            flow, ttl = self._queue.popleft()
            each = self._open.get(flow)
            if each is None:
                continue
            self._tokens -= 1
            attempt = each.tried[ttl]
            attempt.queued = False
            attempt.tries += 1
            attempt.due_s = now_s + self.timeout_s
            self._seq = (self._seq + 1) & SEQ_MASK
            self._by_seq[self._seq] = (flow, ttl)
            each.seqs.append(self._seq)
            packets.append(Packet(flow, ttl, self._seq))
        return packets, ended

    def _close(self, flow: TracedFlow) -> None:
        each = self._open.pop(flow, None)
        for seq in each.seqs if each is not None else ():
            self._by_seq.pop(seq, None)

    def _begin(self, flow: TracedFlow) -> None:
        each = self._open[flow] = _Open(flow)
        if flow.most:
            for ttl in range(flow.most if flow.look else 1, flow.most + 1):
                self._ask(each, ttl)
            return
        guess = min(self._lengths.get(flow.peer, FIRST_GUESS), self.max_hops)
        for ttl in [*range(1, guess + 1), *([self.max_hops] if guess < self.max_hops else [])]:
            self._ask(each, ttl)

    def _ask(self, each: _Open, ttl: int) -> None:
        attempt = each.tried.setdefault(ttl, _Try())
        attempt.queued = True
        self._queue.append((each.flow, ttl))

    def _look(self, each: _Open, now_s: float) -> Trace | None:
        """Return the trace where it is at its end; else see to what is due."""
        length = min(each.arrived, default=None)
        needed = range(1, length) if length is not None else sorted(each.tried)
        waiting = False
        for ttl in needed:
            attempt = each.tried.get(ttl)
            if attempt is None:
                self._ask(each, ttl)
                waiting = True
            elif ttl in each.hops or ttl in each.arrived:
                continue
            elif attempt.queued or attempt.due_s > now_s:
                waiting = True
            elif attempt.tries < (1 if each.flow.look else TRIES) and not (each.one_by_one and waiting):
                self._ask(each, ttl)
                waiting = True
        if waiting:
            return None
        if length is None:
            heard = max(each.hops, default=0)
            return Trace(each.flow, tuple(each.hops.get(ttl) for ttl in range(1, heard + 1)), False)
        return Trace(each.flow, tuple(each.hops.get(ttl) for ttl in range(1, length)), True)

    def hop(self, seq: int, address: str) -> None:
        """Take a hop's word that a packet's TTL ended there."""
        found = self._by_seq.get(seq)
        each = self._open.get(found[0]) if found is not None else None
        if found is None or each is None:
            self.unmatched += 1
        else:
            each.hops.setdefault(found[1], address)

    def arrived(self, seq: int) -> None:
        """Take the far end's word that a packet came."""
        found = self._by_seq.get(seq)
        each = self._open.get(found[0]) if found is not None else None
        if found is None or each is None:
            self.unmatched += 1
        else:
            each.arrived.add(found[1])

    def hop_unquoted(self, socket: int, target: tuple[str, int], address: str) -> None:
        """Take a hop's word about one of our packets that does not say which: it counts where only one can be
        meant, and TTLs are tried one by one from then on."""
        here = [
            each for each in self._open.values() if (each.flow.socket, each.flow.target) == (socket, target)
        ]
        waiting = [
            (each, ttl)
            for each in here
            for ttl, attempt in each.tried.items()
            if attempt.due_s > (self._at_s or 0.0) and ttl not in each.hops and ttl not in each.arrived
        ]
        if len(waiting) == 1:
            each, ttl = waiting[0]
            each.hops[ttl] = address
            return
        for each in here:
            each.one_by_one = True
        self.unmatched += 1


@dataclass(slots=True)
class KnownRoute:
    """What is believed of one path over its traces. A change is believed once two traces in a row agree."""

    hops: tuple[str | None, ...]
    reached: bool
    since_ns: int
    changes: int = 0
    doubted: tuple[tuple[str | None, ...], bool] | None = None
    silent: int = 0

    def take(self, trace: Trace, now_ns: int, expected: bool = False) -> bool:
        """Take a new trace; return whether the path should be traced again at once, to be sure. `expected`:
        other paths tell that it moved; then one whole trace is enough."""
        if self._agrees(trace):
            self.doubted = None
            self._refine(trace)
            return False
        seen = (trace.hops, trace.reached)
        sure = expected and trace.reached and all(trace.hops)
        if not sure and (self.doubted is None or not _same(self.doubted, seen)):
            self.doubted = seen
            return True
        self.doubted = None
        self.changes += 1
        self.hops, self.reached, self.since_ns, self.silent = trace.hops, trace.reached, now_ns, 0
        return False

    def other_than(self, hops: tuple[str | None, ...]) -> bool:
        """Whether hops, as far as they go, are not the ones that are known."""
        return any(a != b for a, b in zip(self.hops, hops, strict=False) if a is not None and b is not None)

    def _agrees(self, trace: Trace) -> bool:
        """Whether a trace says nothing else than what is known. A path that leads nowhere now may be the
        known one, cut: it stays what it was, so that what broke can be found on it."""
        if self.other_than(trace.hops):
            return False
        if trace.reached:
            return not self.reached or len(trace.hops) == len(self.hops)
        return not self.reached or len(trace.hops) <= len(self.hops)

    def _refine(self, trace: Trace) -> None:
        """Put in what was silent before. A hop that falls silent on a path that works is unknown after some
        traces, for it may be another one."""
        if not trace.reached:
            if not self.reached and len(trace.hops) > len(self.hops):
                self.hops += trace.hops[len(self.hops) :]
            return
        if not self.reached:
            self.hops, self.reached = trace.hops, True
            return
        merged = tuple(a if a is not None else b for a, b in zip(self.hops, trace.hops, strict=True))
        lost = any(a is not None and b is None for a, b in zip(self.hops, trace.hops, strict=True))
        self.silent = self.silent + 1 if lost else 0
        if self.silent >= SILENT_ROUNDS:
            merged, self.silent = trace.hops, 0
        self.hops = merged


def _same(a: tuple[tuple[str | None, ...], bool], b: tuple[tuple[str | None, ...], bool]) -> bool:
    """Whether two traces say the same where both say anything."""
    return (
        a[1] == b[1]
        and len(a[0]) == len(b[0])
        and all(x is None or y is None or x == y for x, y in zip(a[0], b[0], strict=True))
    )

"""A prober on UD queue pairs without the queue pairs: who is asked when, what comes of it, what is answered.

In: peers, times, packets with where they came from and their stamps. Out: packets to send, and samples with
losses by peer and path, as `ProbeBatch` has them. Knows no verbs and reads no clock.

    prober                          responder
      | t1 --------- request -------> t2 |    all of one length
      | t4 <--------- reply --------- t3 |    carries t2, and t3 where user space stamps; else, later:
      | ------------ collect ----------> |
      | <----------- follow-up --------- |    carries t2 and t3

A reply goes from the queue pair that the request came to, so that its path back is that pair's own.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.probe.rdma.gids import UdPath
from producers.probe.rdma.packets import (
    COLLECT,
    FOLLOW_UP,
    NO_STAMP,
    REPLY,
    REQUEST,
    Address,
    BadPacket,
    Packet,
    name_hash,
    pack,
    parse,
)

__all__ = ["UdProber", "UdProberSettings", "Group", "Outgoing", "UdPeer"]

_MOST_OPEN: Final = 65_536
_MOST_TICKETS: Final = 65_536
_MOST_SAMPLES: Final = 200_000
_COLLECT_NS: Final = 5_000_000
_COLLECTS: Final = 3
_STALE_GAPS: Final = 10
_BURST: Final = 64
_TOOK: Final = 1000
_SOUND_NS: Final = 1 << 62
_TURNAROUND_NS: Final = 10_000_000_000


class UdProberSettings(NamedTuple):
    """How a prober asks and answers."""

    rate_pps: float
    timeout_ns: int
    answer_max_pps: float
    max_age_ns: int
    hardware: bool
    """Whether the NIC stamps: what is sent then has its stamp later, by `stamped`."""


class UdPeer(NamedTuple):
    """Who is asked: its queue pairs, one a path."""

    nic: str
    gid: bytes
    lid: int
    path_bits: int
    numbers: tuple[int, ...]


@dataclass
class Outgoing:
    """A packet to be sent from our queue pair of path `path`. `token` names it to `stamped`."""

    path: int
    to: Address
    path_bits: int
    """Of the target's port: InfiniBand's LIDs beside its first."""
    packet: Packet
    token: object = None


@dataclass
class Group:
    """Samples of one peer and path since the last drain, ns; `sent` is absolute."""

    lost: int = 0
    no_t3: int = 0
    sent: list[int] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    turnaround: list[int] = field(default_factory=list)
    reverse: list[int] = field(default_factory=list)


class _Probe:
    __slots__ = ("deadline_ns", "path", "peer", "replied", "seq", "source", "t1", "t2", "t3", "t4", "tries")

    def __init__(self, seq: int, peer: UdPeer, path: UdPath, source: Address, deadline_ns: int) -> None:
        self.seq, self.peer, self.path, self.source, self.deadline_ns = seq, peer, path, source, deadline_ns
        self.t1 = self.t2 = self.t3 = self.t4 = NO_STAMP
        self.replied, self.tries = False, 0


class _Ticket:
    __slots__ = ("t2", "t3")

    def __init__(self, t2: int) -> None:
        self.t2, self.t3 = t2, NO_STAMP


class UdProber:
    """Times called `now_ns` are of the monotonic clock; stamps are of whatever clock stamps."""

    def __init__(
        self,
        nic: str,
        run: int,
        key: bytes,
        own: Sequence[tuple[UdPath, Address]],
        settings: UdProberSettings,
        seed: int,
        now_ns: int,
    ) -> None:
        """`own`: our paths, with the queue pair of each."""
        self._key, self._settings, self._run = key, settings, run
        self._hash = name_hash(nic)
        self._own = list(own)
        self._random = random.Random(seed)  # noqa: S311  # when to look, not a secret
        self._seq = self._random.getrandbits(32)
        self._peers: list[UdPeer] = []
        self._round: list[tuple[UdPeer, int]] = []
        self._open: OrderedDict[int, _Probe] = OrderedDict()
        """Requests without a reply, oldest first."""
        self._replied: dict[int, _Probe] = {}
        self._collects: deque[tuple[int, int]] = deque()
        self._tickets: OrderedDict[tuple[bytes, int, int, int], _Ticket] = OrderedDict()
        self._groups: dict[tuple[str, int], Group] = {}
        self._samples = 0
        self._next_shot_ns = now_ns
        self._answers, self._answers_at_ns = float(_BURST), now_ns
        self._took_ns: deque[int] = deque(maxlen=_TOOK)
        self.counters: Counter[str] = Counter()

    def set_peers(self, peers: Sequence[UdPeer], now_ns: int) -> None:
        """Ask these from now on. What is under way to others is forgotten, not lost."""
        kept = set(peers)
        for held in (self._open, self._replied):
            for seq in [seq for seq, probe in held.items() if probe.peer not in kept]:
                del held[seq]
        if not self._peers:
            self._next_shot_ns = now_ns + self._gap_ns()
        self._peers, self._round = [peer for peer in peers if peer.numbers], []

    def next_ns(self) -> int | None:
        """Return when `due` has something to do; None: when something has come."""
        times = [self._next_shot_ns] if self._peers else []
        if self._open:
            times.append(next(iter(self._open.values())).deadline_ns)
        if self._collects:
            times.append(self._collects[0][0])
        return min(times, default=None)

    def due(self, now_ns: int, system_ns: int) -> list[Outgoing]:
        """Return what is to be sent now, and count as lost what waited too long: to be called only after all
        that has come was taken."""
        found = self._expire(now_ns, system_ns)
        gap_ns = 1e9 / self._settings.rate_pps
        if self._peers and now_ns - self._next_shot_ns > _STALE_GAPS * gap_ns + 1e7:
            self.counters["missed_timers"] += int((now_ns - self._next_shot_ns) / gap_ns)
            self._next_shot_ns = now_ns
        while self._peers and self._next_shot_ns <= now_ns:
            self._next_shot_ns += self._gap_ns()
            if len(self._open) >= _MOST_OPEN:
                self.counters["table_full"] += 1
                continue
            found.append(self._shoot(now_ns, system_ns))
        return found

    def pack(self, out: Outgoing, stamp_ns: int) -> bytes:
        """Return the bytes of a packet that is sent right now: `stamp_ns` is t1, or goes into a reply as t3,
        where user space stamps."""
        packet = out.packet
        if not self._settings.hardware:
            if packet.kind == REQUEST and isinstance(out.token, _Probe):
                out.token.t1 = stamp_ns
            elif packet.kind == REPLY:
                packet = packet._replace(second=stamp_ns)
        if packet.kind == REQUEST:
            self.counters["requests_sent"] += 1
        return pack(packet, self._key, self._own[out.path][1], out.to)

    def unsent(self, out: Outgoing) -> None:
        """Note that a packet could not be sent: the path is not to blame."""
        self.counters["send_errors"] += 1
        if isinstance(out.token, _Probe):
            self._open.pop(out.token.seq, None)

    def stamped(self, token: object, stamp_ns: int) -> None:
        """Take the NIC's stamp of a packet that was sent; where user space stamps: when it heard of that."""
        if not self._settings.hardware:
            if isinstance(token, _Probe):
                self._took_ns.append(stamp_ns - token.t1)
        elif isinstance(token, _Probe):
            token.t1 = stamp_ns
            self._try(token)
        elif isinstance(token, _Ticket):
            token.t3 = stamp_ns

    def take(
        self, path: int, data: bytes, source: Address, stamp_ns: int, now_ns: int, system_ns: int
    ) -> Outgoing | None:
        """Take a packet that came to our queue pair of path `path`; return what answers it."""
        try:
            packet = parse(data, self._key, source, self._own[path][1])
        except BadPacket as bad:
            self.counters[bad.reason] += 1
            return None
        if packet.kind in (REQUEST, COLLECT):
            return self._answer(path, packet, source, stamp_ns, now_ns, system_ns)
        if packet.run != self._run:
            self.counters["stale_run"] += 1
        elif packet.kind == REPLY:
            self._reply(packet, source, stamp_ns, now_ns)
        else:
            self._follow_up(packet, source)
        return None

    @property
    def stamp_error_ns(self) -> int:
        """What user space takes at least from a request's stamp until it hears of its sending: its stamps are
        no further than that from the wire in the best of cases, which are those that clocks go by."""
        return max(0, min(self._took_ns, default=0))

    def drain(self) -> dict[tuple[str, int], Group]:
        """Return the samples and losses since the last call by (peer, path's entropy value)."""
        found, self._groups, self._samples = self._groups, {}, 0
        return found

    def _shoot(self, now_ns: int, system_ns: int) -> Outgoing:
        if not self._round:
            self._round = [(peer, index) for peer in self._peers for index in range(len(self._own))]
            self._random.shuffle(self._round)
        peer, index = self._round.pop()
        path = self._own[index][0]
        self._seq = (self._seq + 1) % (1 << 32)
        to = Address(peer.gid, peer.lid, peer.numbers[index % len(peer.numbers)])
        probe = _Probe(self._seq, peer, path, to, now_ns + self._settings.timeout_ns)
        self._open[probe.seq] = probe
        packet = Packet(REQUEST, probe.seq, self._run, name_hash(peer.nic), system_ns, 0)
        return Outgoing(index, to, peer.path_bits, packet, probe)

    def _answer(
        self, path: int, packet: Packet, source: Address, stamp_ns: int, now_ns: int, system_ns: int
    ) -> Outgoing | None:
        if packet.asked != self._hash:
            self.counters["wrong_nic"] += 1
            return None
        if abs(packet.first - system_ns) > self._settings.max_age_ns:
            self.counters["stale_time"] += 1
            return None
        if not self._may_answer(now_ns):
            self.counters["answers_capped"] += 1
            return None
        name = (source.gid, source.number, packet.run, packet.seq)
        if packet.kind == COLLECT:
            ticket = self._tickets.get(name)
            if ticket is None or ticket.t3 == NO_STAMP:
                self.counters["unknown_tickets"] += 1
                return None
            self.counters["followups_sent"] += 1
            return Outgoing(
                path, source, 0, packet._replace(kind=FOLLOW_UP, first=ticket.t2, second=ticket.t3)
            )
        self.counters["replies_sent"] += 1
        answer = Outgoing(path, source, 0, packet._replace(kind=REPLY, first=stamp_ns, second=NO_STAMP))
        if self._settings.hardware:
            answer.token = self._tickets[name] = _Ticket(stamp_ns)
            if len(self._tickets) > _MOST_TICKETS:
                self._tickets.popitem(last=False)
        return answer

    def _may_answer(self, now_ns: int) -> bool:
        allowed = (now_ns - self._answers_at_ns) * 1e-9 * self._settings.answer_max_pps
        self._answers = min(self._answers + allowed, float(_BURST))
        self._answers_at_ns = now_ns
        if self._answers < 1:
            return False
        self._answers -= 1
        return True

    def _reply(self, packet: Packet, source: Address, stamp_ns: int, now_ns: int) -> None:
        probe = self._open.get(packet.seq)
        if probe is None or source.gid != probe.source.gid or source.number != probe.source.number:
            self.counters["late"] += 1  # or once more: both are none
            return
        del self._open[packet.seq]
        self.counters["replies_received"] += 1
        probe.replied, probe.t2, probe.t3, probe.t4 = True, packet.first, packet.second, stamp_ns
        self._replied[probe.seq] = probe
        self._try(probe)
        if probe.seq in self._replied:
            self._collects.append((now_ns + _COLLECT_NS, probe.seq))

    def _follow_up(self, packet: Packet, source: Address) -> None:
        probe = self._replied.get(packet.seq)
        if probe is None or source.gid != probe.source.gid or source.number != probe.source.number:
            self.counters["late"] += 1
            return
        probe.t2, probe.t3 = packet.first, packet.second
        self._try(probe)

    def _try(self, probe: _Probe) -> None:
        """Make a sample of a probe that has all its stamps."""
        if not probe.replied or NO_STAMP in (probe.t1, probe.t2, probe.t3, probe.t4):
            return
        if self._replied.pop(probe.seq, None) is None:
            return
        group = self._group(probe)
        t1, t2, t3, t4 = probe.t1, probe.t2, probe.t3, probe.t4
        sound = max(abs(t1), abs(t2), abs(t3), abs(t4)) < _SOUND_NS and 0 <= t3 - t2 <= _TURNAROUND_NS
        if not sound:
            group.no_t3 += 1
            self.counters["unsound_stamps"] += 1
            return
        if self._samples >= _MOST_SAMPLES:
            self.counters["overflow_samples"] += 1
            return
        self._samples += 1
        self.counters["samples"] += 1
        group.sent.append(t1)
        group.forward.append(t2 - t1)
        group.turnaround.append(t3 - t2)
        group.reverse.append(t4 - t3)

    def _expire(self, now_ns: int, system_ns: int) -> list[Outgoing]:
        while self._open:
            probe = next(iter(self._open.values()))
            if probe.deadline_ns > now_ns:
                break
            del self._open[probe.seq]
            if probe.t1 == NO_STAMP:
                self.counters["no_t1"] += 1  # never left the host: no loss of the path
                continue
            self.counters["lost"] += 1
            self._group(probe).lost += 1
        found = []
        while self._collects and self._collects[0][0] <= now_ns:
            _, seq = self._collects.popleft()
            waiting = self._replied.get(seq)
            if waiting is None:
                continue
            if waiting.tries == _COLLECTS:
                del self._replied[seq]
                self.counters["no_t3"] += 1
                self._group(waiting).no_t3 += 1
                continue
            waiting.tries += 1
            self._collects.append((now_ns + _COLLECT_NS, seq))
            if waiting.t3 != NO_STAMP:
                continue  # it is our own t1 that is missing
            self.counters["collects_sent"] += 1
            packet = Packet(COLLECT, seq, self._run, name_hash(waiting.peer.nic), system_ns, 0)
            found.append(Outgoing(waiting.path.index, waiting.source, waiting.peer.path_bits, packet))
        return found

    def _group(self, probe: _Probe) -> Group:
        return self._groups.setdefault((probe.peer.nic, probe.path.value), Group())

    def _gap_ns(self) -> int:
        return int(self._random.expovariate(self._settings.rate_pps) * 1e9)

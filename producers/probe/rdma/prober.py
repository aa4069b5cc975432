"""Contains the logic of a prober on UD queue pairs: it sends requests, matches and sends answers.

It uses no verbs and reads no clock. The results are samples and losses by peer and path, as in `ProbeBatch`.

    prober                          responder
      | t1 --------- request -------> t2 |    all of one length
      | t4 <--------- reply --------- t3 |    carries t2, and t3 with user-space timestamps; else, later:
      | ------------ collect ----------> |
      | <----------- follow-up --------- |    carries t2 and t3

A reply is sent from the queue pair that received the request, so its path back is that of this queue pair.
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

_MAX_OPEN: Final = 65_536
_MAX_TICKETS: Final = 65_536
_MAX_SAMPLES: Final = 200_000
_COLLECT_NS: Final = 5_000_000
_COLLECTS: Final = 3
_STALE_GAPS: Final = 10
_BURST: Final = 64
_TOOK: Final = 1000
_MAX_PLAUSIBLE_NS: Final = 1 << 62
_TURNAROUND_NS: Final = 10_000_000_000
_CE: Final = 3
"""Value of the ECN field of a marked packet, and mask of that field."""


class UdProberSettings(NamedTuple):
    """Rates and limits of a prober on UD queue pairs."""

    rate_pps: float
    timeout_ns: int
    answer_max_pps: float
    max_age_ns: int
    hardware: bool
    """True if the NIC sets timestamps. That of a sent packet is then passed to `on_timestamp` later."""


class UdPeer(NamedTuple):
    """A peer NIC with the addresses of its queue pairs, one per path."""

    nic: str
    gid: bytes
    lid: int
    path_bits: int
    numbers: tuple[int, ...]


@dataclass
class OutgoingPacket:
    """A packet to send from our queue pair of path `path`. `token` identifies it for `on_timestamp`."""

    path: int
    to: Address
    path_bits: int
    """Number of low LID bits that can be chosen freely at the target's InfiniBand port."""
    packet: Packet
    token: object = None


@dataclass(slots=True)
class PathSamples:
    """Samples of a peer and path since the last drain, ns. `sent` is a time; other lists hold durations.

    `ecn` counts samples that arrived ECN-capable in both directions. `forward_ce` and `reverse_ce` hold the
    indices of the samples marked CE in the direction of that name.
    """

    lost: int = 0
    no_t3: int = 0
    sent: list[int] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    turnaround: list[int] = field(default_factory=list)
    reverse: list[int] = field(default_factory=list)
    ecn: int = 0
    forward_ce: list[int] = field(default_factory=list)
    reverse_ce: list[int] = field(default_factory=list)


class _Probe:
    __slots__ = (
        "arrived",
        "deadline_ns",
        "path",
        "peer",
        "replied",
        "seq",
        "source",
        "t1",
        "t2",
        "t3",
        "t4",
        "tries",
    )

    def __init__(self, seq: int, peer: UdPeer, path: UdPath, source: Address, deadline_ns: int) -> None:
        self.seq, self.peer, self.path, self.source, self.deadline_ns = seq, peer, path, source, deadline_ns
        self.t1 = self.t2 = self.t3 = self.t4 = NO_STAMP
        self.replied, self.tries = False, 0
        self.arrived: tuple[int, int] = (0, 0)
        """ECN fields of the request and its reply as they arrived."""


class _FollowUpData:
    __slots__ = ("t2", "t3")

    def __init__(self, t2: int) -> None:
        self.t2, self.t3 = t2, NO_STAMP


class UdProber:
    """Probes from one NIC and answers its peers. `now_ns`: monotonic clock; timestamps are of any clock."""

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
        """Start without peers. `own` holds our paths, each with the address of its queue pair."""
        self._key, self._settings, self._run = key, settings, run
        self._hash = name_hash(nic)
        self._own = list(own)
        self._random = random.Random(seed)  # noqa: S311  # when to look, not a secret
        self._seq = self._random.getrandbits(32)
        self._peers: list[UdPeer] = []
        self._period: list[tuple[UdPeer, int]] = []
        self._open: OrderedDict[int, _Probe] = OrderedDict()
        """Requests without a reply by sequence number, oldest first."""
        self._replied: dict[int, _Probe] = {}
        self._collects: deque[tuple[int, int]] = deque()
        self._tickets: OrderedDict[tuple[bytes, int, int, int], _FollowUpData] = OrderedDict()
        self._groups: dict[tuple[str, int], PathSamples] = {}
        self._samples = 0
        self._next_probe_ns = now_ns
        self._answers, self._answers_at_ns = float(_BURST), now_ns
        self._took_ns: deque[int] = deque(maxlen=_TOOK)
        self.counters: Counter[str] = Counter()

    def set_peers(self, peers: Sequence[UdPeer], now_ns: int) -> None:
        """Replace the peers. Open requests to former peers are dropped and do not count as lost."""
        remaining = set(peers)
        for table in (self._open, self._replied):
            for seq in [seq for seq, probe in table.items() if probe.peer not in remaining]:
                del table[seq]
        if not self._peers:
            self._next_probe_ns = now_ns + self._gap_ns()
        self._peers, self._period = [peer for peer in peers if peer.numbers], []

    def next_ns(self) -> int | None:
        """Return the time at which `poll` must be called, ns; None if not before a packet arrives."""
        times = [self._next_probe_ns] if self._peers else []
        if self._open:
            times.append(next(iter(self._open.values())).deadline_ns)
        if self._collects:
            times.append(self._collects[0][0])
        return min(times, default=None)

    def poll(self, now_ns: int, system_ns: int) -> list[OutgoingPacket]:
        """Return the packets to send now, and count overdue requests as lost.

        Call it only after all arrived packets were passed to `receive`.
        """
        packets = self._expire(now_ns, system_ns)
        gap_ns = 1e9 / self._settings.rate_pps
        if self._peers and now_ns - self._next_probe_ns > _STALE_GAPS * gap_ns + 1e7:
            self.counters["missed_timers"] += int((now_ns - self._next_probe_ns) / gap_ns)
            self._next_probe_ns = now_ns
        while self._peers and self._next_probe_ns <= now_ns:
            self._next_probe_ns += self._gap_ns()
            if len(self._open) >= _MAX_OPEN:
                self.counters["table_full"] += 1
                continue
            packets.append(self._next_probe(now_ns, system_ns))
        return packets

    def pack(self, out: OutgoingPacket, stamp_ns: int) -> bytes:
        """Encode a packet that is about to be sent.

        With user-space timestamps, `stamp_ns` is t1 in a request and t3 in a reply.
        """
        packet = out.packet
        if not self._settings.hardware:
            if packet.kind == REQUEST and isinstance(out.token, _Probe):
                out.token.t1 = stamp_ns
            elif packet.kind == REPLY:
                packet = packet._replace(second=stamp_ns)
        if packet.kind == REQUEST:
            self.counters["requests_sent"] += 1
        return pack(packet, self._key, self._own[out.path][1], out.to)

    def on_unsent(self, out: OutgoingPacket) -> None:
        """Record that a packet could not be sent, so that it does not count as lost on the path."""
        self.counters["send_errors"] += 1
        if isinstance(out.token, _Probe):
            self._open.pop(out.token.seq, None)

    def on_timestamp(self, token: object, stamp_ns: int) -> None:
        """Store a sent packet's timestamp, ns; with user-space timestamps, the time of its completion."""
        if not self._settings.hardware:
            if isinstance(token, _Probe):
                self._took_ns.append(stamp_ns - token.t1)
        elif isinstance(token, _Probe):
            token.t1 = stamp_ns
            self._complete(token)
        elif isinstance(token, _FollowUpData):
            token.t3 = stamp_ns

    def receive(
        self,
        path: int,
        data: bytes,
        source: Address,
        stamp_ns: int,
        now_ns: int,
        system_ns: int,
        arrived: int = 0,
    ) -> OutgoingPacket | None:
        """Process a packet that arrived on path number `path`; return the answer to send, or None.

        `arrived` is the traffic class with which the packet arrived.
        """
        try:
            packet = parse(data, self._key, source, self._own[path][1])
        except BadPacket as bad:
            self.counters[bad.reason] += 1
            return None
        if packet.kind in (REQUEST, COLLECT):
            return self._respond(path, packet._replace(arrived=arrived), source, stamp_ns, now_ns, system_ns)
        if packet.run != self._run:
            self.counters["stale_run"] += 1
        elif packet.kind == REPLY:
            self._reply(packet, source, stamp_ns, now_ns, arrived)
        else:
            self._follow_up(packet, source)
        return None

    @property
    def stamp_error_ns(self) -> int:
        """Smallest recent time from a request's timestamp to its completion in user space, ns.

        It bounds the error of user-space timestamps in the best case, on which clock estimation relies.
        """
        return max(0, min(self._took_ns, default=0))

    def drain(self) -> dict[tuple[str, int], PathSamples]:
        """Return samples and losses since the last call, by (peer, entropy value of the path)."""
        groups, self._groups, self._samples = self._groups, {}, 0
        return groups

    def _next_probe(self, now_ns: int, system_ns: int) -> OutgoingPacket:
        if not self._period:
            self._period = [(peer, index) for peer in self._peers for index in range(len(self._own))]
            self._random.shuffle(self._period)
        peer, index = self._period.pop()
        path = self._own[index][0]
        self._seq = (self._seq + 1) % (1 << 32)
        to = Address(peer.gid, peer.lid, peer.numbers[index % len(peer.numbers)])
        probe = _Probe(self._seq, peer, path, to, now_ns + self._settings.timeout_ns)
        self._open[probe.seq] = probe
        packet = Packet(REQUEST, probe.seq, self._run, name_hash(peer.nic), system_ns, 0)
        return OutgoingPacket(index, to, peer.path_bits, packet, probe)

    def _respond(
        self, path: int, packet: Packet, source: Address, stamp_ns: int, now_ns: int, system_ns: int
    ) -> OutgoingPacket | None:
        if packet.target_hash != self._hash:
            self.counters["wrong_nic"] += 1
            return None
        if abs(packet.first - system_ns) > self._settings.max_age_ns:
            self.counters["stale_time"] += 1
            return None
        if not self._may_respond(now_ns):
            self.counters["answers_capped"] += 1
            return None
        name = (source.gid, source.number, packet.run, packet.seq)
        if packet.kind == COLLECT:
            ticket = self._tickets.get(name)
            if ticket is None or ticket.t3 == NO_STAMP:
                self.counters["unknown_tickets"] += 1
                return None
            self.counters["followups_sent"] += 1
            return OutgoingPacket(
                path,
                source,
                0,
                packet._replace(kind=FOLLOW_UP, first=ticket.t2, second=ticket.t3, arrived=None),
            )
        self.counters["replies_sent"] += 1
        answer = OutgoingPacket(path, source, 0, packet._replace(kind=REPLY, first=stamp_ns, second=NO_STAMP))
        if self._settings.hardware:
            answer.token = self._tickets[name] = _FollowUpData(stamp_ns)
            if len(self._tickets) > _MAX_TICKETS:
                self._tickets.popitem(last=False)
        return answer

    def _may_respond(self, now_ns: int) -> bool:
        allowed = (now_ns - self._answers_at_ns) * 1e-9 * self._settings.answer_max_pps
        self._answers = min(self._answers + allowed, float(_BURST))
        self._answers_at_ns = now_ns
        if self._answers < 1:
            return False
        self._answers -= 1
        return True

    def _reply(self, packet: Packet, source: Address, stamp_ns: int, now_ns: int, arrived: int) -> None:
        probe = self._open.get(packet.seq)
        if probe is None or source.gid != probe.source.gid or source.number != probe.source.number:
            self.counters["late"] += 1  # a late or repeated reply
            return
        del self._open[packet.seq]
        self.counters["replies_received"] += 1
        probe.replied, probe.t2, probe.t3, probe.t4 = True, packet.first, packet.second, stamp_ns
        if packet.arrived is not None:
            probe.arrived = packet.arrived & _CE, arrived & _CE
        self._replied[probe.seq] = probe
        self._complete(probe)
        if probe.seq in self._replied:
            self._collects.append((now_ns + _COLLECT_NS, probe.seq))

    def _follow_up(self, packet: Packet, source: Address) -> None:
        probe = self._replied.get(packet.seq)
        if probe is None or source.gid != probe.source.gid or source.number != probe.source.number:
            self.counters["late"] += 1
            return
        probe.t2, probe.t3 = packet.first, packet.second
        self._complete(probe)

    def _complete(self, probe: _Probe) -> None:
        """Add a probe's sample once all four timestamps are known."""
        if not probe.replied or NO_STAMP in (probe.t1, probe.t2, probe.t3, probe.t4):
            return
        if self._replied.pop(probe.seq, None) is None:
            return
        group = self._group(probe)
        t1, t2, t3, t4 = probe.t1, probe.t2, probe.t3, probe.t4
        is_plausible = (
            max(abs(t1), abs(t2), abs(t3), abs(t4)) < _MAX_PLAUSIBLE_NS and 0 <= t3 - t2 <= _TURNAROUND_NS
        )
        if not is_plausible:
            group.no_t3 += 1
            self.counters["unsound_stamps"] += 1
            return
        if self._samples >= _MAX_SAMPLES:
            self.counters["overflow_samples"] += 1
            return
        self._samples += 1
        self.counters["samples"] += 1
        if all(probe.arrived):
            group.ecn += 1
            for ecn, marked in zip(probe.arrived, (group.forward_ce, group.reverse_ce), strict=True):
                if ecn == _CE:
                    marked.append(len(group.sent))
        group.sent.append(t1)
        group.forward.append(t2 - t1)
        group.turnaround.append(t3 - t2)
        group.reverse.append(t4 - t3)

    def _expire(self, now_ns: int, system_ns: int) -> list[OutgoingPacket]:
        while self._open:
            probe = next(iter(self._open.values()))
            if probe.deadline_ns > now_ns:
                break
            del self._open[probe.seq]
            if probe.t1 == NO_STAMP:
                self.counters["no_t1"] += 1  # it never left the host, so the path lost nothing
                continue
            self.counters["lost"] += 1
            self._group(probe).lost += 1
        packets = []
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
                continue  # our own t1 is missing
            self.counters["collects_sent"] += 1
            packet = Packet(COLLECT, seq, self._run, name_hash(waiting.peer.nic), system_ns, 0)
            packets.append(OutgoingPacket(waiting.path.index, waiting.source, waiting.peer.path_bits, packet))
        return packets

    def _group(self, probe: _Probe) -> PathSamples:
        return self._groups.setdefault((probe.peer.nic, probe.path.value), PathSamples())

    def _gap_ns(self) -> int:
        return int(self._random.expovariate(self._settings.rate_pps) * 1e9)

"""What a host's flows did since they were last told of: counters in, figures of an interval out.

In: a host's TCP sockets as the kernel tells them, the flows and labels that programs registered, the fleet's
addresses, the time. Out: `FlowReports` records: changes at once, everything now and then. Pure.

A flow's id is that of the first socket that carried it. Where its owner moves it to another socket with
another source port, the registration of the new one names the flow, and its counters go on with what both
sockets sent. An RDMA flow's id is its queue pair's name, whatever its source port is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from producers.flows.socket_diag import TcpSocket
from schemas.topics import MAX_ELEMENTS

__all__ = ["FlowTable", "FlowRules", "Key", "Registration"]

Record = dict[str, Any]
Key = tuple[str, str, int, str, int]
"""Protocol (TCP, UDP or ROCE), source address and port, peer address and port."""

_MOVE: Final = "MOVE"
_SEGMENTS: Final = 1 << 32
_PACED: Final = 0.9
"""Share of its own limit above which a flow is held back by it."""
_HELD: Final = 0.5
"""Share of an interval from which on a flow counts as held back by one end."""
_STALE_NS: Final = 500_000_000
"""A registered flow that says nothing for so long has sent nothing since: it tells every 100 ms."""
_GONE_NS: Final = 150_000_000
"""How long the kernel's word of an end, with the last counters, is waited for."""
_CLAIM_NS: Final = 1_000_000_000
"""A new socket beside a flow that may be moved is not told of for so long: it may be that flow's next one."""
_MOVE_NS: Final = 500_000_000
"""How long a flow that may be moved is waited for where its socket ended before its next one was named."""
_FORGET_NS: Final = 5_000_000_000
"""How long a flow that was told as closed is remembered: the kernel's word of its end may come late."""


@dataclass(frozen=True, slots=True)
class FlowRules:
    """What is worth telling, and when at once."""

    least_bytes: int = 65_536
    """Payload: a connection that sent less since it began is told only where it is registered. So one that
    only acknowledges what it gets is not."""
    changed_share: float = 0.25
    changed_bps: float = 1e6
    """A rate that moved by more than both, since it was last told, is told at once."""
    kernel_pacing: bool = False
    """Whether flows that their owners do not pace can be paced all the same."""


@dataclass(slots=True)
class Registration:
    """What a program says of one flow of its own. Without `sent_bytes` the kernel's counters are used."""

    job: str | None = None
    tenant: str | None = None
    cookie: int | None = None
    flow: str | None = None
    """The flow that this socket carries now, sock:<first cookie>; None: one of its own. Always there for an
    RDMA flow: qp:<device>:<qpn>:<create count>."""
    sent_bytes: int | None = None
    """Bytes of its frames since it began, at `at_ns` of the host's monotonic clock."""
    at_ns: int = 0
    rate_limit_bps: int | None = None
    can: tuple[str, ...] = ()
    """What its owner lets be done to it: MOVE, PACE."""
    closed: bool = False
    """The queue pair is gone; nothing else is said of it then."""

    @property
    def name(self) -> str | None:
        """The end of its flow's id, where that is known without asking the kernel."""
        return self.flow or (None if self.cookie is None else f"sock:{self.cookie}")


@dataclass(slots=True)
class _Counters:
    """Totals of one flow at a moment of the monotonic clock."""

    at_ns: int
    frame_bytes: int = 0
    retransmits: int = 0
    busy_us: int = 0
    receiver_us: int = 0
    buffer_us: int = 0


@dataclass(slots=True)
class _Flow:
    flow_id: str
    key: Key
    nic: str
    peer: str
    told: _Counters
    """As of the last report."""
    before: _Counters
    """As of the last look but one."""
    now: _Counters
    kernel: TcpSocket | None = None
    """The socket that carries it now, as last looked at."""
    sockets: dict[int, TcpSocket] = field(default_factory=dict)
    """All sockets that still are, that one included, by cookie."""
    wait_until_ns: int = 0
    """Until then it may turn out to be another flow's next socket."""
    job: str | None = None
    tenant: str | None = None
    hops: Sequence[str] = ()
    can: tuple[str, ...] = ()
    rate_limit_bps: int | None = None
    registered: bool = False
    known: bool = False
    """Whether it was in any report."""
    changed: bool = True
    missing_ns: int | None = None
    """When it was first not seen."""
    closed: bool = False
    told_bps: float = 0.0
    told_held: str = ""

    def look(self, counters: _Counters) -> None:
        self.before, self.now = self.now, counters

    def add(self, found: TcpSocket, now_ns: int) -> None:
        """Count what one of its sockets did since it was last looked at."""
        last = self.sockets[found.cookie]
        self.sockets[found.cookie] = found
        if self.now.at_ns != now_ns or self.now is self.told:
            self.look(replace(self.now, at_ns=now_ns))
        segments = (found.segments_sent - last.segments_sent) % _SEGMENTS
        now = self.now
        now.frame_bytes += max(0, found.bytes_sent - last.bytes_sent) + segments * found.header_bytes
        now.retransmits += (found.retransmits - last.retransmits) % _SEGMENTS
        now.busy_us += found.busy_us - last.busy_us
        now.receiver_us += found.receiver_limited_us - last.receiver_limited_us
        now.buffer_us += found.buffer_limited_us - last.buffer_limited_us

    def figures(self, since: _Counters, until: _Counters) -> tuple[int, int, float]:
        """Return the interval in ns, the bytes within it, and bit/s."""
        interval_ns = max(0, until.at_ns - since.at_ns)
        sent = max(0, until.frame_bytes - since.frame_bytes)
        return interval_ns, sent, (sent * 8e9 / interval_ns if interval_ns else 0.0)

    def shares(
        self, since: _Counters, until: _Counters, rate_bps: float
    ) -> tuple[float, float, float] | None:
        """Return the shares of the interval: busy, held back by the receiver, and by the sender itself."""
        interval_us = (until.at_ns - since.at_ns) / 1e3
        if self.kernel is None or interval_us <= 0:
            return None
        busy = _share(until.busy_us - since.busy_us, interval_us)
        receiver = _share(until.receiver_us - since.receiver_us, interval_us)
        sender = min(1.0, 1 - busy + _share(until.buffer_us - since.buffer_us, interval_us))
        if self.rate_limit_bps is not None and rate_bps >= _PACED * self.rate_limit_bps:
            sender = max(sender, 1 - receiver)
        return busy, receiver, sender

    def moved(self, rules: FlowRules) -> bool:
        """Whether it goes at another rate than it was last told with, or is held back by another end."""
        interval_ns, _, rate_bps = self.figures(self.before, self.now)
        if not interval_ns or self.now.at_ns <= self.told.at_ns:
            return False
        if abs(rate_bps - self.told_bps) > max(rules.changed_share * self.told_bps, rules.changed_bps):
            return True
        return _held(self.shares(self.before, self.now, rate_bps)) != self.told_held


@dataclass(slots=True)
class FlowTable:
    """One host's flows. `local` names its NICs by address, `nic_of` any NIC of the fleet."""

    host: str
    boot: str
    shard: str
    local: Mapping[str, str]
    nic_of: Callable[[str], str | None]
    rules: FlowRules = field(default_factory=FlowRules)
    _flows: dict[str, _Flow] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)
    _cookies: set[int] = field(default_factory=set)
    """Of all connections at the last look, those to outside the fleet too."""
    _carried: dict[int, str] = field(default_factory=dict)
    """Cookie to id of the flow that it carries, of sockets that are not their flow's first."""
    _looked_ns: int | None = None

    def look(
        self,
        sockets: Iterable[TcpSocket],
        ended: Iterable[TcpSocket],
        registered: Mapping[Key, Registration],
        now_ns: int,
        queue_pairs: Iterable[tuple[Key, Registration]] = (),
    ) -> None:
        """Take what there is at `now_ns` of the monotonic clock. `ended`: since the last call. Queue pairs
        may share their ports."""
        since_ns = self._looked_ns
        seen = set()
        cookies = set()
        movable = {(key[1], key[3], key[4]) for key, said in registered.items() if _MOVE in said.can}
        for found in sockets:
            cookies.add(found.cookie)
            if (flow := self._tcp(found, registered, movable, now_ns, since_ns)) is not None:
                seen.add(flow.flow_id)
        for key, said in itertools.chain(registered.items(), queue_pairs):
            if said.sent_bytes is not None and (flow := self._told(key, said, now_ns)) is not None:
                seen.add(flow.flow_id)
        for found in ended:
            flow = self._tcp(found, registered, movable, now_ns, since_ns)
            self._carried.pop(found.cookie, None)
            if flow is None:
                continue
            flow.sockets.pop(found.cookie, None)
            carrier = flow.kernel is None or flow.kernel.cookie == found.cookie
            if carrier and not self._may_move(flow, registered):
                self._close(flow, now_ns)
        for name, flow in self._flows.items():
            if name in seen or flow.closed:
                flow.missing_ns = None
            elif flow.missing_ns is None and flow.kernel is not None:
                flow.missing_ns = now_ns
            elif flow.kernel is None or now_ns - (flow.missing_ns or 0) >= (
                _MOVE_NS if self._may_move(flow, registered) else _GONE_NS
            ):
                self._close(flow, now_ns)
        for name in [name for name, until_ns in self._ended.items() if until_ns < now_ns]:
            del self._ended[name]
        self._looked_ns, self._cookies = now_ns, cookies

    def trace(self, hops_of: Callable[[str, str, Key], Sequence[str]]) -> None:
        """Ask for the links of every flow (nic, peer, key)."""
        for flow in self._flows.values():
            hops = hops_of(flow.nic, flow.peer, flow.key)
            if tuple(hops) != tuple(flow.hops):
                flow.hops, flow.changed = tuple(hops), True

    def paths(self) -> list[tuple[str, str, Key, bool]]:
        """Return (nic, peer, key, whether it may be moved) of every flow that is told of."""
        return [
            (flow.nic, flow.peer, flow.key, _MOVE in flow.can)
            for flow in self._flows.values()
            if not flow.closed and self._worth(flow)
        ]

    def troubled(self) -> list[tuple[str, str, Key]]:
        """Return (nic, peer, key) of the flows that sent anything again since the last look but one."""
        return [
            (flow.nic, flow.peer, flow.key)
            for flow in self._flows.values()
            if flow.now.retransmits > flow.before.retransmits
        ]

    def report(self, whole: bool, system_ns: int, number: Callable[[], int]) -> list[Record]:
        """Return the records to send now: of all flows where `whole`, else of those that changed.

        `number` gives each record its own. Every call begins new intervals for the flows in it. What moved
        since the last look is told by itself: what came before it goes into a record of its own.
        """
        moved = [flow for flow in self._flows.values() if self._worth(flow) and flow.moved(self.rules)]
        earlier = [self._element(flow, flow.before) for flow in moved if flow.told.at_ns < flow.before.at_ns]
        news = {flow.flow_id for flow in moved}
        elements = [
            self._element(flow, flow.now)
            for flow in self._flows.values()
            if self._worth(flow) and (whole or flow.changed or flow.closed or flow.flow_id in news)
        ]
        for name in [name for name, flow in self._flows.items() if flow.closed]:
            del self._flows[name]
        if not elements and not whole:
            return []
        parts = [earlier[i : i + MAX_ELEMENTS] for i in range(0, len(earlier), MAX_ELEMENTS)]
        last = len(parts)
        parts += [elements[i : i + MAX_ELEMENTS] for i in range(0, len(elements), MAX_ELEMENTS)] or [[]]
        return [
            {
                "host": self.host,
                "boot": self.boot,
                "report": number(),
                "shard": self.shard,
                "system_ns": system_ns,
                "whole": whole and at >= last and len(parts) == last + 1,
                "flows": part,
            }
            for at, part in enumerate(parts)
        ]

    def _tcp(
        self,
        found: TcpSocket,
        registered: Mapping[Key, Registration],
        movable: set[tuple[str, str, int]],
        now_ns: int,
        since_ns: int | None,
    ) -> _Flow | None:
        nic = self.local.get(found.source)
        peer = self.nic_of(found.peer)
        if nic is None or peer is None or _host(peer) == self.host:
            return None
        key = ("TCP", found.source, found.source_port, found.peer, found.peer_port)
        said = registered.get(key)
        flow_id = self._carried.get(found.cookie) or self._id(f"sock:{found.cookie}")
        if said is not None and said.flow is not None and self._id(said.flow) != flow_id:
            self._hand_over(flow_id, self._id(said.flow), found, now_ns)
            flow_id = self._id(said.flow)
        flow = self._flows.get(flow_id)
        if flow is None:
            if flow_id in self._ended:
                return None
            if since_ns is None or found.cookie in self._cookies:  # what it sent is of no interval we know
                begun, last = _counters(found, now_ns, _frames(found)), found
            else:
                begun, last = _Counters(since_ns), _at_birth(found)
            flow = self._flows[flow_id] = _Flow(flow_id, key, nic, peer, begun, begun, begun, last)
            flow.sockets[found.cookie] = last
            if (found.source, found.peer, found.peer_port) in movable:
                flow.wait_until_ns = now_ns + _CLAIM_NS
        elif found.cookie not in flow.sockets:
            flow.sockets[found.cookie] = _at_birth(found)
        if found.bytes_sent < flow.sockets[found.cookie].bytes_sent:
            return flow  # a connection that is reset ends with its counters cleared
        flow.add(found, now_ns)
        if flow.key == key:
            flow.kernel, flow.rate_limit_bps = found, found.rate_limit_bps
            self._label(flow, said)
        return flow

    def _hand_over(self, socket_id: str, flow_id: str, found: TcpSocket, now_ns: int) -> None:
        """Let a socket carry a flow that another one carried so far: all that it sent is that flow's."""
        own = self._flows.get(socket_id)
        if own is not None and own.kernel is not None and own.kernel.cookie == found.cookie:
            if own.known:
                own.sockets.pop(found.cookie, None)
                self._close(own, now_ns)
            else:
                del self._flows[socket_id]
        self._ended.pop(flow_id, None)
        self._carried[found.cookie] = flow_id
        flow = self._flows.get(flow_id)
        if flow is not None:
            flow.closed, flow.missing_ns = False, None
            self._rekey(flow, ("TCP", found.source, found.source_port, found.peer, found.peer_port))

    def _rekey(self, flow: _Flow, key: Key) -> None:
        """Note that a flow goes on from other ports: the links that it takes are not known until asked."""
        if flow.key != key:
            flow.key, flow.hops, flow.changed = key, (), True
            flow.nic, flow.peer = self.local.get(key[1], flow.nic), self.nic_of(key[3]) or flow.peer

    def _may_move(self, flow: _Flow, registered: Mapping[Key, Registration]) -> bool:
        return _MOVE in flow.can and flow.key in registered

    def _id(self, name: str) -> str:
        return f"{self.host}/{self.boot}/{name}"

    def _told(self, key: Key, said: Registration, now_ns: int) -> _Flow | None:
        """Take a flow whose sender counts for itself."""
        nic, peer = self.local.get(key[1]), self.nic_of(key[3])
        if nic is None or peer is None or said.sent_bytes is None:
            return None
        flow_id = self._id(said.name or "")
        at_ns = min(said.at_ns, now_ns)
        flow = self._flows.get(flow_id)
        if flow is None:
            if flow_id in self._ended:
                return None
            begun = _Counters(at_ns, said.sent_bytes)
            flow = self._flows[flow_id] = _Flow(flow_id, key, nic, peer, begun, begun, begun)
        self._rekey(flow, key)
        if now_ns - at_ns > _STALE_NS:
            at_ns = now_ns
        if at_ns > flow.now.at_ns:
            flow.look(_Counters(at_ns, max(flow.now.frame_bytes, said.sent_bytes)))
        flow.rate_limit_bps = said.rate_limit_bps
        self._label(flow, said)
        return flow

    def _label(self, flow: _Flow, said: Registration | None) -> None:
        if said is None:
            return
        flow.registered = True
        if (said.job, said.tenant, said.can) != (flow.job, flow.tenant, flow.can):
            flow.job, flow.tenant, flow.can, flow.changed = said.job, said.tenant, said.can, True

    def _close(self, flow: _Flow, now_ns: int) -> None:
        flow.closed = True
        self._ended[flow.flow_id] = now_ns + _FORGET_NS
        for cookie in flow.sockets:
            self._carried.pop(cookie, None)

    def _worth(self, flow: _Flow) -> bool:
        if flow.known or flow.registered:
            return True
        payload = 0 if flow.kernel is None else flow.kernel.bytes_sent
        return payload >= self.rules.least_bytes and flow.now.at_ns >= flow.wait_until_ns

    def _can(self, flow: _Flow) -> tuple[str, ...]:
        """Return what may be done to a flow; the kernel paces IP's flows, not a queue pair's."""
        if not self.rules.kernel_pacing or "PACE" in flow.can or flow.key[0] not in ("TCP", "UDP"):
            return flow.can
        return (*flow.can, "PACE")

    def _element(self, flow: _Flow, until: _Counters) -> Record:
        """Return what a flow did from what was told last `until` then, and note it as told."""
        interval_ns, sent, rate_bps = flow.figures(flow.told, until)
        shares = flow.shares(flow.told, until, rate_bps)
        again = until.retransmits - flow.told.retransmits
        flow.told, flow.told_bps, flow.told_held = until, rate_bps, _held(shares)
        flow.known, flow.changed = True, flow.changed and until is not flow.now
        protocol, source, source_port, peer, peer_port = flow.key
        busy, receiver, sender = (None, None, None) if shares is None else shares
        return {
            "flow_id": flow.flow_id,
            "state": "CLOSED" if flow.closed and until is flow.now else "OPEN",
            "nic": flow.nic,
            "peer": flow.peer,
            "source_address": source,
            "peer_address": peer,
            "source_port": source_port,
            "peer_port": peer_port,
            "protocol": protocol,
            "links": list(flow.hops),
            "job": flow.job,
            "tenant": flow.tenant,
            "bytes_total": until.frame_bytes,
            "interval_ns": interval_ns,
            "bytes": sent,
            "rate_bps": rate_bps,
            "rtt_ns": None if flow.kernel is None else flow.kernel.rtt_us * 1000 or None,
            "retransmits": None if flow.kernel is None else max(0, again),
            "busy_share": busy,
            "receiver_limited_share": receiver,
            "sender_limited_share": sender,
            "rate_limit_bps": flow.rate_limit_bps,
            "can": list(self._can(flow)),
        }


def _at_birth(found: TcpSocket) -> TcpSocket:
    """Return a socket as it was before it did anything."""
    return found._replace(
        bytes_sent=0, segments_sent=0, retransmits=0, busy_us=0, receiver_limited_us=0, buffer_limited_us=0
    )


def _frames(found: TcpSocket) -> int:
    return found.bytes_sent + found.segments_sent * found.header_bytes


def _counters(found: TcpSocket, at_ns: int, frame_bytes: int) -> _Counters:
    return _Counters(at_ns, frame_bytes, 0, found.busy_us, found.receiver_limited_us, found.buffer_limited_us)


def _share(part_us: float, whole_us: float) -> float:
    return min(1.0, max(0.0, part_us / whole_us))


def _held(shares: tuple[float, float, float] | None) -> str:
    if shares is None:
        return ""
    _, receiver, sender = shares
    return "receiver" if receiver > _HELD else "sender" if sender > _HELD else ""


def _host(nic: str) -> str:
    return nic.partition("/")[0]

"""Computes `FlowReports` from the counters of a host's flows: changes at once, all flows periodically. Pure.

The inputs are the kernel's TCP sockets, programs' flows and labels, and the fleet's addresses.

A flow has the id of its first socket. When its program moves the flow to another socket with another source
port, the registration of the new socket gives the flow's id. The counters then include both sockets. An RDMA
flow's id is its queue pair's name, whatever its source port.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from producers.flows.socket_diag import TcpSocket
from schemas.ids import host_of
from schemas.records import Flow, FlowProtocol, FlowReports, FlowState
from schemas.topics import MAX_ELEMENTS

Key = tuple[str, str, int, str, int]
"""Protocol (TCP, UDP or ROCE), source address, source port, peer address and peer port."""

_MOVE: Final = "MOVE"
_SEGMENTS: Final = 1 << 32
_PACED: Final = 0.9
"""A flow counts as rate-limited if its rate is above this share of its own limit."""
_LIMITED_SHARE: Final = 0.5
"""A flow counts as limited by one end if that end limited it for at least this share of an interval."""
_STALE_NS: Final = 500_000_000
"""A registered flow without an update for this long has sent nothing; programs send one every 100 ms."""
_GONE_NS: Final = 150_000_000
"""Time to wait for the kernel's notice that a connection ended, which contains the last counters."""
_CLAIM_NS: Final = 1_000_000_000
"""A new socket beside a movable flow is reported only after this time; that flow may be moving to it."""
_MOVE_NS: Final = 500_000_000
"""Time to wait for a movable flow's next socket after its socket ended."""
_FORGET_NS: Final = 5_000_000_000
"""A flow reported as closed is remembered for this long, because the kernel's notice may be late."""


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Rules that select the flows to report, and the changes to report at once."""

    min_bytes: int = 65_536
    """An unregistered connection is reported only if it sent at least this payload. This leaves out
    connections that only acknowledge."""
    changed_share: float = 0.25
    changed_bps: float = 1e6
    """A rate is reported at once if it has changed by more than both this and `changed_share`."""
    kernel_pacing: bool = False
    """True if the kernel can pace flows that their programs do not pace."""


@dataclass(slots=True)
class Registration:
    """A program's registration of a flow. If `sent_bytes` is None, the kernel's counters are used."""

    job: str | None = None
    tenant: str | None = None
    cookie: int | None = None
    flow: str | None = None
    """The flow that this socket carries, sock:<first cookie>; None if it is the socket's own flow. Required
    for an RDMA flow: qp:<device>:<qpn>:<create count>."""
    sent_bytes: int | None = None
    """Bytes in the flow's frames since it began, at time `at_ns` of the host's monotonic clock."""
    at_ns: int = 0
    rate_limit_bps: int | None = None
    can: tuple[str, ...] = ()
    """Actions that the program supports for this flow: MOVE, PACE."""
    closed: bool = False
    """True if the queue pair is gone; the other fields are then empty."""

    @property
    def name(self) -> str | None:
        """The last part of the flow's id; None if only the kernel can provide it."""
        return self.flow or (None if self.cookie is None else f"sock:{self.cookie}")


@dataclass(slots=True)
class _Counters:
    """Totals of one flow since it began, read at a time of the monotonic clock."""

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
    reported: _Counters
    """Counters at the last report."""
    before: _Counters
    """Counters at the last reading but one."""
    now: _Counters
    kernel: TcpSocket | None = None
    """The socket that carries the flow, with the counters of the last reading."""
    sockets: dict[int, TcpSocket] = field(default_factory=dict)
    """All open sockets of the flow, by cookie."""
    wait_until_ns: int = 0
    """Until this time, the flow's socket may turn out to be another flow's next socket."""
    job: str | None = None
    tenant: str | None = None
    links: Sequence[str] = ()
    can: tuple[str, ...] = ()
    rate_limit_bps: int | None = None
    registered: bool = False
    is_published: bool = False
    """True if any report has contained the flow."""
    changed: bool = True
    missing_ns: int | None = None
    """Time of the first reading in which the flow was missing."""
    closed: bool = False
    reported_bps: float = 0.0
    reported_limit: str = ""

    def read(self, counters: _Counters) -> None:
        self.before, self.now = self.now, counters

    def add(self, tcp_socket: TcpSocket, now_ns: int) -> None:
        """Add the growth of a socket's counters since the last reading to the flow's totals."""
        last = self.sockets[tcp_socket.cookie]
        self.sockets[tcp_socket.cookie] = tcp_socket
        if self.now.at_ns != now_ns or self.now is self.reported:
            self.read(replace(self.now, at_ns=now_ns))
        segments = (tcp_socket.segments_sent - last.segments_sent) % _SEGMENTS
        now = self.now
        now.frame_bytes += (
            max(0, tcp_socket.bytes_sent - last.bytes_sent) + segments * tcp_socket.header_bytes
        )
        now.retransmits += (tcp_socket.retransmits - last.retransmits) % _SEGMENTS
        now.busy_us += tcp_socket.busy_us - last.busy_us
        now.receiver_us += tcp_socket.receiver_limited_us - last.receiver_limited_us
        now.buffer_us += tcp_socket.buffer_limited_us - last.buffer_limited_us

    def figures(self, since: _Counters, until: _Counters) -> tuple[int, int, float]:
        """Return an interval's length, ns, the bytes sent in it, and their rate, bit/s."""
        interval_ns = max(0, until.at_ns - since.at_ns)
        sent = max(0, until.frame_bytes - since.frame_bytes)
        return interval_ns, sent, (sent * 8e9 / interval_ns if interval_ns else 0.0)

    def shares(
        self, since: _Counters, until: _Counters, rate_bps: float
    ) -> tuple[float, float, float] | None:
        """Return an interval's shares of time: busy, receiver-limited, sender-limited; None if unknown."""
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
        """Return whether rate or limiting end (sender or receiver) changed since the last report."""
        interval_ns, _, rate_bps = self.figures(self.before, self.now)
        if not interval_ns or self.now.at_ns <= self.reported.at_ns:
            return False
        if abs(rate_bps - self.reported_bps) > max(
            rules.changed_share * self.reported_bps, rules.changed_bps
        ):
            return True
        return _limiting_end(self.shares(self.before, self.now, rate_bps)) != self.reported_limit


@dataclass(slots=True)
class FlowTable:
    """The flows of one host. `local` maps its addresses to its NICs; `nic_of` finds any address's NIC."""

    host: str
    boot: str
    shard: str
    local: Mapping[str, str]
    nic_of: Callable[[str], str | None]
    rules: FlowRules = field(default_factory=FlowRules)
    _flows: dict[str, _Flow] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)
    _cookies: set[int] = field(default_factory=set)
    """Cookies of all connections at the last reading, including those to other networks."""
    _carried: dict[int, str] = field(default_factory=dict)
    """For each socket that carries a flow begun on another socket: cookie to the flow's id."""
    _read_ns: int | None = None

    def read(
        self,
        sockets: Iterable[TcpSocket],
        ended: Iterable[TcpSocket],
        registered: Mapping[Key, Registration],
        now_ns: int,
        queue_pairs: Iterable[tuple[Key, Registration]] = (),
    ) -> None:
        """Update the flows with the counters read at `now_ns` of the monotonic clock.

        `ended` holds the sockets that ended since the last reading. `queue_pairs` is a list of pairs because
        several queue pairs may have the same ports.
        """
        since_ns = self._read_ns
        movable = {
            (key[1], key[3], key[4]) for key, registration in registered.items() if _MOVE in registration.can
        }
        flow_ids = set()
        cookies = set()
        for tcp_socket in sockets:
            cookies.add(tcp_socket.cookie)
            if (flow := self._tcp(tcp_socket, registered, movable, now_ns, since_ns)) is not None:
                flow_ids.add(flow.flow_id)
        for key, registration in itertools.chain(registered.items(), queue_pairs):
            if (flow := self._registered_flow(key, registration, now_ns)) is not None:
                flow_ids.add(flow.flow_id)
        for tcp_socket in ended:
            flow = self._tcp(tcp_socket, registered, movable, now_ns, since_ns)
            self._carried.pop(tcp_socket.cookie, None)
            if flow is not None:
                self._end_socket(flow, tcp_socket, registered, now_ns)
        for flow in self._flows.values():
            self._check_missing(flow, flow.flow_id in flow_ids, registered, now_ns)
        self._ended = {name: until_ns for name, until_ns in self._ended.items() if until_ns >= now_ns}
        self._read_ns, self._cookies = now_ns, cookies

    def _end_socket(
        self, flow: _Flow, tcp_socket: TcpSocket, registered: Mapping[Key, Registration], now_ns: int
    ) -> None:
        flow.sockets.pop(tcp_socket.cookie, None)
        was_carrier = flow.kernel is None or flow.kernel.cookie == tcp_socket.cookie
        if was_carrier and not self._may_move(flow, registered):
            self._close(flow, now_ns)

    def _check_missing(
        self, flow: _Flow, is_seen: bool, registered: Mapping[Key, Registration], now_ns: int
    ) -> None:
        """Close a flow that has been missing for too long; otherwise store since when it is missing."""
        if is_seen or flow.closed:
            flow.missing_ns = None
        elif flow.missing_ns is None and flow.kernel is not None:
            flow.missing_ns = now_ns
        else:
            wait_ns = _MOVE_NS if self._may_move(flow, registered) else _GONE_NS
            if flow.kernel is None or now_ns - (flow.missing_ns or 0) >= wait_ns:
                self._close(flow, now_ns)

    def trace(self, links_of: Callable[[str, str, Key], Sequence[str]]) -> None:
        """Set the links of every flow. `links_of` returns the links for a NIC, peer and flow key."""
        for flow in self._flows.values():
            links = links_of(flow.nic, flow.peer, flow.key)
            if tuple(links) != tuple(flow.links):
                flow.links, flow.changed = tuple(links), True

    def paths(self) -> list[tuple[str, str, Key, bool]]:
        """Return (NIC, peer, key, whether it may be moved) of every open flow that is reported."""
        return [
            (flow.nic, flow.peer, flow.key, _MOVE in flow.can)
            for flow in self._flows.values()
            if not flow.closed and self._is_reportable(flow)
        ]

    def troubled(self) -> list[tuple[str, str, Key]]:
        """Return (NIC, peer, key) of each flow that retransmitted between the last two readings."""
        return [
            (flow.nic, flow.peer, flow.key)
            for flow in self._flows.values()
            if flow.now.retransmits > flow.before.retransmits
        ]

    def report(self, is_complete: bool, system_ns: int, number: Callable[[], int]) -> list[FlowReports]:
        """Return the records to publish: all flows if `is_complete`, otherwise the changed ones.

        `number` returns the next report number. A report starts a new interval for each of its flows. If a
        flow changed since the last reading, a separate, earlier record covers the time before that reading.
        So the rate before the change is not averaged with the rate after it.
        """
        earlier, rows = self._due_rows(is_complete)
        self._flows = {name: flow for name, flow in self._flows.items() if not flow.closed}
        if not rows and not is_complete:
            return []
        earlier_parts, parts = _split(earlier), _split(rows) or [[]]
        is_whole = is_complete and len(parts) == 1
        return [
            {
                "host": self.host,
                "boot": self.boot,
                "report": number(),
                "shard": self.shard,
                "system_ns": system_ns,
                "whole": is_whole and at >= len(earlier_parts),
                "flows": part,
            }
            for at, part in enumerate(earlier_parts + parts)
        ]

    def _due_rows(self, is_complete: bool) -> tuple[list[Flow], list[Flow]]:
        """Return the rows of the record that ends at the last reading, and of the one that ends now."""
        reportable = [flow for flow in self._flows.values() if self._is_reportable(flow)]
        moved = [flow for flow in reportable if flow.moved(self.rules)]
        earlier = [self._row(flow, flow.before) for flow in moved if flow.reported.at_ns < flow.before.at_ns]
        moved_ids = {flow.flow_id for flow in moved}
        rows = [
            self._row(flow, flow.now)
            for flow in reportable
            if is_complete or flow.changed or flow.closed or flow.flow_id in moved_ids
        ]
        return earlier, rows

    def _tcp(
        self,
        tcp_socket: TcpSocket,
        registered: Mapping[Key, Registration],
        movable: set[tuple[str, str, int]],
        now_ns: int,
        since_ns: int | None,
    ) -> _Flow | None:
        nic = self.local.get(tcp_socket.source)
        peer = self.nic_of(tcp_socket.peer)
        if nic is None or peer is None or host_of(peer) == self.host:
            return None
        key = ("TCP", tcp_socket.source, tcp_socket.source_port, tcp_socket.peer, tcp_socket.peer_port)
        registration = registered.get(key)
        flow_id = self._carrier_id(tcp_socket, registration, now_ns)
        flow = self._flows.get(flow_id)
        if flow is None:
            if flow_id in self._ended:
                return None
            flow = self._open_socket(flow_id, key, nic, peer, tcp_socket, now_ns, since_ns)
            if (tcp_socket.source, tcp_socket.peer, tcp_socket.peer_port) in movable:
                flow.wait_until_ns = now_ns + _CLAIM_NS
        elif tcp_socket.cookie not in flow.sockets:
            flow.sockets[tcp_socket.cookie] = _at_birth(tcp_socket)
        if tcp_socket.bytes_sent < flow.sockets[tcp_socket.cookie].bytes_sent:
            return flow  # a connection that is reset ends with cleared counters
        flow.add(tcp_socket, now_ns)
        if flow.key == key:
            flow.kernel, flow.rate_limit_bps = tcp_socket, tcp_socket.rate_limit_bps
            self._label(flow, registration)
        return flow

    def _carrier_id(self, tcp_socket: TcpSocket, registration: Registration | None, now_ns: int) -> str:
        """Return the id of the flow that a socket carries; move a flow to the socket if so registered."""
        flow_id = self._carried.get(tcp_socket.cookie) or self._id(f"sock:{tcp_socket.cookie}")
        if registration is None or registration.flow is None:
            return flow_id
        registered_id = self._id(registration.flow)
        if registered_id != flow_id:
            self._transfer(flow_id, registered_id, tcp_socket, now_ns)
        return registered_id

    def _open_socket(
        self,
        flow_id: str,
        key: Key,
        nic: str,
        peer: str,
        tcp_socket: TcpSocket,
        now_ns: int,
        since_ns: int | None,
    ) -> _Flow:
        """Add and return a flow that starts with a socket."""
        if since_ns is None or tcp_socket.cookie in self._cookies:  # its bytes belong to no known interval
            begun, last = _counters(tcp_socket, now_ns, _frames(tcp_socket)), tcp_socket
        else:
            begun, last = _Counters(since_ns), _at_birth(tcp_socket)
        flow = self._flows[flow_id] = _Flow(flow_id, key, nic, peer, begun, begun, begun, last)
        flow.sockets[tcp_socket.cookie] = last
        return flow

    def _transfer(self, socket_id: str, flow_id: str, tcp_socket: TcpSocket, now_ns: int) -> None:
        """Assign a socket to the flow that another socket carried before; its bytes count for that flow."""
        own = self._flows.get(socket_id)
        if own is not None and own.kernel is not None and own.kernel.cookie == tcp_socket.cookie:
            if own.is_published:
                own.sockets.pop(tcp_socket.cookie, None)
                self._close(own, now_ns)
            else:
                del self._flows[socket_id]
        self._ended.pop(flow_id, None)
        self._carried[tcp_socket.cookie] = flow_id
        flow = self._flows.get(flow_id)
        if flow is not None:
            flow.closed, flow.missing_ns = False, None
            self._rekey(
                flow,
                ("TCP", tcp_socket.source, tcp_socket.source_port, tcp_socket.peer, tcp_socket.peer_port),
            )

    def _rekey(self, flow: _Flow, key: Key) -> None:
        """Change the ports of a moved flow, and clear its links until its new route is traced."""
        if flow.key != key:
            flow.key, flow.links, flow.changed = key, (), True
            flow.nic, flow.peer = self.local.get(key[1], flow.nic), self.nic_of(key[3]) or flow.peer

    def _may_move(self, flow: _Flow, registered: Mapping[Key, Registration]) -> bool:
        return _MOVE in flow.can and flow.key in registered

    def _id(self, name: str) -> str:
        return f"{self.host}/{self.boot}/{name}"

    def _registered_flow(self, key: Key, registration: Registration, now_ns: int) -> _Flow | None:
        """Read a flow whose bytes its program counts; return the flow, or None if it is not reported."""
        nic, peer = self.local.get(key[1]), self.nic_of(key[3])
        if nic is None or peer is None or registration.sent_bytes is None:
            return None
        flow_id = self._id(registration.name or "")
        at_ns = min(registration.at_ns, now_ns)
        flow = self._flows.get(flow_id)
        if flow is None:
            if flow_id in self._ended:
                return None
            begun = _Counters(at_ns, registration.sent_bytes)
            flow = self._flows[flow_id] = _Flow(flow_id, key, nic, peer, begun, begun, begun)
        self._rekey(flow, key)
        if now_ns - at_ns > _STALE_NS:
            at_ns = now_ns
        if at_ns > flow.now.at_ns:
            flow.read(_Counters(at_ns, max(flow.now.frame_bytes, registration.sent_bytes)))
        flow.rate_limit_bps = registration.rate_limit_bps
        self._label(flow, registration)
        return flow

    def _label(self, flow: _Flow, registration: Registration | None) -> None:
        if registration is None:
            return
        flow.registered = True
        if (registration.job, registration.tenant, registration.can) != (flow.job, flow.tenant, flow.can):
            flow.job, flow.tenant, flow.can, flow.changed = (
                registration.job,
                registration.tenant,
                registration.can,
                True,
            )

    def _close(self, flow: _Flow, now_ns: int) -> None:
        flow.closed = True
        self._ended[flow.flow_id] = now_ns + _FORGET_NS
        for cookie in flow.sockets:
            self._carried.pop(cookie, None)

    def _is_reportable(self, flow: _Flow) -> bool:
        if flow.is_published or flow.registered:
            return True
        payload = 0 if flow.kernel is None else flow.kernel.bytes_sent
        return payload >= self.rules.min_bytes and flow.now.at_ns >= flow.wait_until_ns

    def _can(self, flow: _Flow) -> tuple[str, ...]:
        """Return the actions that a flow supports; add PACE for flows over IP if the kernel paces flows."""
        if not self.rules.kernel_pacing or "PACE" in flow.can or flow.key[0] not in ("TCP", "UDP"):
            return flow.can
        return (*flow.can, "PACE")

    def _row(self, flow: _Flow, until: _Counters) -> Flow:
        """Return the flow's record row since its last report, up to `until`; mark the flow as reported."""
        interval_ns, sent, rate_bps = flow.figures(flow.reported, until)
        shares = flow.shares(flow.reported, until, rate_bps)
        resent = until.retransmits - flow.reported.retransmits
        flow.reported, flow.reported_bps, flow.reported_limit = until, rate_bps, _limiting_end(shares)
        flow.is_published, flow.changed = True, flow.changed and until is not flow.now
        protocol, source, source_port, peer, peer_port = flow.key
        busy, receiver, sender = (None, None, None) if shares is None else shares
        return {
            "flow_id": flow.flow_id,
            "state": FlowState.CLOSED if flow.closed and until is flow.now else FlowState.OPEN,
            "nic": flow.nic,
            "peer": flow.peer,
            "source_address": source,
            "peer_address": peer,
            "source_port": source_port,
            "peer_port": peer_port,
            "protocol": FlowProtocol(protocol),
            "links": list(flow.links),
            "job": flow.job,
            "tenant": flow.tenant,
            "bytes_total": until.frame_bytes,
            "interval_ns": interval_ns,
            "bytes": sent,
            "rate_bps": rate_bps,
            "rtt_ns": None if flow.kernel is None else flow.kernel.rtt_us * 1000 or None,
            "retransmits": None if flow.kernel is None else max(0, resent),
            "busy_share": busy,
            "receiver_limited_share": receiver,
            "sender_limited_share": sender,
            "rate_limit_bps": flow.rate_limit_bps,
            "can": list(self._can(flow)),
        }


def _split(rows: list[Flow]) -> list[list[Flow]]:
    """Split rows into lists that each fit into one record."""
    return [rows[i : i + MAX_ELEMENTS] for i in range(0, len(rows), MAX_ELEMENTS)]


def _at_birth(tcp_socket: TcpSocket) -> TcpSocket:
    """Return a copy of a socket with all its counters set to zero, as when it was opened."""
    return tcp_socket._replace(
        bytes_sent=0, segments_sent=0, retransmits=0, busy_us=0, receiver_limited_us=0, buffer_limited_us=0
    )


def _frames(tcp_socket: TcpSocket) -> int:
    return tcp_socket.bytes_sent + tcp_socket.segments_sent * tcp_socket.header_bytes


def _counters(tcp_socket: TcpSocket, at_ns: int, frame_bytes: int) -> _Counters:
    return _Counters(
        at_ns,
        frame_bytes,
        0,
        tcp_socket.busy_us,
        tcp_socket.receiver_limited_us,
        tcp_socket.buffer_limited_us,
    )


def _share(part_us: float, whole_us: float) -> float:
    return min(1.0, max(0.0, part_us / whole_us))


def _limiting_end(shares: tuple[float, float, float] | None) -> str:
    if shares is None:
        return ""
    _, receiver, sender = shares
    return "receiver" if receiver > _LIMITED_SHARE else "sender" if sender > _LIMITED_SHARE else ""

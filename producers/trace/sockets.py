"""Sends trace packets from given ports with a given TTL, and receives the network's answers.

`open_trace_sockets` opens raw sockets if the process has CAP_NET_RAW. Raw sockets send from ports that other
sockets own, need no socket per port, and receive no data. Packets are like the flow's own: UDP, or a TCP
segment outside any connection's window, because most switches hash the protocol too. Without the capability,
free UDP ports are bound one by one.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from native.core.device_sockets import bind_to_device
from producers.netns import in_netns

_log = logging.getLogger(__name__)

IP_RECVERR: Final = 11
IPV6_RECVERR: Final = 25
ORIGIN_ICMP, ORIGIN_ICMP6 = 2, 3
TIME_EXCEEDED: Final = {ORIGIN_ICMP: 11, ORIGIN_ICMP6: 3}
UNREACHABLE: Final = {ORIGIN_ICMP: 3, ORIGIN_ICMP6: 1}
NETWORK_ERRORS: Final = 4

_IPV6_CHECKSUM: Final = 7
_SO_ATTACH_FILTER: Final = 26
_BPF_RET: Final = 0x06
_MAGIC: Final = b"ftwy"
_UDP: Final = struct.Struct("!HHHH")
_TCP: Final = struct.Struct("!HHIIBBHHH")
_TCP_HEADER_UNITS, _TCP_ACK = 5, 0x10
_BODY_BYTES: Final = 8
_RECEIVE_BYTES: Final = 1 << 20
_MAX_READS: Final = 1024
_MAX_BOUND: Final = 128


class IcmpError(NamedTuple):
    """An ICMP error from a socket's error queue, with its sender."""

    origin: int
    type: int
    code: int
    hop: str | None


def error_of(ancillary: Iterable[tuple[int, int, bytes]]) -> IcmpError | None:
    """Return the ICMP error in a message's ancillary data; None if there is none.

    The format is struct sock_extended_err followed by the offender's address (ip(7), IP_RECVERR).
    """
    for level, kind, data in ancillary:
        if (level, kind) not in ((socket.SOL_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)) or len(
            data
        ) < 16:
            continue
        _, origin, type_, code = struct.unpack_from("=IBBB", data)
        if origin not in TIME_EXCEEDED:
            continue
        return IcmpError(origin, type_, code, _offender(data[16:]))
    return None


def _offender(raw: bytes) -> str | None:
    if len(raw) < 2:
        return None
    (family,) = struct.unpack_from("=H", raw)
    if family == socket.AF_INET and len(raw) >= 8:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    if family == socket.AF_INET6 and len(raw) >= 24:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24])
    return None


def send_trace(sock: socket.socket, data: bytes, ttl: int, target: tuple[str, int]) -> bool:
    """Send a packet with the given TTL; return whether the kernel accepted it.

    A pending network error of an earlier packet makes one call fail, so sending is tried again.
    """
    is_ipv6 = sock.family == socket.AF_INET6
    level, kind = (
        (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT) if is_ipv6 else (socket.IPPROTO_IP, socket.IP_TTL)
    )
    for _ in range(NETWORK_ERRORS):
        try:
            sock.sendmsg([data], [(level, kind, struct.pack("=i", ttl))], socket.MSG_DONTWAIT, target)
        except BlockingIOError:
            return False
        except OSError:
            continue
        return True
    return False


def _bind_as_routed(sock: socket.socket, address: str, device: str | None) -> None:
    """Bind a socket to an address; also to `device` for link-local addresses and addresses in a VRF."""
    try:
        bind_to_device(sock, address, 0, None)
    except OSError as error:
        if device is None or error.errno not in (errno.EADDRNOTAVAIL, errno.EINVAL):
            raise
        bind_to_device(sock, address, 0, device)


class TraceReply(NamedTuple):
    """An answer to a trace packet. `hop`: router where the TTL ended; None if the packet arrived."""

    seq: int
    hop: str | None


class TraceSocket(Protocol):
    """Sends the trace packets of one NIC and receives the answers."""

    def send(self, sport: int, target: tuple[str, int], ttl: int, seq: int) -> None:
        """Send one packet from port `sport` to the address `target`; if that fails, it counts as lost."""

    def replies(self) -> Iterator[TraceReply]:
        """Yield the answers to trace packets since the last call."""

    def close(self) -> None:
        """Close all sockets that send trace packets."""


def open_trace_sockets(
    address: str, netns: str | None, trace_tcp_with_udp: bool = False, device: str | None = None
) -> dict[str, TraceSocket]:
    """Return the sockets that trace from `address`, by the protocol of the traced flows (UDP, TCP).

    UDP traces leave by `device`, like RDMA packets, or as the kernel routes them if `device` is None. TCP
    traces are routed like programs' sockets, which are bound to an address only.

    With `trace_tcp_with_udp`, UDP packets also trace TCP flows. Without this option and without CAP_NET_RAW,
    the result has no TCP entry. Raises OSError if the namespace or address does not exist.
    """
    sockets: dict[str, TraceSocket] = {}
    try:
        sockets["UDP"] = _RawSocket(address, netns, device, socket.IPPROTO_UDP)
        sockets["TCP"] = (
            sockets["UDP"] if trace_tcp_with_udp else _RawSocket(address, netns, device, socket.IPPROTO_TCP)
        )
    except PermissionError:
        sockets["UDP"] = _BoundSockets(address, netns, device)
        if trace_tcp_with_udp:
            sockets["TCP"] = sockets["UDP"]
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    return sockets


def _body(ttl: int, seq: int) -> bytes:
    """Return a trace packet's payload. Its length encodes the TTL, since some routers quote only headers."""
    return _MAGIC + seq.to_bytes(4, "big") + bytes(ttl)


def _seq_of(body: bytes) -> int | None:
    if len(body) < _BODY_BYTES or not body.startswith(_MAGIC):
        return None
    return int.from_bytes(body[4:8], "big")


def prepare_for_errors(sock: socket.socket) -> socket.socket:
    """Attach a filter that drops all packets, so that the socket receives only errors; return the socket."""
    is_ipv6 = sock.family == socket.AF_INET6
    code = ctypes.create_string_buffer(struct.pack("=HBBI", _BPF_RET, 0, 0, 0))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    sock.setsockopt(*((socket.IPPROTO_IPV6, IPV6_RECVERR) if is_ipv6 else (socket.SOL_IP, IP_RECVERR)), 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    sock.setblocking(False)
    return sock


def _empty(sock: socket.socket) -> None:
    """Discard packets that arrived before the filter was attached and would fill the receive buffer."""
    for _ in range(_MAX_READS):
        try:
            sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            continue


def read_errors(sock: socket.socket) -> Iterator[tuple[bytes, tuple[str, int], IcmpError]]:
    """Yield (packet, target, error) of each ICMP error in a socket's error queue."""
    for _ in range(_MAX_READS):
        try:
            data, ancillary, _, about = sock.recvmsg(256, 512, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            return
        except OSError:  # a network error, which is in the error queue too
            continue
        error = error_of(ancillary)
        if error is not None:
            yield data, (about[0], about[1]), error


def _reply_to(seq: int | None, error: IcmpError, target: str) -> TraceReply | None:
    if seq is None or error.hop is None:
        return None
    if error.type == TIME_EXCEEDED[error.origin]:
        return TraceReply(seq, error.hop)
    if error.type == UNREACHABLE[error.origin] and error.hop == target:
        return TraceReply(seq, None)
    return None


class _RawSocket:
    """Sends packets of one protocol over one raw socket, with headers that are built here."""

    def __init__(self, address: str, netns: str | None, device: str | None, protocol: int) -> None:
        self._address, self._protocol = address, protocol
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._is_ipv6 = family == socket.AF_INET6

        def opened() -> socket.socket:
            sock = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            try:
                if protocol == socket.IPPROTO_TCP:
                    _bind_as_routed(sock, address, device)
                else:
                    bind_to_device(sock, address, 0, device)
            except BaseException:
                sock.close()
                raise
            return sock

        self._sock = in_netns(netns, opened)
        try:
            prepare_for_errors(self._sock)
            if self._is_ipv6:
                at = 6 if protocol == socket.IPPROTO_UDP else 16
                self._sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_CHECKSUM, at)
            _empty(self._sock)
        except BaseException:
            self._sock.close()
            raise
        self._sent: dict[tuple[str, int, int, int], int] = {}
        """Number of the newest UDP packet for each target, port pair and length."""
        self._sums: dict[str, int] = {}

    def send(self, sport: int, target: tuple[str, int], ttl: int, seq: int) -> None:
        """Send one packet from port `sport` to the address `target`; if that fails, it counts as lost."""
        address, dport = target
        if self._protocol == socket.IPPROTO_UDP:
            body = _body(ttl, seq)
            length = _UDP.size + len(body)
            self._sent[address, sport, dport, length] = seq
            checksum = self._checksum(
                address, length, _UDP.pack(sport, dport, length, 0) + body[:_BODY_BYTES]
            )
            data = _UDP.pack(sport, dport, length, checksum) + body
        else:
            data = _TCP.pack(sport, dport, seq, 0, _TCP_HEADER_UNITS << 4, _TCP_ACK, 0, 0, 0)
            checksum = self._checksum(address, len(data), data)
            data = _TCP.pack(sport, dport, seq, 0, _TCP_HEADER_UNITS << 4, _TCP_ACK, 0, checksum, 0)
        send_trace(self._sock, data, ttl, (address, 0))

    def replies(self) -> Iterator[TraceReply]:
        """Yield the answers since the last call; skip errors that other sockets' packets caused."""
        for data, (address, _), error in read_errors(self._sock):
            if len(data) < _UDP.size:
                continue
            sport, dport, length, _ = _UDP.unpack_from(data)
            if self._protocol == socket.IPPROTO_TCP:
                seq: int | None = int.from_bytes(data[4:8], "big")
            else:
                newest = self._sent.get((address, sport, dport, length))
                seq = _seq_of(data[_UDP.size :]) if len(data) >= _UDP.size + _BODY_BYTES else newest
            reply = _reply_to(seq, error, address)
            if reply is not None:
                yield reply

    def close(self) -> None:
        """Close the raw socket."""
        self._sock.close()

    def _checksum(self, target: str, length: int, data: bytes) -> int:
        """Return the UDP or TCP checksum of a packet (RFC 768, RFC 9293), addresses included.

        The kernel computes the checksum for IPv6. `data` may omit zero bytes of the packet.
        """
        if self._is_ipv6:
            return 0
        total = self._sums.get(target)
        if total is None:
            raw = socket.inet_aton(self._address) + socket.inet_aton(target)
            total = self._sums[target] = sum(struct.unpack("!4H", raw)) + self._protocol
        total += length + sum(struct.unpack(f"!{len(data) // 2}H", data))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return ~total & 0xFFFF or 0xFFFF


class _BoundSockets:
    """Sends UDP packets over one bound socket per port, opened on demand. Ports in use cannot be traced."""

    def __init__(self, address: str, netns: str | None, device: str | None) -> None:
        self._address, self._netns, self._device = address, netns, device
        self._sockets: OrderedDict[int, socket.socket] = OrderedDict()
        self._open(0).close()

    def send(self, sport: int, target: tuple[str, int], ttl: int, seq: int) -> None:
        """Send one packet from port `sport` to the address `target`; if that fails, it counts as lost."""
        sock = self._sockets.get(sport)
        if sock is None:
            try:
                sock = self._sockets[sport] = self._open(sport)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    _log.warning("%s: no socket to trace from port %d: %s", self._address, sport, error)
                return
            if len(self._sockets) > _MAX_BOUND:
                self._sockets.popitem(last=False)[1].close()
        self._sockets.move_to_end(sport)
        send_trace(sock, _body(ttl, seq), ttl, target)

    def replies(self) -> Iterator[TraceReply]:
        """Yield the answers to trace packets since the last call."""
        for sock in list(self._sockets.values()):
            for data, (address, _), error in read_errors(sock):
                reply = _reply_to(_seq_of(data), error, address)
                if reply is not None:
                    yield reply

    def close(self) -> None:
        """Close the sockets of all ports."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _open(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET

        def opened() -> socket.socket:
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            try:
                bind_to_device(sock, self._address, port, self._device)
                return prepare_for_errors(sock)
            except BaseException:
                sock.close()
                raise

        return in_netns(self._netns, opened)

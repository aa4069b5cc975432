"""Reads the TCP sockets of a network namespace through the kernel's socket diagnosis.

It returns open sockets and sockets that ended since the last call, with their counters (struct tcp_info of
linux/tcp.h; bytes_sent since Linux 4.19).
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final, NamedTuple

from producers.netlink import RECEIVE_BYTES, attributes, dump, messages, open_netlink
from producers.netns import in_netns

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_TCPDIAG_GETSOCK: Final = 18
"""Type of the request that lists TCP sockets of all families in one pass over the kernel's hash table, which
takes a millisecond however few they are. SOCK_DIAG_BY_FAMILY needs a pass for each family."""
_INET_DIAG_INFO: Final = 2
_GROUP_TCP4_DESTROY: Final = 1 << 0
_GROUP_TCP6_DESTROY: Final = 1 << 2
_STATES: Final = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11
"""Bits of the socket states to list: ESTABLISHED, and the states that may still have data to send."""
_REQUEST: Final = struct.pack("=3xB48xI4x", 1 << (_INET_DIAG_INFO - 1), _STATES)
"""The struct inet_diag_req with the attribute and the states to list."""
_BUFFER_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 2.0
_MESSAGE: Final = struct.Struct("=BBBB2s2s16s16sIQIIIII")
_INFO: Final = struct.Struct("=5xB2x60xI28xIQQQ8xI28xQQQ8xQ")
"""The fields read from struct tcp_info: tcpi_options, rtt (at 68), total_retrans (100), pacing_rate,
max_pacing_rate, bytes_acked, segs_out (136), busy_time (168), rwnd_limited, sndbuf_limited, bytes_sent (200).
"""
_INFO_BYTES: Final = 256
_TIMESTAMPS: Final = 1
_NO_LIMIT: Final = 2**64 - 1
_MAPPED: Final = bytes(10) + b"\xff\xff"


class TcpSocket(NamedTuple):
    """One end of a TCP connection: its addresses, and its counters since the connection began."""

    cookie: int
    source: str
    source_port: int
    peer: str
    peer_port: int
    bytes_sent: int
    """Payload bytes, including retransmissions."""
    segments_sent: int
    """Segments modulo 2^32, including acknowledgements and retransmissions."""
    header_bytes: int
    """Header bytes of each segment, including Ethernet's."""
    retransmits: int
    """Retransmitted segments modulo 2^32."""
    rtt_us: int
    busy_us: int
    receiver_limited_us: int
    buffer_limited_us: int
    rate_limit_bps: int | None


class SockDiag:
    """Reads the TCP sockets of the network namespace `netns`, or of the process's own if it is None."""

    def __init__(self, netns: str | None) -> None:
        def opened() -> tuple[socket.socket, socket.socket]:
            ended = open_netlink(_NETLINK_SOCK_DIAG, _GROUP_TCP4_DESTROY | _GROUP_TCP6_DESTROY, timeout_s=0)
            return open_netlink(_NETLINK_SOCK_DIAG, timeout_s=_TIMEOUT_S), ended

        self._ask, self._ended = in_netns(netns, opened)
        for sock in (self._ask, self._ended):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a connection has ended."""
        return self._ended.fileno()

    def open_sockets(self) -> list[TcpSocket]:
        """Return one socket per open TCP connection. Raises OSError if the kernel does not answer."""
        parsed = map(parse_socket, dump(self._ask, _TCPDIAG_GETSOCK, _REQUEST))
        return [entry for entry in parsed if entry is not None]

    def ended(self) -> list[TcpSocket]:
        """Return the sockets of connections that ended since the last call, with their last counters."""
        sockets: list[TcpSocket] = []
        while True:
            try:
                data = self._ended.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return sockets
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # the kernel dropped some, and their flows show as gone
                    raise
                continue
            for kind, _, body in messages(data):
                if kind == _SOCK_DIAG_BY_FAMILY and (parsed := parse_socket(body)) is not None:
                    sockets.append(parsed)

    def close(self) -> None:
        """Close the netlink sockets for open and for ended connections."""
        self._ask.close()
        self._ended.close()


def parse_socket(body: bytes) -> TcpSocket | None:
    """Decode an inet_diag_msg; return None if it lacks tcp_info or is of another address family."""
    if len(body) < _MESSAGE.size:
        return None
    family, _, _, _, sport, dport, source, peer, _, cookie, *_ = _MESSAGE.unpack_from(body)
    try:
        for kind, info in attributes(body, _MESSAGE.size):
            if kind == _INET_DIAG_INFO:
                return _socket_of(family, cookie, (source, sport), (peer, dport), info)
    except ValueError:  # truncated
        pass
    return None


def _socket_of(
    family: int, cookie: int, source: tuple[bytes, bytes], peer: tuple[bytes, bytes], info: bytes
) -> TcpSocket | None:
    if family not in (socket.AF_INET, socket.AF_INET6) or len(info) < 104:
        return None
    options, rtt_us, retransmits, _, limit, acked, segments, busy, receiver, buffer, sent = _INFO.unpack_from(
        info.ljust(_INFO_BYTES, b"\0")
    )
    four = family == socket.AF_INET or source[0].startswith(_MAPPED)
    header = 14 + (20 if four else 40) + 20 + (12 if options & _TIMESTAMPS else 0)
    return TcpSocket(
        cookie=cookie,
        source=_address(family, source[0]),
        source_port=int.from_bytes(source[1], "big"),
        peer=_address(family, peer[0]),
        peer_port=int.from_bytes(peer[1], "big"),
        bytes_sent=sent if len(info) >= 208 else acked,
        segments_sent=segments,
        header_bytes=header,
        retransmits=retransmits,
        rtt_us=rtt_us,
        busy_us=busy,
        receiver_limited_us=receiver,
        buffer_limited_us=buffer,
        rate_limit_bps=None if limit in (0, _NO_LIMIT, 0xFFFFFFFF) else limit * 8,
    )


def _address(family: int, raw: bytes) -> str:
    """Return an IP address as the inventory spells it: IPv4 also for an IPv4-mapped IPv6 address."""
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    if raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)

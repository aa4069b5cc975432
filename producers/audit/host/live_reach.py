"""Requests to other hosts for active checks: echo of a given size, TCP connection, one UDP datagram.

They return None if no answer comes, or if the network reports an error such as `no route`.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct
import time
from typing import Final

ANSWER_S: Final = 0.5
"""Longest wait for an answer; hosts of a cluster answer within milliseconds."""
CONNECT_S: Final = 1.5
"""Longest wait for a connection: enough to retransmit its first segment once."""
_IP_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 3  # linux/in.h: set DF, ignore a path MTU that was learnt
_HEADERS: Final = 28
_ECHO_REQUEST: Final = 8


def family_of(address: str) -> int:
    """Return the address family of an IP address. Raises ValueError for another text."""
    version = ipaddress.ip_address(address).version
    return int(socket.AF_INET6 if version == 6 else socket.AF_INET)


def is_reply(packet: bytes, identifier: int, sequence: int) -> bool:
    """Return whether an IPv4 packet is the reply to the echo request of this identifier and sequence."""
    if len(packet) < 20:
        return False
    begin = (packet[0] & 0xF) * 4
    if packet[0] >> 4 != 4 or begin < 20 or len(packet) < begin + 8:
        return False
    kind, code, _, number, order = struct.unpack_from("!BBHHH", packet, begin)
    return (kind, code, number, order) == (0, 0, identifier, sequence)


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo(opened: socket.socket, address: str, size: int) -> float | None:
    """Send an echo request as one IPv4 packet of `size` bytes; return the round trip, s, or None."""
    identifier, sequence = secrets.randbits(16), secrets.randbits(16)
    body = bytes(max(size - _HEADERS, 0))
    head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, identifier, sequence)
    request = struct.pack("!BBHHH", _ECHO_REQUEST, 0, _checksum(head + body), identifier, sequence) + body
    opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
    since_s = time.monotonic()
    try:
        opened.connect((address, 0))
        opened.send(request)
        while (left_s := since_s + ANSWER_S - time.monotonic()) > 0:
            opened.settimeout(left_s)
            if is_reply(opened.recv(1 << 16), identifier, sequence):
                return time.monotonic() - since_s
    except OSError:  # too large for the interface, unreachable, or too late
        pass
    return None


def connect(opened: socket.socket, address: str, port: int) -> float | None:
    """Return the seconds until the host accepts or refuses a TCP connection, or None."""
    opened.settimeout(CONNECT_S)
    since_s = time.monotonic()
    try:
        opened.connect((address, port))
    except ConnectionRefusedError:
        pass
    except OSError:
        return None
    return time.monotonic() - since_s


def exchange(opened: socket.socket, address: str, port: int, request: bytes) -> bytes | None:
    """Send a datagram and return the answer, or None."""
    opened.settimeout(CONNECT_S)
    try:
        opened.connect((address, port))
        opened.send(request)
        return opened.recv(1 << 16)
    except OSError:
        return None

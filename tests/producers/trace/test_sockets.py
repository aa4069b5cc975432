"""Sockets of the tracer: ICMP errors from the error queue."""

from __future__ import annotations

import random
import socket
import struct

from producers.trace.sockets import error_of


def sock_error(origin: int, type_: int, code: int, offender: bytes) -> bytes:
    return struct.pack("=IBBBBII", 113, origin, type_, code, 0, 0, 0) + offender


def test_icmp_errors_are_read_from_the_error_queue() -> None:
    v4 = struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton("10.0.0.1"))
    found = error_of([(socket.SOL_SOCKET, 37, b"x" * 48), (socket.SOL_IP, 11, sock_error(2, 11, 0, v4))])
    assert found is not None
    assert (found.type, found.hop) == (11, "10.0.0.1")
    v6 = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "fd00::7"), 0)
    found = error_of([(socket.IPPROTO_IPV6, 25, sock_error(3, 3, 0, v6))])
    assert found is not None
    assert (found.type, found.hop) == (3, "fd00::7")
    assert error_of([(socket.SOL_IP, 11, sock_error(4, 0, 0, b""))]) is None, "a transmit stamp"


def test_no_bytes_in_the_error_queue_do_any_harm() -> None:
    rng = random.Random(9)
    levels = [(socket.SOL_IP, 11), (socket.IPPROTO_IPV6, 25), (socket.SOL_SOCKET, 37), (0, 0)]
    for _ in range(5000):
        messages = [(*rng.choice(levels), rng.randbytes(rng.randrange(60))) for _ in range(rng.randrange(4))]
        found = error_of(messages)
        assert (
            found is None
            or found.hop is None
            or socket.inet_pton(socket.AF_INET6 if ":" in found.hop else socket.AF_INET, found.hop)
        )

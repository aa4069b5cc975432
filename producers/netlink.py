"""Encodes and decodes netlink messages (linux/netlink.h) and sends requests to the kernel, without a library.

pyroute2 would add 25 MB to every prober, and its decoder takes a millisecond for twelve sockets.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

ERROR: Final = 2
"""Type of the message with an error of the kernel, or with its consent."""
_DONE: Final = 3
_REQUEST, _REQUEST_DUMP = 0x1, 0x301
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERROR_CODE: Final = struct.Struct("=i")
_TYPE_MASK: Final = 0x3FFF
RECEIVE_BYTES: Final = 1 << 18
"""Size of a buffer that holds any message of the kernel."""

_sequence = itertools.count(1)


def open_netlink(
    protocol: int = socket.NETLINK_ROUTE, groups: int = 0, timeout_s: float | None = None
) -> socket.socket:
    """Return a netlink socket subscribed to the multicast groups in the mask `groups`. Raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        opened.settimeout(timeout_s)
        opened.bind((0, groups))
    except BaseException:
        opened.close()
        raise
    return opened


def ask(sock: socket.socket, kind: int, body: bytes) -> bytes:
    """Send a request for one object and return the body of the kernel's answer. Raises OSError."""
    return next(_answers(sock, kind, body, _REQUEST))


def dump(sock: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Send a request for all objects and yield the body of each message of the answer. Raises OSError."""
    return _answers(sock, kind, body, _REQUEST_DUMP)


def _answers(sock: socket.socket, kind: int, body: bytes, flags: int) -> Iterator[bytes]:
    """Send a request and yield the bodies of its answers; skip answers to earlier requests that timed out."""
    sequence = next(_sequence) & 0xFFFFFFFF
    sock.send(request(kind, body, flags, sequence))
    while True:
        for answer, of_sequence, answer_body in messages(sock.recv(RECEIVE_BYTES)):
            if of_sequence != sequence:
                continue
            if answer == _DONE:
                return
            if answer == ERROR:
                raise_error(answer_body)
            yield answer_body


def request(kind: int, body: bytes, flags: int = _REQUEST, sequence: int = 1) -> bytes:
    """Encode a netlink request: a message of type `kind` with the given body."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, sequence number, body) of each message in a datagram. Raises ValueError if truncated."""
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise ValueError(f"netlink: {len(data) - at} bytes left, expected a header of {_HEADER.size}")
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            raise ValueError(f"netlink: message of {length} bytes, {len(data) - at} left")
        yield kind, sequence, data[at + _HEADER.size : at + length]
        at += length + -length % 4


def raise_error(body: bytes) -> None:
    """Raise the OSError in a netlink error message; return for an ACK. Raises ValueError if truncated."""
    if len(body) < _ERROR_CODE.size:
        raise ValueError(f"netlink: error of {len(body)} bytes, expected {_ERROR_CODE.size}")
    code = -_ERROR_CODE.unpack_from(body)[0]
    if code:
        raise OSError(code, os.strerror(code))


def attribute(kind: int, value: bytes) -> bytes:
    """Encode a netlink attribute of type `kind`, padded to a multiple of 4 bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute from byte `at` of `data` on. Raises ValueError if truncated."""
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            raise ValueError(f"netlink: attribute of {length} bytes, {len(data) - at} left")
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4

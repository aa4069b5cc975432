"""Reads netlink dumps without an object per attribute: the recorder reads thousands of counters a second."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLA_TYPE_MASK = 0x3FFF


def dump(sock: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Send one dump request and yield the body of each message of the answer. Raises OSError."""
    sock.send(struct.pack("=IHHII", 16 + len(body), kind, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + body)
    while True:
        answer = sock.recv(1 << 18)
        at = 0
        while at + 16 <= len(answer):
            length, got = struct.unpack_from("=IH", answer, at)
            if got == _NLMSG_DONE:
                return
            if got == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", answer, at + 16)
                raise OSError(-code, f"netlink request {kind} failed")
            yield answer[at + 16 : at + length]
            at += length + 3 & ~3


def attributes(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the value of each attribute in `data`, from the offset `at` on."""
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & _NLA_TYPE_MASK, data[at + 4 : at + length]
        at += length + 3 & ~3

"""The packets of probes on UD queue pairs: what is in them, and that they are ours.

In: fields, or bytes with the addresses that they came with. Out: bytes, or `Packet`s. All kinds have one
length, so equal links delay them equally and no answer is larger than its question. Big endian:

    magic 'FU', version, kind, u32 seq, u64 run, u32 hash of the asked NIC's name, u32 0, i64 first,
    i64 second

and last 8 bytes of keyed BLAKE2b over source GID and queue pair, target GID and queue pair, and all of the
above: with SipHash, the UDP prober's, Python would be 50 times as slow. Knows no verbs.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import blake2b
from typing import Final, NamedTuple

__all__ = [
    "BYTES",
    "COLLECT",
    "FOLLOW_UP",
    "GRH_BYTES",
    "NO_STAMP",
    "REPLY",
    "REQUEST",
    "Address",
    "BadPacket",
    "Packet",
    "is_mapped",
    "name_hash",
    "pack",
    "parse",
    "q_key",
    "source_gid",
]

REQUEST: Final = 1
"""First: the asker's system clock."""
REPLY: Final = 2
"""First and second: t2 and t3; t3 is NO_STAMP where the NIC stamps, since it is not known yet."""
COLLECT: Final = 3
"""Asks for the follow-up of a request. First: the asker's system clock."""
FOLLOW_UP: Final = 4
"""First and second: t2 and t3."""
NO_STAMP: Final = -(1 << 63)

_MAGIC: Final = b"FU"
_VERSION: Final = 1
_BODY: Final = struct.Struct(">2sBBIQIIqq")
_ENDS: Final = struct.Struct(">16sI16sI")
_MAC_BYTES: Final = 8
BYTES: Final = _BODY.size + _MAC_BYTES
GRH_BYTES: Final = 40
_V4_PREFIX: Final = bytes(10) + b"\xff\xff"


class BadPacket(ValueError):
    """A packet that is none of ours. `reason`: malformed or bad_mac."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Address(NamedTuple):
    """Where a UD queue pair is reached: GID (16 bytes), LID (0 where there are none), queue pair number."""

    gid: bytes
    lid: int
    number: int


class Packet(NamedTuple):
    """What a packet says; ns."""

    kind: int
    seq: int
    run: int
    asked: int
    first: int
    second: int


def name_hash(nic: str) -> int:
    """Return the 32 bits that stand for a NIC's name in packets."""
    return int.from_bytes(blake2b(nic.encode(), digest_size=4, person=b"fabrictime nic").digest(), "big")


def q_key(key: bytes) -> int:
    """Return the Q_Key of the fleet's queue pairs: below 2^31, for those above are the kernel's alone."""
    digest = blake2b(key=key, digest_size=4, person=b"fabrictime qkey").digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF


def pack(packet: Packet, key: bytes, source: Address, target: Address) -> bytes:
    """Return the bytes of a packet from one queue pair to another."""
    kind, seq, run, asked, first, second = packet
    body = _BODY.pack(_MAGIC, _VERSION, kind, seq, run, asked, 0, first, second)
    return body + _mac(body, key, source, target)


def parse(data: bytes, key: bytes, source: Address, target: Address) -> Packet:
    """Return what a packet says. Raises BadPacket for what no member of the fleet sent between these two."""
    if len(data) != BYTES:
        raise BadPacket("malformed")
    body = data[: _BODY.size]
    magic, version, kind, seq, run, asked, zero, first, second = _BODY.unpack(body)
    if magic != _MAGIC or version != _VERSION or not REQUEST <= kind <= FOLLOW_UP or zero:
        raise BadPacket("malformed")
    if not hmac.compare_digest(data[_BODY.size :], _mac(body, key, source, target)):
        raise BadPacket("bad_mac")
    return Packet(kind, seq, run, asked, first, second)


def source_gid(header: bytes, mapped: bool) -> bytes | None:
    """Return the sender's GID from the 40 bytes before a UD payload: a GRH or an IPv6 header, or, where our
    own GID is a `mapped` IPv4 address, an IPv4 header in the last 20 of them. None where they are not."""
    if len(header) != GRH_BYTES or header[20 if mapped else 0] >> 4 != (4 if mapped else 6):
        return None
    return _V4_PREFIX + header[32:36] if mapped else header[8:24]


def is_mapped(gid: bytes) -> bool:
    """Return whether a GID is an IPv4 address."""
    return gid[:12] == _V4_PREFIX


def _mac(body: bytes, key: bytes, source: Address, target: Address) -> bytes:
    ends = _ENDS.pack(source.gid, source.number, target.gid, target.number)
    return blake2b(ends + body, key=key, digest_size=_MAC_BYTES, person=b"fabrictime ud").digest()

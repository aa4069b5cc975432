"""Encodes, authenticates and decodes the probe packets on UD queue pairs. This module does not use verbs.

All kinds have the same length, so that equal links delay them equally, and no answer is larger than its
request. The format is big endian:

    magic 'FU', version, kind, u32 seq, u64 run, u32 hash of the target NIC's name, u32 arrived, i64 first,
    i64 second

In a reply, `arrived` is the traffic class with which the request arrived, plus 256; in other packets it is 0.
Packets of version 1 have 0 in this field, and are answered in version 1.

A packet ends with 8 bytes of keyed BLAKE2b over source GID and queue pair, target GID and queue pair, and all
of the above. SipHash, which UDP probes use, would be 50 times slower in Python.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import blake2b
from typing import Final, NamedTuple

REQUEST: Final = 1
"""Kind of a request. Its field `first` is the prober's system clock."""
REPLY: Final = 2
"""Kind of a reply. Its fields are t2 and t3. With hardware timestamps t3 is unknown: NO_STAMP."""
COLLECT: Final = 3
"""Kind of a packet that requests the follow-up of a probe. Its field `first` is the prober's system clock."""
FOLLOW_UP: Final = 4
"""Kind of a follow-up. Its fields are t2 and t3."""
NO_STAMP: Final = -(1 << 63)

_MAGIC: Final = b"FU"
_VERSION: Final = 2
_BODY: Final = struct.Struct(">2sBBIQIIqq")
_ENDS: Final = struct.Struct(">16sI16sI")
_MAC_BYTES: Final = 8
_KNOWN: Final = 256
"""Added to a traffic class in `arrived`, so that 0 means not known."""
BYTES: Final = _BODY.size + _MAC_BYTES
GRH_BYTES: Final = 40
_V4_PREFIX: Final = bytes(10) + b"\xff\xff"


class BadPacket(ValueError):
    """Raised for a packet that no member of the fleet has sent. `reason` is malformed or bad_mac."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Address(NamedTuple):
    """Address of a UD queue pair: GID (16 bytes), LID (0 if the network has none), queue pair number."""

    gid: bytes
    lid: int
    number: int


class Packet(NamedTuple):
    """The fields of a packet, times in ns. `arrived`: traffic class of the answered request, if known."""

    kind: int
    seq: int
    run: int
    target_hash: int
    first: int
    second: int
    arrived: int | None = None
    version: int = _VERSION


def name_hash(nic: str) -> int:
    """Return the 32-bit hash of a NIC's name that packets carry."""
    return int.from_bytes(blake2b(nic.encode(), digest_size=4, person=b"fabrictime nic").digest(), "big")


def q_key(key: bytes) -> int:
    """Return the Q_Key of the fleet's queue pairs, below 2^31: higher values are reserved for the kernel."""
    digest = blake2b(key=key, digest_size=4, person=b"fabrictime qkey").digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF


def pack(packet: Packet, key: bytes, source: Address, target: Address) -> bytes:
    """Encode a packet from queue pair `source` to `target`, with its authentication code."""
    kind, seq, run, target_hash, first, second, arrived, version = packet
    returned = 0 if arrived is None or version < _VERSION else _KNOWN | arrived
    body = _BODY.pack(_MAGIC, version, kind, seq, run, target_hash, returned, first, second)
    return body + _mac(body, key, source, target)


def parse(data: bytes, key: bytes, source: Address, target: Address) -> Packet:
    """Decode a packet. Raises BadPacket unless a member of the fleet sent it from `source` to `target`."""
    if len(data) != BYTES:
        raise BadPacket("malformed")
    body = data[: _BODY.size]
    magic, version, kind, seq, run, target_hash, arrived, first, second = _BODY.unpack(body)
    if magic != _MAGIC or not 1 <= version <= _VERSION or not REQUEST <= kind <= FOLLOW_UP:
        raise BadPacket("malformed")
    if arrived and (version == 1 or arrived >> 8 != 1):
        raise BadPacket("malformed")
    if not hmac.compare_digest(data[_BODY.size :], _mac(body, key, source, target)):
        raise BadPacket("bad_mac")
    return Packet(kind, seq, run, target_hash, first, second, arrived & 255 if arrived else None, version)


def source_gid(header: bytes, mapped: bool) -> bytes | None:
    """Return the sender's GID from the 40 bytes before a UD payload; None if these bytes are invalid.

    The bytes are a GRH or an IPv6 header. If `mapped`, our own GID is an IPv4-mapped address, and the last 20
    bytes are an IPv4 header.
    """
    if len(header) != GRH_BYTES or header[20 if mapped else 0] >> 4 != (4 if mapped else 6):
        return None
    return _V4_PREFIX + header[32:36] if mapped else header[8:24]


def traffic_class_of(header: bytes, mapped: bool) -> int:
    """Return the byte of DSCP and ECN in the 40 bytes before a UD payload.

    If `mapped`, our own GID is an IPv4-mapped address, and the last 20 bytes are an IPv4 header.
    """
    return header[21] if mapped else (header[0] & 15) << 4 | header[1] >> 4


def is_mapped(gid: bytes) -> bool:
    """Return whether a GID is an IPv4-mapped IPv6 address."""
    return gid[:12] == _V4_PREFIX


def _mac(body: bytes, key: bytes, source: Address, target: Address) -> bytes:
    ends = _ENDS.pack(source.gid, source.number, target.gid, target.number)
    return blake2b(ends + body, key=key, digest_size=_MAC_BYTES, person=b"fabrictime ud").digest()

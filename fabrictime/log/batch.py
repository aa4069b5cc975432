"""Checks, stamps and reads record batches (Kafka's format 2) as bytes.

The payload is never copied: stamping changes the header in the receive buffer, and only compaction reads
single records. A broken batch raises LogError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from fabrictime.log.errors import Code, LogError

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size  # 61
LENGTH_BYTES: Final = 12
"""Size of the base offset and the length, which the length field does not count."""
CRC_START: Final = 21
"""Position from which on the checksum covers everything; the attributes start here."""

APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
CODEC_MASK: Final = 0x07
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
"""Compaction does not change a batch that inflates to more than this."""

_STAMP_HEAD = struct.Struct(">qii")
_STAMP_CRC = struct.Struct(">I")
_STAMP_ATTRIBUTES = struct.Struct(">h")
_STAMP_MAX_TIME = struct.Struct(">q")
_CODECS: Final = {1: cramjam.gzip, 2: cramjam.snappy, 3: cramjam.lz4, 4: cramjam.zstd}
_XERIAL: Final = b"\x82SNAPPY\x00"


class Header(NamedTuple):
    """The fixed header of a batch: all its fields, in the order of the file format."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Size of the whole batch, bytes."""
        return self.length + LENGTH_BYTES

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequence numbers wrap at 2**31."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One record of a batch. `raw` is its bytes, including the length field at their start."""

    raw: memoryview
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


def read_header(view: memoryview | bytes, position: int = 0) -> Header:
    """Return the header at `position`. Raises struct.error if there are too few bytes."""
    return Header._make(HEADER.unpack_from(view, position))


def check(view: memoryview, max_bytes: int) -> Header:
    """Check a producer's batch and return its header. Raises LogError for an invalid or too large batch."""
    size = len(view)
    if size < HEADER_BYTES:
        raise LogError(Code.CORRUPT_MESSAGE, f"record batch of {size} B, expected at least {HEADER_BYTES}")
    header = read_header(view)
    if header.magic != 2:
        raise LogError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"record format {header.magic}, expected 2")
    if header.length + LENGTH_BYTES != size:
        raise LogError(
            Code.INVALID_RECORD,
            f"{size} B hold a batch of {header.length + LENGTH_BYTES}, expected exactly one",
        )
    if size > max_bytes:
        raise LogError(Code.MESSAGE_TOO_LARGE, f"record batch of {size} B, the topic takes {max_bytes}")
    if crc32c(view[CRC_START:]) != header.crc:
        raise LogError(Code.CORRUPT_MESSAGE, "record batch fails its checksum")
    if header.attributes & (TRANSACTIONAL | CONTROL):
        raise LogError(Code.INVALID_RECORD, "transactions are not supported")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise LogError(
            Code.INVALID_RECORD,
            f"{header.record_count} records, last offset delta {header.last_offset_delta}: expected one each",
        )
    if (header.attributes & CODEC_MASK) > 4:
        raise LogError(Code.INVALID_RECORD, f"unknown codec {header.attributes & CODEC_MASK}")
    return header


def stamp(view: memoryview, base_offset: int, append_ms: int) -> None:
    """Set the offset, append time and checksum of the batch in `view`, in place."""
    _STAMP_HEAD.pack_into(view, 0, base_offset, len(view) - LENGTH_BYTES, 0)
    attributes = (view[21] << 8) | view[22] | APPEND_TIME
    _STAMP_ATTRIBUTES.pack_into(view, 21, attributes)
    _STAMP_MAX_TIME.pack_into(view, 35, append_ms)
    _STAMP_CRC.pack_into(view, 17, crc32c(view[CRC_START:]))


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than 10 bytes")


def records(payload: memoryview, count: int) -> Iterator[Record]:
    """Yield `count` records of an uncompressed payload. Raises ValueError or IndexError if it is broken."""
    position = 0
    for _ in range(count):
        start = position
        length, position = _varint(payload, position)
        end = position + length
        if length < 5 or end > len(payload):
            raise ValueError(f"record of {length} B, {len(payload) - position} left")
        timestamp_delta, position = _varint(payload, position + 1)
        offset_delta, position = _varint(payload, position)
        key_length, position = _varint(payload, position)
        key = None
        if key_length >= 0:
            if position + key_length > end:
                raise ValueError(f"key of {key_length} B, {end - position} left")
            key = bytes(payload[position : position + key_length])
            position += key_length
        value_length, position = _varint(payload, position)
        if position > end or value_length > end - position:
            raise ValueError(f"value of {value_length} B, {end - position} left")
        yield Record(payload[start:end], offset_delta, timestamp_delta, key, value_length >= 0)
        position = end
    if position != len(payload):
        raise ValueError(f"{len(payload) - position} B after the last of {count} records")


def require_keys(view: memoryview, header: Header) -> None:
    """Raise LogError if a batch for a compacted topic has a record without a key.

    Compressed batches are not checked: compaction later keeps their records without a key.
    """
    if header.attributes & CODEC_MASK:
        return
    try:
        for record in records(view[HEADER_BYTES:], header.record_count):
            if record.key is None:
                raise LogError(Code.INVALID_RECORD, "a record of a compacted topic has no key")
    except (ValueError, IndexError) as error:
        raise LogError(Code.INVALID_RECORD, f"not a record: {error}") from error


def inflate(payload: memoryview, codec: int) -> memoryview:
    """Return the uncompressed payload. Raises ValueError if the payload is broken or too large."""
    if codec == 0:
        return payload
    try:
        module = _CODECS[codec]
        if codec == 2:
            return memoryview(_unsnap(bytes(payload)))
        for capacity in (16 * len(payload) + 65536, MAX_INFLATED_BYTES):
            output = bytearray(min(capacity, MAX_INFLATED_BYTES))
            try:
                size = module.decompress_into(payload, output)
            except cramjam.DecompressionError:
                if capacity >= MAX_INFLATED_BYTES:
                    raise
                continue
            return memoryview(output)[:size]
    except (cramjam.DecompressionError, KeyError, struct.error, IndexError) as error:
        raise ValueError(f"codec {codec}: {error}") from error
    raise ValueError(f"codec {codec}: more than {MAX_INFLATED_BYTES} B")


def _unsnap(data: bytes) -> bytes:
    """Return uncompressed Snappy data. Kafka clients send one raw block, or several blocks with the headers
    of the Java client.
    """
    if not data.startswith(_XERIAL):
        return _unsnap_block(data)
    output, position = bytearray(), 16
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if size < 1 or position + size > len(data):
            raise ValueError(f"snappy block of {size} B")
        output += _unsnap_block(data[position : position + size])
        if len(output) > MAX_INFLATED_BYTES:
            raise ValueError(f"more than {MAX_INFLATED_BYTES} B")
        position += size
    return bytes(output)


def _unsnap_block(data: bytes) -> bytes:
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > MAX_INFLATED_BYTES:
        raise ValueError(f"snappy block that inflates to {size} B")
    return bytes(cramjam.snappy.decompress_raw(data))


def deflate(payload: bytes, codec: int) -> bytes:
    """Return the payload compressed with `codec`, a batch's codec number."""
    if codec == 0:
        return payload
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(payload))
    return bytes(_CODECS[codec].compress(payload))


def filtered(batch: memoryview, keep: Callable[[int, Record], bool]) -> bytes | memoryview | None:
    """Return the batch with only the records for which `keep(offset, record)` is true; None if none is left.

    Offsets, times and the producer's numbers do not change. If all records stay, the batch itself is
    returned. Raises ValueError or IndexError if the records cannot be read.
    """
    header = read_header(batch)
    codec = header.attributes & CODEC_MASK
    payload = inflate(batch[HEADER_BYTES:], codec)
    raw_records = [
        record.raw
        for record in records(payload, header.record_count)
        if keep(header.base_offset + record.offset_delta, record)
    ]
    if len(raw_records) == header.record_count:
        return batch
    if not raw_records:
        return None
    body = deflate(b"".join(raw_records), codec)
    head = bytearray(HEADER_BYTES)
    length = HEADER_BYTES - LENGTH_BYTES + len(body)
    HEADER.pack_into(head, 0, *header._replace(length=length, crc=0, record_count=len(raw_records)))
    _STAMP_CRC.pack_into(head, 17, crc32c(body, crc32c(head[CRC_START:])))
    return bytes(head) + body

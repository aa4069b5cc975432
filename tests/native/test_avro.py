"""Readers of Avro values: values at their limits, and refusals. Records: `tests/schemas/test_readers.py`."""

from __future__ import annotations

import struct

import pytest

from native.core import avro


def varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


LIMITS = [-(2**63), -1, 0, 1, 63, 64, 2**31, 2**63 - 1]


@pytest.mark.parametrize("value", LIMITS)
def test_numbers_of_64_bits(value: int) -> None:
    data = b"x" + varint(value) + b"y"
    assert avro.read(avro.number(), data, 1) == (value, len(data) - 1)
    assert avro.read(avro.number(value, value), data, 1)[0] == value
    for limits in ((None, value - 1), (value + 1, None)):
        if all(limit is None or -(2**63) <= limit < 2**63 for limit in limits):
            with pytest.raises(avro.Refused):
                avro.read(avro.number(*limits), data, 1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80" * 10 + b"\x01"])
def test_numbers_that_end_too_soon_or_are_too_long(data: bytes) -> None:
    with pytest.raises(avro.Refused):
        avro.read(avro.number(), data, 0)


@pytest.mark.parametrize("is_narrow", [False, True])
def test_reals(is_narrow: bool) -> None:
    def packed(value: float) -> bytes:
        return struct.pack("<f" if is_narrow else "<d", value)

    reader = avro.real(-1.5, 2, is_narrow)
    for value in (-1.5, -0.0, 0.25, 2.0):
        assert str(avro.read(reader, packed(value), 0)[0]) == str(value)
    for value in (-1.75, 2.25, float("nan"), float("inf"), float("-inf")):
        with pytest.raises(avro.Refused):
            avro.read(reader, packed(value), 0)
    with pytest.raises(avro.Refused):
        avro.read(reader, packed(1)[:-1], 0)
    with pytest.raises(ValueError, match="9007199254740993"):
        avro.real(None, 2**53 + 1)


def test_strings_are_tested_once_while_they_are_kept() -> None:
    tested: list[str] = []

    def passes(text: str) -> bool:
        tested.append(text)
        return "/" in text

    reader = avro.string(8, passes)
    for text in ("h1/eth0", "ä/ö", "h1/eth0", "h1/eth0"):
        data = text.encode()
        assert avro.read(reader, varint(len(data)) + data, 0)[0] == text
    assert tested == ["h1/eth0", "ä/ö"]
    for text in ("eth0", "h10/eth00"):  # not of the format, too long
        with pytest.raises(avro.Refused):
            avro.read(reader, varint(len(text)) + text.encode(), 0)


def test_strings_of_the_same_place_in_the_cache_stay_apart() -> None:
    reader = avro.string(512)
    texts = [f"h{number}/eth{number % 8}" for number in range(2_000)] + ["x" * 500, ""]
    for text in texts * 2:
        assert avro.read(reader, varint(len(text)) + text.encode(), 0)[0] == text


@pytest.mark.parametrize("data", [b"\x04\xc3\x28", b"\x06\xed\xa0\x80", b"\x03\xff", b"\x08abc", b"\x7f"])
def test_strings_that_are_none(data: bytes) -> None:
    with pytest.raises(avro.Refused):
        avro.read(avro.string(512), data, 0)


def test_unions_enums_booleans_and_bytes() -> None:
    optional = avro.optional(avro.boolean(), 0)
    assert [avro.read(optional, data, 0) for data in (b"\x00", b"\x02\x01", b"\x02\x00")] == [
        (None, 1),
        (True, 2),
        (False, 2),
    ]
    assert avro.read(avro.optional(avro.enum(["A", "B"]), 1), b"\x00\x02", 0) == ("B", 2)
    assert avro.read(avro.byte_string(3), b"\x06abc", 0) == (b"abc", 4)
    for reader, data in (
        (optional, b"\x04"),
        (optional, b"\x01"),
        (optional, b"\x02\x02"),
        (optional, b"\x02"),
        (avro.enum(["A"]), b"\x02"),
        (avro.enum(["A"]), b"\x01"),
        (avro.byte_string(2), b"\x06abc"),
    ):
        with pytest.raises(avro.Refused):
            avro.read(reader, data, 0)


def test_arrays_of_several_blocks() -> None:
    reader = avro.array_of(avro.number(), 3)
    assert avro.read(reader, b"\x04\x02\x04\x02\x06\x00", 0) == ([1, 2, 3], 6)
    for data in (
        b"\x08\x02\x02\x02\x02\x00",
        b"\x04\x02\x04\x04\x06\x06\x00",
        b"\x04\x02",
        b"\x01\x02\x02\x00",
    ):
        with pytest.raises(avro.Refused):
            avro.read(reader, data, 0)


def test_absurd_counts_end_with_the_bytes() -> None:
    with pytest.raises(avro.Refused):
        avro.read(avro.array_of(avro.number(), 2**62), varint(2**61) + b"\x02" * 9, 0)


def test_offsets_outside_of_the_bytes() -> None:
    for start in (-1, 2):
        with pytest.raises(ValueError, match="expected 0 to 1"):
            avro.read(avro.number(), b"\x02", start)


def test_records_need_readers() -> None:
    with pytest.raises(TypeError, match="expected a Reader"):
        avro.record(["value"], [None])  # type: ignore[list-item]

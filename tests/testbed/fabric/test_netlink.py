"""Attributes of netlink messages: every encoding is read back, and no bytes hang the reader."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.fabric.netlink import attributes


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=20)), max_size=6), st.binary(max_size=3))
def test_attributes_are_read_back_whatever_follows(given_attributes, rest) -> None:
    data = b""
    for kind, value in given_attributes:
        data += struct.pack("=HH", 4 + len(value), kind | 0x8000) + value + bytes(-len(value) % 4)
    assert list(attributes(b"head" + data + rest, 4)) == given_attributes


@given(st.binary(max_size=60))
def test_any_bytes_end(data: bytes) -> None:
    assert sum(4 + len(value) for _, value in attributes(data, 0)) <= len(data)

"""Netlink: every encoding is read back, truncated bytes are refused, and the kernel answers and refuses."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers import netlink
from producers.netlink import ask, attribute, attributes, dump, messages, open_netlink, raise_error, request

GETLINK, NEWLINK = 18, 16


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=20)), max_size=6), st.binary(max_size=3))
def test_attributes_are_read_back_whatever_follows(given_attributes, rest) -> None:
    data = b"".join(attribute(kind | 0x8000, value) for kind, value in given_attributes)
    assert list(attributes(b"head" + data + rest, 4)) == given_attributes


@given(st.lists(st.tuples(st.integers(16, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 5))))
def test_messages_are_read_back_and_truncated_ones_refused(given_messages) -> None:
    data = b"".join(request(kind, bytes(4 * size), 1, sequence) for kind, sequence, size in given_messages)
    assert list(messages(data)) == [(kind, seq, bytes(4 * size)) for kind, seq, size in given_messages]
    if data:
        with pytest.raises(ValueError, match="left"):
            list(messages(data[:-1]))


@given(st.binary(max_size=60))
def test_any_bytes_end(data: bytes) -> None:
    for read in (attributes, messages):
        with contextlib.suppress(ValueError):
            list(read(data))


def test_an_error_is_the_systems_own_and_consent_is_none() -> None:
    with pytest.raises(OSError, match="No such device") as raised:
        raise_error(struct.pack("=i", -errno.ENODEV) + bytes(16))
    assert raised.value.errno == errno.ENODEV
    raise_error(bytes(20))
    with pytest.raises(ValueError, match="error of 2 bytes, expected 4"):
        raise_error(bytes(2))


def test_the_kernel_answers_one_question_and_dumps_and_refuses() -> None:
    with open_netlink(timeout_s=2) as sock:
        loopback = ask(sock, GETLINK, struct.pack("=BxHiII", 0, 0, 1, 0, 0))
        assert dict(attributes(loopback, 16))[3] == b"lo\0"
        names = [dict(attributes(body, 16))[3] for body in dump(sock, GETLINK, bytes(16))]
        assert b"lo\0" in names
        with pytest.raises(OSError, match="No such device"):
            ask(sock, GETLINK, struct.pack("=BxHiII", 0, 0, 2**31 - 1, 0, 0))


def test_answers_to_earlier_requests_are_skipped() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernel:
        sequence = 1 + next(netlink._sequence)
        kernel.send(request(NEWLINK, b"old.", 0, sequence - 1) + request(NEWLINK, b"new.", 0, sequence))
        assert ask(ours, GETLINK, b"") == b"new."

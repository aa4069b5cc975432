"""Socket diagnosis: kernel messages are parsed, and no bytes do harm."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.flows.socket_diag import SockDiag, TcpSocket, parse_socket


def message(
    family: int,
    source: bytes,
    peer: bytes,
    *,
    info_bytes: int = 256,
    limit: int = 2**64 - 1,
    options: int = 1,
) -> bytes:
    """Return an inet_diag_msg with a struct tcp_info: 1,000 B sent in 3 segments, 900 B acknowledged."""
    info = bytearray(256)
    info[5] = options
    struct.pack_into("=I", info, 68, 250)
    struct.pack_into("=I", info, 100, 2)
    struct.pack_into("=QQ", info, 104, 0, limit)
    struct.pack_into("=Q", info, 120, 900)
    struct.pack_into("=I", info, 136, 3)
    struct.pack_into("=QQQ", info, 168, 50, 60, 70)
    struct.pack_into("=Q", info, 200, 1000)
    head = struct.pack(
        "=BBBB2s2s16s16sIQIIIII", family, 1, 0, 0, (4000).to_bytes(2), (80).to_bytes(2),
        source.ljust(16, b"\0"), peer.ljust(16, b"\0"), 0, 7, 0, 0, 0, 0, 0,
    )  # fmt: skip
    other = struct.pack("=HH", 9, 4) + b"cubic" + bytes(3)
    return head + other + struct.pack("=HH", 4 + info_bytes, 2) + bytes(info[:info_bytes])


A, B = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")


def test_counters_and_addresses_are_read() -> None:
    found = parse_socket(message(socket.AF_INET, A, B, limit=1_000_000))
    assert found == TcpSocket(7, "10.0.0.1", 4000, "10.0.0.2", 80, 1000, 3, 66, 2, 250, 50, 60, 70, 8_000_000)


def test_a_mapped_address_is_the_ipv4_one() -> None:
    mapped = bytes(10) + b"\xff\xff"
    found = parse_socket(message(socket.AF_INET6, mapped + A, mapped + B, options=0))
    assert found is not None
    assert (found.source, found.peer, found.header_bytes) == ("10.0.0.1", "10.0.0.2", 54)
    assert found.rate_limit_bps is None
    plain = parse_socket(message(socket.AF_INET6, b"\xfd" + bytes(14) + b"\x07", B))
    assert plain is not None
    assert (plain.source, plain.header_bytes) == ("fd00::7", 86)


def test_an_older_kernel_has_only_the_acknowledged_bytes() -> None:
    found = parse_socket(message(socket.AF_INET, A, B, info_bytes=192))
    assert found is not None
    assert found.bytes_sent == 900


def test_other_families_and_short_information_are_no_socket() -> None:
    assert parse_socket(message(socket.AF_UNIX, A, B)) is None
    assert parse_socket(message(socket.AF_INET, A, B, info_bytes=100)) is None


@given(st.integers(0, 200), st.binary(max_size=300))
def test_no_bytes_raise(size: int, rest: bytes) -> None:
    for body in (rest, message(socket.AF_INET, A, B)[:size] + rest):
        found = parse_socket(body)
        assert found is None or socket.inet_pton(
            socket.AF_INET6 if ":" in found.source else socket.AF_INET, found.source
        )


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_lists_a_connection_of_each_family(family: socket.AddressFamily, address: str) -> None:
    diag = SockDiag(None)
    try:
        with socket.socket(family) as listener:
            try:
                listener.bind((address, 0))
            except OSError as error:
                pytest.skip(f"{address}: {error.strerror}")
            listener.listen(1)
            with socket.create_connection(listener.getsockname()[:2]) as sender:
                port = sender.getsockname()[1]
                receiver, _ = listener.accept()
                with receiver:
                    sender.sendall(b"x" * 1000)
                    assert len(receiver.recv(1000, socket.MSG_WAITALL)) == 1000
                    [found] = [each for each in diag.open_sockets() if each.source_port == port]
        assert (found.source, found.bytes_sent) == (address, 1000)
    finally:
        diag.close()

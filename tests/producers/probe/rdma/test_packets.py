"""Packets on UD queue pairs: ours alone are read, whatever comes, and none is larger than its question."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.probe.rdma.packets import (
    BYTES,
    COLLECT,
    FOLLOW_UP,
    REPLY,
    REQUEST,
    Address,
    BadPacket,
    Packet,
    is_mapped,
    pack,
    parse,
    q_key,
    source_gid,
)

KEY = bytes(range(16))
A = Address(ipaddress.ip_address("::ffff:10.1.0.1").packed, 0, 17)
B = Address(ipaddress.ip_address("::ffff:10.2.0.1").packed, 0, 21)
int64 = st.integers(-(2**63), 2**63 - 1)
packets = st.builds(
    Packet,
    st.sampled_from([REQUEST, REPLY, COLLECT, FOLLOW_UP]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    int64,
    int64,
    st.one_of(st.none(), st.integers(0, 255)),
    st.just(2),
)


@given(packets)
def test_packets_round_trip_and_have_one_length(packet: Packet) -> None:
    data = pack(packet, KEY, A, B)
    assert parse(data, KEY, A, B) == packet
    assert len(data) == BYTES


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(BadPacket):
        parse(data, KEY, A, B)


@given(packets, st.integers(0, BYTES * 8 - 1))
def test_a_flipped_bit_is_refused(packet: Packet, bit: int) -> None:
    data = bytearray(pack(packet, KEY, A, B))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadPacket):
        parse(bytes(data), KEY, A, B)


@pytest.mark.parametrize(
    ("key", "source", "target"),
    [
        (bytes(16), A, B),
        (KEY[:15] + b"x", A, B),
        (KEY, B, A),
        (KEY, A._replace(number=18), B),
        (KEY, A, B._replace(number=22)),
        (KEY, A._replace(gid=bytes(16)), B),
    ],
)
def test_another_key_or_another_end_is_refused(key: bytes, source: Address, target: Address) -> None:
    data = pack(Packet(REQUEST, 1, 2, 3, 4, 5), KEY, A, B)
    with pytest.raises(BadPacket) as refused:
        parse(data, key, source, target)
    assert refused.value.reason == "bad_mac"


@given(st.binary(min_size=16, max_size=32))
def test_queue_pairs_have_a_key_of_their_own_that_user_space_may_set(key: bytes) -> None:
    assert 0 <= q_key(key) < 2**31, "above, only privileged programs may"


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=16, max_size=16))
def test_the_senders_gid_is_read_where_its_kind_of_network_puts_it(noise: bytes, gid: bytes) -> None:
    header = bytes([0x60]) + noise[1:8] + gid + noise[24:]
    assert source_gid(header, mapped=False) == gid
    four = noise[:20] + b"\x45" + noise[21:32] + bytes([10, 1, 0, 1]) + noise[36:]
    assert source_gid(four, mapped=True) == A.gid
    assert is_mapped(A.gid)
    assert source_gid(bytes([0x45]) + noise[1:], mapped=False) is None
    assert source_gid(header[:39], mapped=False) is None

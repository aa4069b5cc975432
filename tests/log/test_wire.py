"""Requests and responses as bytes: heads, bodies and fields, cut anywhere."""

from __future__ import annotations

import struct

import pytest
from aiokafka.protocol.metadata import MetadataResponse_v0
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.log import wire
from fabrictime.log.errors import MalformedRequest
from fabrictime.log.wire import Api, Reader, read_head

COMMIT = {
    "consumer_group": "g",
    "consumer_group_generation_id": 3,
    "consumer_id": "m",
    "retention_time": -1,
    "topics": [{"topic": "t", "partitions": [{"partition": 0, "offset": 2**40, "metadata": "note"}]}],
}


@given(data=st.binary(max_size=40))
def test_heads_of_any_bytes(data):
    try:
        head = read_head(memoryview(data))
    except MalformedRequest:
        return
    assert head.body <= len(data)


@given(client=st.text(max_size=20), key=st.integers(0, 40), number=st.integers(-(2**31), 2**31 - 1))
def test_a_head_is_read_back(client, key, number):
    name = client.encode()
    frame = struct.pack(">hhih", key, 2, number, len(name)) + name + b"body"
    head = read_head(memoryview(frame))
    assert head == (key, 2, number, client, len(frame) - 4)


def test_a_body_is_read_whole_or_refused():
    schema = wire.LAYOUTS[Api.OFFSET_COMMIT][2].request
    body = schema.encode(wire._ordered(schema, COMMIT))
    assert wire.decode(Api.OFFSET_COMMIT, 2, body) == COMMIT
    for cut in range(len(body)):
        with pytest.raises(MalformedRequest, match="OFFSET_COMMIT version 2"):
            wire.decode(Api.OFFSET_COMMIT, 2, body[:cut])
    with pytest.raises(MalformedRequest, match="too many"):
        wire.decode(Api.OFFSET_COMMIT, 2, body + b"x")


def test_a_response_leaves_out_fields_that_its_version_lacks():
    broker = {"node_id": 1, "host": "127.0.0.1", "port": 9092, "rack": None}
    fields = {"brokers": [broker], "controller_id": 1, "cluster_id": "c", "topics": []}
    read = MetadataResponse_v0.decode(wire.encode(Api.METADATA, 0, fields))
    assert read.brokers == [(1, "127.0.0.1", 9092)]
    assert wire.encode(Api.METADATA, 5, fields)[:4] == bytes(4), "throttling is always 0"


def test_a_reader_names_the_bytes_that_are_missing_or_too_many():
    reader = Reader(memoryview(b"\x00\x02ok\xff\xff\x00\x00\x00\x07rest"))
    assert (reader.string(), reader.string(), reader.int32()) == ("ok", None, 7)
    with pytest.raises(MalformedRequest, match="4 B too many"):
        reader.done()
    with pytest.raises(MalformedRequest, match="9 B announced, 4 there"):
        reader.raw(9)
    with pytest.raises(MalformedRequest, match="not UTF-8"):
        Reader(memoryview(b"\x00\x01\xff")).string()

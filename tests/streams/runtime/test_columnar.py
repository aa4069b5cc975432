"""Columns of numbers on the wire: the codec's bytes and errors for any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core.arrays import BadArray, decode_arrays, encode_arrays
from schemas import codec
from schemas.records import PathQueueing, Reject
from streams.runtime.columnar import decode_columnar, encode_columnar
from tests.examples import examples

NAME = "PathQueueing"
ROWS = ("nic", "peer", "path", "direction", "singles", "idle", "lost", "cells")
WHOLE = st.integers(0, 2**31 - 1)


def columns_of(record):
    return {field: column for field, column in record.items() if isinstance(column, list | np.ndarray)}


@st.composite
def queueing(draw):
    rows, cells = draw(st.integers(0, 4)), draw(st.integers(0, 5))

    def many(of, count):
        return draw(st.lists(of, min_size=count, max_size=count))

    narrow = st.floats(-(2**30), 2**30, width=32)
    return {
        "shard": draw(st.sampled_from(["fabric", "pod 1", ""])),
        "source": "fabric.probes/0",
        "first_offset": draw(WHOLE),
        "next_offset": draw(WHOLE),
        "part": 0,
        "parts": 1,
        "complete_ns": 5,
        "start_ns": draw(st.integers(-(2**62), 2**62)),
        "slot_ns": 250_000,
        "synced": draw(st.booleans()),
        "nics": ["h1/eth1", "h2/eth1"],
        **{name: many(st.integers(0, 3), rows) for name in ROWS},
        "dscp": many(st.integers(0, 63), rows),
        "floor_ns": many(st.floats(-1e11, 1e11), rows),
        "noise_ns": many(st.floats(0, 1e9, width=32), rows),
        "slot": many(st.integers(0, 10**7), cells),
        "count": many(st.integers(0, 10**7), cells),
        "min_ns": many(narrow, cells),
        "mean_ns": many(narrow, cells),
        "at_ns": many(st.integers(0, 10**7), cells),
        "ce": many(st.integers(0, 10**7), cells),
    }


@given(queueing())
def test_bytes_and_records_are_those_of_the_codec(record):
    value = encode_columnar(PathQueueing, record)
    assert value == codec.encode(NAME, record)
    found = decode_columnar(value, PathQueueing)
    wanted = codec.decode(value, NAME)
    assert found.keys() == wanted.keys()
    for field, column in wanted.items():
        assert list(found[field]) == column if isinstance(column, list) else found[field] == column
    assert found["slot"].dtype == np.int64
    assert found["floor_ns"].dtype == np.float64
    assert found["mean_ns"].dtype == np.float32


@settings(max_examples=examples(500))
@given(queueing(), st.data())
def test_damaged_messages_have_the_same_result_as_in_the_codec(record, data):
    value = bytearray(codec.encode(NAME, record))
    at = data.draw(st.integers(codec.HEADER_BYTES, len(value) - 1))
    match data.draw(st.sampled_from(["cut", "flip", "add", "put"])):
        case "cut":
            value = value[:at]
        case "flip":
            value[at] ^= data.draw(st.integers(1, 255))
        case "add":
            value += data.draw(st.binary(min_size=1, max_size=3))
        case "put":
            value[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    verdicts = []
    for decode in (codec.decode, decode_columnar):
        try:
            verdicts.append(
                {
                    f: list(v) if f in columns_of(record) else v
                    for f, v in decode(bytes(value), PathQueueing).items()
                }
            )
        except codec.BadRecord as error:
            verdicts.append(None if error.reason else error)
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("slot", [-1], "OUT_OF_RANGE"),
        ("slot", [2**31], "OUT_OF_RANGE"),
        ("mean_ns", [float("nan")], "OUT_OF_RANGE"),
        ("noise_ns", [-1.0], "OUT_OF_RANGE"),
        ("count", [1] * (codec.MAX_ARRAY + 1), "TOO_LARGE"),
    ],
)
def test_invalid_column_values_are_refused(field, value, reason):
    cells = ("slot", "count", "min_ns", "mean_ns", "at_ns", "ce")
    columns = {name: [] for name in (*ROWS, "dscp", "floor_ns", "noise_ns", *cells)}
    record = {
        "shard": "",
        "source": "s",
        "first_offset": 0,
        "next_offset": 1,
        "part": 0,
        "parts": 1,
        "start_ns": 0,
        "slot_ns": 1,
        "complete_ns": 0,
        "synced": True,
        "nics": [],
        **columns,
        field: value,
    }
    with pytest.raises(codec.BadRecord) as caught:
        decode_columnar(encode_columnar(PathQueueing, record), PathQueueing)
    assert caught.value.reason == reason
    assert field in str(caught.value)


def test_other_records_and_other_writers_are_refused():
    with pytest.raises(codec.BadRecord, match="message holds a Reject"):
        decode_columnar(codec.SINGLE_OBJECT + codec.fingerprint_of("Reject") + b"\0", PathQueueing)
    with pytest.raises(ValueError, match="arrays of numbers"):
        encode_columnar(Reject, {})


def test_blocks_with_sizes_and_several_blocks_are_read():
    one = encode_arrays([np.array([7, 8], np.int64)], "i")[:-1]
    sized = bytes([3, 4, 18, 20])  # a count of -2, 4 bytes of block size, then 9 and 10
    (found,) = decode_arrays(one + sized + b"\0", 0, "i", 10)
    assert found.tolist() == [7, 8, 9, 10]
    with pytest.raises(BadArray, match="at most 3"):
        decode_arrays(one + sized + b"\0", 0, "i", 3)


def test_an_excessive_count_allocates_nothing():
    for count in (b"\xfe\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01"):
        with pytest.raises(BadArray):
            decode_arrays(count, 0, "i", 65_536)
    with pytest.raises(BadArray) as caught:
        decode_arrays(b"\xc8\x01\x00", 0, "d", 65_536)
    assert caught.value.reason == "TRUNCATED"

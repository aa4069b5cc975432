"""The reader against segments that nobody vouches for, and against its own death."""

from __future__ import annotations

import os
import struct
import subprocess
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.collectives.reader import (
    ALGORITHMS,
    EVENT,
    FUNCTIONS,
    PROTOCOLS,
    Reader,
    SegmentError,
)
from schemas.records import CollectiveFunction
from tests.examples import examples

LIMIT = 2**46


def test_events_arrive_once_and_in_order(segment):
    made = segment(rings=2, events=64)
    reader = made.reader()
    seen = []
    for operation in range(1, 1001):
        made.put(operation % 2, operation)
        if operation % 50 == 0:
            seen += reader.drain()["operation"].tolist()
            reader.commit()
    assert sorted(seen) == list(range(1, 1001))
    assert [n for n in seen if n % 2] == list(range(1, 1001, 2))
    assert reader.counters().invalid == 0


def test_drain_respects_its_limit_and_starves_no_ring(segment):
    made = segment(rings=3, events=64)
    reader = made.reader()
    for n in range(3):
        for operation in range(60):
            made.put(n, n * 1000 + operation)
    seen = []
    for _ in range(18):
        part = reader.drain(10)
        assert len(part) == 10
        seen.append(int(part["operation"][-1]) // 1000)
    assert set(seen[:3]) == {0, 1, 2}
    assert len(reader.drain(10)) == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "drain", "commit", "rewind", "restart"]), st.integers(0, 40))
    )
)
def test_uncommitted_events_are_read_again_and_committed_ones_never(segment, steps):
    made = segment(rings=2, events=64)
    reader = made.reader()
    put = read = committed = 0
    for step, n in steps:
        if step == "put":
            for _ in range(min(n, 64 - (put - committed))):
                put += 1
                made.put(0, put)
        elif step == "drain":
            part = reader.drain(n)["operation"].tolist()
            assert part == list(range(read + 1, min(read + n, put) + 1))
            read += len(part)
        elif step == "commit":
            reader.commit()
            committed = read
        else:
            read = committed
            if step == "rewind":
                reader.rewind()
            else:
                reader.close()
                reader = made.reader()
        assert made.tail(0) == committed


@pytest.mark.parametrize(
    ("offset", "form", "value", "text"),
    [
        (0, "<8s", b"FTCOLL2", "magic"),
        (8, "<I", 1, "version"),
        (12, "<I", 9, "source"),
        (16, "<Q", 2**40, "size"),
        (24, "<I", 0, "rings"),
        (24, "<I", 257, "rings"),
        (24, "<I", 3, "size"),
        (28, "<I", 0, "events of a ring"),
        (28, "<I", 65, "events of a ring"),
        (28, "<I", 2**31, "events of a ring"),
        (28, "<I", 128, "size"),
    ],
)
def test_a_wrong_header_is_refused(segment, offset, form, value, text):
    made = segment()
    struct.pack_into(form, made.map, offset, value)
    with pytest.raises(SegmentError, match=text):
        made.reader()


@pytest.mark.parametrize("seals", [0, 2, 4])
def test_a_segment_that_can_shrink_or_grow_is_refused(segment, seals):
    with pytest.raises(SegmentError, match="sealed"):
        segment(seals=seals).reader()


def test_other_descriptors_are_refused(segment, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(100_000))
    ends = os.pipe()
    tiny = segment(size=4095)
    others = [os.open(plain, os.O_RDWR), os.open("/dev/zero", os.O_RDWR), os.open("/", os.O_PATH)]
    for fd in (*ends, *others):
        with pytest.raises(SegmentError, match="sealed"):
            Reader(fd)
        os.close(fd)
    with pytest.raises(SegmentError, match="4095 bytes"):
        Reader(tiny.fd)
    with pytest.raises(OSError):
        Reader(-1)


def test_a_read_only_descriptor_is_refused(segment):
    made = segment()
    fd = os.open(f"/proc/self/fd/{made.fd}", os.O_RDONLY)
    with pytest.raises(SegmentError, match="read and write"):
        Reader(fd)
    os.close(fd)


@pytest.mark.parametrize("head", [-1, 65, 2**40, 2**64 - 1])
def test_a_wild_head_costs_only_its_own_ring(segment, head):
    made = segment(rings=2, events=64)
    made.put(1, 7)
    made.head(0, head)
    reader = made.reader()
    assert reader.drain()["operation"].tolist() == [7]
    assert reader.counters().invalid == 1
    assert len(reader.drain()) == 0
    assert reader.counters().invalid == 1, "counted once"


def test_a_head_that_runs_cannot_hold_the_reader(segment):
    made = segment(rings=1, events=64)
    reader = made.reader()
    for n in range(200):
        made.head(0, n * 2**33)
        assert len(reader.drain()) == 0
    assert reader.counters().invalid >= 199


@pytest.mark.parametrize("used", [3, 257, 2**32, 2**64 - 1])
def test_more_rings_than_there_are_do_not_exist(segment, used):
    made = segment(rings=2)
    made.used(used)
    made.put(1, 5)
    reader = made.reader()
    assert reader.counters().rings == 2
    assert reader.drain()["operation"].tolist() == [5]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 0},
        {"kind": 5},
        {"function": len(FUNCTIONS)},
        {"algorithm": len(ALGORITHMS)},
        {"protocol": len(PROTOCOLS)},
        {"communicator": 4096},
        {"peer": -2},
        {"peer": 2**24},
        {"begin_raw_ns": 0},
        {"begin_raw_ns": 2**62, "end_raw_ns": 2**62},
        {"begin_raw_ns": -5},
        {"end_raw_ns": 1},
        {"end_raw_ns": 0},
        {"end_raw_ns": 2**62},
        {"kind": 1},
        {"bytes": LIMIT + 1},
        {"bytes": -1},
        {"sequence": 2**62 + 1},
        {"sequence": -1},
        {"tag": -1},
        {"gpu_late_ns": LIMIT},
        {"peer_late_ns": -1},
        {"network_late_ns": LIMIT},
        {"flush_ns": 2**62},
        {"kind": 3, "steps": 1, "sampled": 2},
        {"kind": 4, "device": 64},
        {"kind": 4, "queue_pair": 2**24},
        {"kind": 4, "min_ns": 2, "max_ns": 1},
        {"kind": 4, "posted": 10**9 + 1},
    ],
)
def test_an_event_that_no_correct_writer_writes_is_left_out(segment, fields):
    made = segment()
    reader = made.reader()
    made.put(0, 1)
    made.put(0, 2, **fields)
    made.put(0, 3)
    assert reader.drain()["operation"].tolist() == [1, 3]
    assert reader.counters().invalid == 1


@settings(max_examples=examples(500), deadline=None)
@given(data=st.binary(min_size=128, max_size=128))
def test_accepted_events_are_within_the_limits(segment, data):
    made = segment(rings=1)
    event = np.frombuffer(bytearray(data), EVENT)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    event["begin_raw_ns"] %= now
    made.slots(0)[:1] = event
    made.head(0, 1)
    for each in made.reader().drain():
        assert 0 < each["begin_raw_ns"] <= now + 10**9
        assert 0 <= each["bytes"] <= LIMIT
        assert 0 <= each["sequence"] <= 2**62
        assert -1 <= each["peer"] < 2**24
        FUNCTIONS[each["function"]], ALGORITHMS[each["algorithm"]], PROTOCOLS[each["protocol"]]


def test_texts_are_printable_and_end(segment):
    made = segment()
    made.map[48 : 48 + 128] = "训".encode() + b"\xff\n" + b"x" * 123
    communicator = 4096
    made.map[communicator : communicator + 256] = struct.pack(
        "<IIIIQ128s32sI68s", 1, 0, 2**24, 0, 5, b"y" * 128, b"z" * 32, 1, b""
    )
    made.map[communicator + 256 : communicator + 264] = struct.pack("<II", 1, 2**31)
    struct.pack_into("<Q", made.map, 400, 2)
    reader = made.reader()
    assert reader.job == "训\\xff\\x0a" + "x" * 122
    (only,) = reader.communicators().values()
    assert (only.name, only.gpu, only.ranks) == ("y" * 127, "z" * 31, 2**24)


def test_a_sparse_segment_costs_no_memory(segment):
    made = segment(rings=128, events=65536 // 2)
    for n in range(128):
        made.head(n, 32768)
    before = os.fstat(made.fd).st_blocks
    reader = made.reader()
    assert len(reader.drain(2**17)) == 0
    assert reader.counters().invalid == 2**17
    assert os.fstat(made.fd).st_blocks - before <= 128 * 8


def test_names_are_those_of_the_schema():
    assert list(FUNCTIONS) == [each.name for each in CollectiveFunction]


def test_two_million_events_a_second_are_drained(job):
    job.listen()
    job.environment["FABRICTIME_COLLECTIVES_EVENTS"] = "65536"
    job.start("2", "65536")
    reader = Reader(job.accept())
    assert job.line() == "put 0"
    rates = []
    for _ in range(5):
        begin = time.thread_time()
        count = len(reader.drain(2**17))
        rates.append(count / (time.thread_time() - begin))
        assert count == 2**17
        reader.rewind()
    assert max(rates) > 2e6


@pytest.mark.slow("compiles with sanitizers")
def test_no_sanitizer_reports_an_error(sanitized):
    program = sanitized("fuzz.c", ("reader.c",), "address,undefined")
    ran = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr[-6000:]
    assert ran.stdout == "clean\n"

"""Any bytes in the file: an error of the package, or the answer of a valid page."""

import os
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.clock import page as writer
from actuators.clock.page import PageFile
from fabrictime_client import Clock, ClockError, _page
from native.core.hostclock import raw_ns
from tests.examples import examples

MAX_INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def valid_page(made, tmp_path_factory):
    """The bytes of a valid page."""
    path = tmp_path_factory.mktemp("sound") / "clock"
    file = PageFile(path, "h1")
    file.write(made.content())
    file.close()
    return path.read_bytes()


def answers(data):
    """The answers of a new reader for a file with `data`; None for its own error."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "clock")
        with open(path, "wb") as file:
            file.write(data)
        try:
            clock = Clock(path)
        except ClockError:
            return None
        found = []
        for ask in (clock.now, lambda: clock.convert(1, "ptp0"), clock.state, clock.status):
            try:
                found.append(ask())
            except ClockError:
                found.append(None)
        clock.close()
        return found


@settings(max_examples=examples(500))
@given(st.binary(max_size=300), st.sampled_from([0, 300, 20480]))
def test_rubbish_is_refused(data, size):
    assert answers(data.ljust(size, b"\0")) is None


@settings(max_examples=examples(500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 20479), st.integers(1, 255)), min_size=1, max_size=8))
def test_a_corrupt_page_gives_the_right_answer_or_none(valid_page, changes):
    """Checksums cover all relevant bytes: a change is detected or irrelevant."""
    data = bytearray(valid_page)
    for at, change in changes:
        data[at] ^= change
    found = answers(bytes(data))
    if found is None or found[0] is None:
        return
    right = answers(valid_page)
    assert abs(found[0].time_ns - right[0].time_ns) < 10**9
    assert found[2] == right[2]
    assert found[3].host == "h1"


@settings(max_examples=examples(500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20480))
def test_page_cut_short_is_refused(valid_page, size):
    assert (answers(valid_page[:size]) is None) == (size < 20480)


numbers = st.floats() | st.sampled_from([0.0, -1.0, 1e300, float("inf"), float("nan")])
wholes = st.integers(-(2**63), MAX_INT64)


@settings(max_examples=examples(500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
    st.tuples(wholes, wholes),
    st.tuples(numbers, numbers),
    wholes,
    st.tuples(numbers, numbers, numbers),
    st.tuples(wholes, wholes, wholes),
    st.integers(0, 2**32 - 1),
    st.tuples(wholes, numbers, numbers, numbers, numbers, numbers, wholes),
)
def test_absurd_numbers_with_valid_checksums_never_crash_a_reader(
    valid_page, reader, state, flags, at, rates, slew_end, bounds, ends, clocks, row
):
    """A faulty writer, in C and in Python: an error, UNSYNCED, or valid numbers."""
    tables = bytearray(writer.COPY_BYTES - writer.MODEL.size)
    struct.pack_into("<64sIIqdddddq", tables, 0, b"ptp0", state % 4, 0, *row)
    body = writer.MODEL.pack(
        0,
        state % 4 if state % 2 else state,
        flags,
        *at,
        *rates,
        slew_end,
        *bounds,
        *ends,
        0,
        0,
        0,
        0,
        clocks % 40 if clocks % 2 else clocks,
        0,
        zlib.crc32(tables),
        10_000,
        0,
        2**32 - 1,
        0,
        b"",
        b"",
    )[4:]
    copy = zlib.crc32(body).to_bytes(4, "little") + body + bytes(tables)
    data = valid_page[:320] + 2 * copy
    data = data.ljust(20480, b"\0")
    found = answers(data)
    if found is not None and found[0] is not None:
        assert 0 <= found[0].bound_ns <= 10**18 + 2
        assert abs(found[0].time_ns) < 2**64
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clock"
        path.write_bytes(data)
        in_c = reader("now", path)
        reader("convert", path, "ptp0", row[0] if abs(row[0]) < 2**62 else 5)
    if found is None:
        assert in_c[0] in (-2, 0, 1, 2)
    elif found[0] is not None and len(in_c) > 1 and in_c[0] > 0:
        assert in_c[2] > 0


def test_layout_constants_are_consistent():
    assert _page.MODEL.size == _page.MODEL_BYTES
    assert (
        _page.MODEL_BYTES + _page.CLOCKS * _page.CLOCK.size + _page.NICS * _page.NIC.size == _page.COPY_BYTES
    )
    assert raw_ns() > 0

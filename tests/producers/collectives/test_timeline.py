"""The timeline: exact nanoseconds between readings, and the page of a host."""

from __future__ import annotations

import time

import numpy as np
import pytest

from actuators.clock.page import Content, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from producers.collectives.timeline import ClockReading, HostClock, Timeline
from schemas.records import ClockSync

OFFSET = 1_700_000_000_000_000_001
SYNCED, HOLDOVER, UNSYNCED = ClockSync.SYNCED, ClockSync.HOLDOVER, ClockSync.UNSYNCED


def filled(*pairs, state=SYNCED):
    timeline = Timeline()
    for raw_ns, shift_ns in pairs:
        timeline.add(ClockReading(raw_ns, raw_ns + OFFSET + shift_ns, 100.0, state))
    return timeline


def fabric(timeline, *raw_ns):
    return [
        int(ns) - OFFSET - raw for ns, raw in zip(timeline.to_fabric(np.array(raw_ns)), raw_ns, strict=True)
    ]


def test_times_are_exact_between_and_beyond_readings():
    raw = 5_000_000_000_000_001
    timeline = filled((raw, 0), (raw + 1_000_000_000, 1000))
    assert fabric(timeline, raw, raw + 500_000_000, raw + 1_000_000_000) == [0, 500, 1000]
    assert fabric(timeline, raw - 10**12, raw + 10**12) == [0, 1000]


def test_old_readings_thin_out_to_one_a_second():
    timeline = filled(*((number * 50_000_000, number) for number in range(4000)))
    assert fabric(timeline, 3999 * 50_000_000, 3950 * 50_000_000) == [3999, 3950]
    assert fabric(timeline, 3000 * 50_000_000 + 25_000_000) == [3000]
    assert fabric(timeline, 0) == [fabric(timeline, 1000)[0]], "before all readings"


def test_the_first_synchronised_reading_starts_a_new_timeline():
    timeline = filled((1000, 0), state=UNSYNCED)
    timeline.add(ClockReading(2000, 2000 + OFFSET + 5_000_000, 50.0, SYNCED))
    timeline.add(ClockReading(3000, 3000 + OFFSET + 5_000_000, 50.0, HOLDOVER))
    assert fabric(timeline, 1000, 2500) == [5_000_000, 5_000_000]
    assert timeline.last.state is HOLDOVER


def test_an_empty_timeline_has_no_times():
    with pytest.raises(ValueError, match="no reading of the clock yet"):
        Timeline().to_fabric(np.array([1]))


def test_without_a_page_times_are_those_of_the_system(tmp_path):
    clock = HostClock(tmp_path / "none")
    before_ns = time.time_ns()
    reading = clock.read()
    assert (reading.state, reading.bound_ns) == (UNSYNCED, 0.0)
    assert before_ns <= reading.fabric_ns <= time.time_ns()
    clock.close()


def test_a_page_gives_fabric_time_with_its_bound(tmp_path):
    file = PageFile(tmp_path / "clock", "h1", "owner")
    raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    model = RawClockModel(raw_ns, OFFSET, 0.0, 250.0, 0.0, 0.0)
    later_ns = raw_ns + 10**12
    file.write(Content(SYNCED, SlewedModel(model), later_ns, later_ns, later_ns, raw_ns))
    clock = HostClock(tmp_path / "clock")
    reading = clock.read()
    assert reading.state is SYNCED
    assert abs(reading.fabric_ns - OFFSET - (reading.raw_ns - raw_ns)) <= reading.bound_ns - 250
    clock.close()
    file.close()

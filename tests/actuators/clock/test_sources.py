"""Reading this machine's clocks: brackets, PTP devices with simulated ioctls, test clocks."""

import errno
import fcntl
import time

import pytest

from actuators.clock import sources
from actuators.clock.sources import (
    PTP_SYS_OFFSET,
    PTP_SYS_OFFSET_EXTENDED,
    PhcDevice,
    Sources,
    cross_timestamp_system,
    parse_offset,
    parse_offset_extended,
    shortest,
    through,
)
from actuators.clock.timescale import CrossTimestamp
from actuators.settings import TestClockSettings
from native.core.hostclock import raw_ns
from native.core.probe import TestClock

S = 1_000_000_000


def answer(times, reads):
    data = bytearray(reads.to_bytes(4, "little") + bytes(12))
    for ns in times:
        data += (ns // S).to_bytes(8, "little", signed=True) + (ns % S).to_bytes(4, "little") + bytes(4)
    return bytes(data)


def test_ioctl_numbers_are_those_of_the_kernel(tmp_path):
    """From linux/ptp_clock.h on a 64-bit machine."""
    assert PTP_SYS_OFFSET_EXTENDED == 0xC4C03D09
    assert PTP_SYS_OFFSET == 0x43403D05


def test_shortest_bracket_is_taken_and_its_half_is_the_error():
    reads = parse_offset_extended(answer([100, 5 * S, 900, 1000, 5 * S + 900, 1200, 1300, 7, 1290], 3))
    assert reads == [(100, 5 * S, 900), (1000, 5 * S + 900, 1200), (1300, 7, 1290)]
    assert shortest(reads) == (1100, 5 * S + 900, 100.5)
    alternating = parse_offset(answer([100, 5 * S, 900, 5 * S + 700, 1100], 2))
    assert alternating == [(100, 5 * S, 900), (900, 5 * S + 700, 1100)]
    assert shortest(alternating) == (1000, 5 * S + 700, 100.5)
    with pytest.raises(ValueError, match="1 readings"):
        shortest([(10, 5, 9)])


@pytest.fixture
def ptp(tmp_path, monkeypatch):
    """A /dev/ptp0 with simulated ioctls: 37 s ahead of the system clock, read in 400 ns."""
    device = tmp_path / "ptp0"
    device.write_bytes(b"")
    state = {"extended": True, "error": None, "asked": []}

    def ioctl(fd, request, data):
        state["asked"].append(request)
        if state["error"] is not None:
            raise OSError(state["error"], "refused")
        now = time.time_ns()
        if request == PTP_SYS_OFFSET_EXTENDED:
            if not state["extended"]:
                raise OSError(errno.EOPNOTSUPP, "not supported")
            times = [t for _ in range(10) for t in (now - 200, now + 37 * S, now + 200)]
        else:
            times = [now - 200, *(t for _ in range(10) for t in (now + 37 * S, now + 200))]
        found = answer(times, 10)
        data[: len(found)] = found

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return device, state


def test_ptp_clock_is_read_by_the_newer_call_and_else_by_the_older(ptp):
    device, state = ptp
    phc = PhcDevice(device)
    system, clock, half = phc.read()
    assert (clock - system, half) == (37 * S, 200.5)
    state["extended"] = False
    system, clock, half = phc.read()
    assert (clock - system, half) == (37 * S + 200, 200.5) or half <= 200.5
    phc.read()
    assert state["asked"] == [
        PTP_SYS_OFFSET_EXTENDED,
        PTP_SYS_OFFSET_EXTENDED,
        PTP_SYS_OFFSET,
        PTP_SYS_OFFSET,
    ]
    phc.close()


def test_sources_cross_system_ptp_and_test_clocks(ptp):
    device, _ = ptp
    given = TestClockSettings(offset_ns=5_000_000, drift_ppb=100.0, epoch_ns=time.time_ns())
    made = Sources({"eth1": given}, device.parent)
    before = raw_ns()
    found = made.read(["ptp0", "eth1", "nothing", "ptp"])
    after = raw_ns()
    assert set(found) == {"system", "ptp0", "eth1"}
    assert all(before <= cross_timestamp.raw_ns <= after for cross_timestamp in found.values())
    ahead = (
        found["ptp0"].clock_ns - found["system"].clock_ns - (found["ptp0"].raw_ns - found["system"].raw_ns)
    )
    assert abs(ahead - 37 * S) < 50_000
    assert found["ptp0"].half_ns > 200
    exact = TestClock(**given.model_dump()).reading(found["system"].clock_ns)
    assert found["eth1"].clock_ns == exact
    made.close()


def test_an_unreadable_ptp_clock_is_reported_and_others_continue(ptp, tmp_path):
    device, state = ptp
    made = Sources({}, device.parent)
    state["error"] = errno.EBUSY
    assert set(made.read(["ptp0", "ptp7"])) == {"system"}
    assert "refused" in made.unreadable["ptp0"]
    assert "No such file" in made.unreadable["ptp7"]
    state["error"] = None
    assert "ptp0" in made.read(["ptp0"])
    assert set(made.unreadable) == {"ptp7"}
    made.close()


def test_reading_across_a_step_of_the_system_clock_is_dropped():
    before = CrossTimestamp(1000, 50_000, 30.0)
    assert through(before, CrossTimestamp(3000, 52_000, 40.0), 51_000, 7, 100.0) == CrossTimestamp(
        2000, 7, 140.0
    )
    assert through(before, CrossTimestamp(3000, 90_000, 40.0), 51_000, 7, 100.0) is None
    assert through(before, CrossTimestamp(3000, 40_000, 40.0), 51_000, 7, 100.0) is None


def test_the_system_clock_is_read_within_its_bracket():
    one = cross_timestamp_system()
    assert 0 < one.half_ns < 100_000
    assert abs(one.clock_ns - time.time_ns()) < S
    assert sources.BRACKET_TRIES >= 8

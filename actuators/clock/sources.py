"""Reads this machine's clocks against CLOCK_MONOTONIC_RAW: the system clock, PTP hardware and test clocks.

Each reading is a cross-timestamp: one clock is read between two readings of another clock. The time between
these two readings is the bracket. Half of the bracket is the error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from actuators.clock.timescale import CrossTimestamp
from actuators.settings import TestClockSettings
from native.core.hostclock import cross

if TYPE_CHECKING:
    from native.core.probe import TestClock

BRACKET_TRIES: Final = 16
_TIME: Final = struct.Struct("<qII")
"""struct ptp_clock_time of linux/ptp_clock.h: s, ns, reserved."""
PHC_READS: Final = 10
MAX_READS: Final = 25

OffsetReads = list[tuple[int, int, int]]
"""(system before, hardware, system after) in ns, for each read."""


def _iowr(number: int, size: int, direction: int = 3) -> int:
    """Return an ioctl number: _IOWR('=', number, size) of asm-generic/ioctl.h; direction 1 gives _IOW."""
    return direction << 30 | size << 16 | ord("=") << 8 | number


_EXTENDED_BYTES: Final = 16 + MAX_READS * 3 * _TIME.size
_BASIC_BYTES: Final = 16 + (2 * MAX_READS + 1) * _TIME.size
PTP_SYS_OFFSET_EXTENDED: Final = _iowr(9, _EXTENDED_BYTES)
PTP_SYS_OFFSET: Final = _iowr(5, _BASIC_BYTES, direction=1)


def _ns(data: bytes, number: int) -> int:
    seconds, nanoseconds, _ = _TIME.unpack_from(data, 16 + number * _TIME.size)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def parse_offset_extended(data: bytes) -> OffsetReads:
    """Return the reads in a struct ptp_sys_offset_extended; each is (system, hardware, system) time."""
    reads = min(int.from_bytes(data[:4], "little"), MAX_READS)
    return [(_ns(data, 3 * i), _ns(data, 3 * i + 1), _ns(data, 3 * i + 2)) for i in range(reads)]


def parse_offset(data: bytes) -> OffsetReads:
    """Return the reads in a struct ptp_sys_offset: system and hardware times alternate; system is last."""
    reads = min(int.from_bytes(data[:4], "little"), MAX_READS)
    return [(_ns(data, 2 * i), _ns(data, 2 * i + 1), _ns(data, 2 * i + 2)) for i in range(reads)]


def shortest(reads: OffsetReads) -> tuple[int, int, float]:
    """Return (system, hardware, error) in ns for the read with the shortest time between system readings.

    The error is half of this time. Raises ValueError if no read has its times in ascending order.
    """
    ordered_reads = [
        (after - before, before, hardware) for before, hardware, after in reads if after >= before
    ]
    if not ordered_reads:
        raise ValueError(f"{len(reads)} readings of a PTP clock, expected one with times in order")
    took, before, hardware = min(ordered_reads)
    return before + took // 2, hardware, (took + 1) / 2


class PhcDevice:
    """A PTP hardware clock, /dev/ptpN."""

    def __init__(self, path: Path) -> None:
        """Open the device for reading. Raises OSError."""
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._extended = True

    def read(self) -> tuple[int, int, float]:
        """Return (CLOCK_REALTIME, this clock, error) in ns; the error is half the bracket of the readings.

        Raises OSError or ValueError.
        """
        if self._extended:
            request = bytearray(_EXTENDED_BYTES)
            request[:4] = PHC_READS.to_bytes(4, "little")
            try:
                fcntl.ioctl(self.fd, PTP_SYS_OFFSET_EXTENDED, request)
                return shortest(parse_offset_extended(bytes(request)))
            except OSError as error:
                if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._extended = False
        request = bytearray(_BASIC_BYTES)
        request[:4] = PHC_READS.to_bytes(4, "little")
        fcntl.ioctl(self.fd, PTP_SYS_OFFSET, request)
        return shortest(parse_offset(bytes(request)))

    def close(self) -> None:
        """Close the device."""
        os.close(self.fd)


class Sources:
    """Reads the clocks of one host by name. `unreadable` holds the error of each unreadable clock."""

    def __init__(self, test_clocks: Mapping[str, TestClockSettings], devices: Path = Path("/dev")) -> None:
        now_ns = time.time_ns()
        self._test: dict[str, TestClock] = {}
        if test_clocks:  # it needs numpy
            from native.core.probe import TestClock

            self._test = {
                name: TestClock(**{**clock.model_dump(), "epoch_ns": clock.epoch_ns or now_ns})
                for name, clock in test_clocks.items()
            }
        self._devices = devices
        self._phc: dict[str, PhcDevice] = {}
        self.unreadable: dict[str, str] = {}

    def read(self, clocks: Iterable[str]) -> dict[str, CrossTimestamp]:
        """Return, by name, cross-timestamps of the system clock and of each readable clock in `clocks`."""
        system = cross_timestamp_system()
        timestamps = {"system": system}
        for name in clocks:
            if name in self._test:
                # A test clock is a function of the system clock, so both readings have the same error.
                reading = self._test[name].reading(system.clock_ns)
                timestamps[name] = CrossTimestamp(system.raw_ns, reading, system.half_ns)
            elif name.startswith("ptp") and name[3:].isdigit():
                cross_timestamp = self._cross_timestamp_phc(name)
                if cross_timestamp is not None:
                    timestamps[name] = cross_timestamp
        return timestamps

    def _cross_timestamp_phc(self, name: str) -> CrossTimestamp | None:
        """Read a hardware clock between two cross-timestamps of the system clock."""
        try:
            if name not in self._phc:
                self._phc[name] = PhcDevice(self._devices / name)
            before = cross_timestamp_system()
            system_ns, clock_ns, half_ns = self._phc[name].read()
            after = cross_timestamp_system()
        except (OSError, ValueError) as error:
            self.unreadable[name] = f"{self._devices / name}: {error}"
            return None
        self.unreadable.pop(name, None)
        return through(before, after, system_ns, clock_ns, half_ns)

    def close(self) -> None:
        """Close all devices."""
        for device in self._phc.values():
            device.close()
        self._phc.clear()


def cross_timestamp_system(clock: int = time.CLOCK_REALTIME) -> CrossTimestamp:
    """Return a cross-timestamp between a clock of the kernel and the raw clock."""
    before_ns, clock_ns, after_ns = cross(clock, BRACKET_TRIES)
    return CrossTimestamp((before_ns + after_ns) // 2, clock_ns, (after_ns - before_ns + 1) / 2)


def through(
    before: CrossTimestamp, after: CrossTimestamp, system_ns: int, clock_ns: int, half_ns: float
) -> CrossTimestamp | None:
    """Return the cross-timestamp of a clock read at system time `system_ns`, between `before` and `after`.

    `before` and `after` are cross-timestamps of the system clock. Return None if it stepped between them.
    """
    system_took_ns, raw_took_ns = after.clock_ns - before.clock_ns, after.raw_ns - before.raw_ns
    if (
        system_took_ns <= 0
        or raw_took_ns <= 0
        or abs(system_took_ns - raw_took_ns) > 1e-3 * raw_took_ns + 1000
    ):
        return None
    raw_ns = before.raw_ns + round((system_ns - before.clock_ns) * (raw_took_ns / system_took_ns))
    return CrossTimestamp(raw_ns, clock_ns, half_ns + max(before.half_ns, after.half_ns))

"""Converts CLOCK_MONOTONIC_RAW to fabric time, or to the system clock while the host is UNSYNCED.

A timeline keeps pairs of readings of both clocks, taken at least every 50 ms while a job is connected. A time
between two pairs is interpolated. A time outside them is shifted like the nearest pair. All differences are
whole nanoseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fabrictime_client import Clock
from fabrictime_client.errors import PageMissing, PageUnusable, Unsynced
from schemas.records import ClockSync

_REOPEN_S: Final = 1.0
_TRIES: Final = 3
_FINE: Final = 100
"""Number of newest pairs that are all kept; of older ones, one per second is kept."""
_COARSE: Final = 120
_COARSE_NS: Final = 1_000_000_000


class ClockReading(NamedTuple):
    """Simultaneous readings of fabric time and CLOCK_MONOTONIC_RAW, ns."""

    raw_ns: int
    fabric_ns: int
    bound_ns: float
    state: ClockSync


class HostClock:
    """Reads fabric time from a host's clock page. Without a valid page, it reads system time, UNSYNCED."""

    def __init__(self, path: Path | None) -> None:
        """Prepare to read the page at `path`, or this machine's default page if it is None."""
        self._path = None if path is None else str(path)
        self._clock: Clock | None = None
        self._open_at_s = 0.0

    def read(self) -> ClockReading:
        """Return the present fabric time together with the raw clock."""
        clock = self._page()
        if clock is not None:
            with contextlib.suppress(Unsynced, PageUnusable):
                return min((_pair(clock) for _ in range(_TRIES)), key=lambda pair: pair.bound_ns)
        before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        system_ns = time.time_ns()
        after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return ClockReading((before_ns + after_ns) // 2, system_ns, 0.0, ClockSync.UNSYNCED)

    def close(self) -> None:
        """Close the clock page."""
        if self._clock is not None:
            self._clock.close()
            self._clock = None

    def _page(self) -> Clock | None:
        if self._clock is None and time.monotonic() >= self._open_at_s:
            self._open_at_s = time.monotonic() + _REOPEN_S
            with contextlib.suppress(PageMissing, PageUnusable):
                self._clock = Clock(self._path)
        return self._clock


def _pair(clock: Clock) -> ClockReading:
    """Read the page's time between two readings of the raw clock; add half their distance to the bound."""
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    now = clock.now()
    after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    half_ns = (after_ns - before_ns) / 2
    state = ClockSync(clock.state())
    if state is ClockSync.UNSYNCED:
        raise Unsynced(f"{clock.path}: UNSYNCED")
    return ClockReading((before_ns + after_ns) // 2, now.time_ns, now.bound_ns + half_ns, state)


class Timeline:
    """Successive pairs of readings of the raw clock and fabric time, for conversion between both."""

    def __init__(self) -> None:
        self._fine: deque[ClockReading] = deque()
        self._coarse: deque[ClockReading] = deque(maxlen=_COARSE)
        self.last: ClockReading | None = None
        self._arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
        self._first_ns = self._offset_ns = 0

    def add(self, reading: ClockReading) -> None:
        """Append a pair of readings; drop earlier pairs at a change to or from UNSYNCED: time stepped."""
        was_unsynced = self.last is not None and self.last.state is ClockSync.UNSYNCED
        if self.last is not None and was_unsynced != (reading.state is ClockSync.UNSYNCED):
            self._fine.clear()
            self._coarse.clear()
        self._fine.append(reading)
        if len(self._fine) > _FINE:
            oldest = self._fine.popleft()
            if not self._coarse or oldest.raw_ns - self._coarse[-1].raw_ns >= _COARSE_NS:
                self._coarse.append(oldest)
        self.last = reading
        self._arrays = None

    def to_fabric(self, raw_ns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Convert raw clock times to fabric times, ns. Raises ValueError if there is no reading yet."""
        if self.last is None:
            raise ValueError("timeline: no reading of the clock yet")
        if self._arrays is None:
            pairs = [*self._coarse, *self._fine]
            first = pairs[0]
            offset_ns = first.fabric_ns - first.raw_ns
            self._arrays = (
                np.array([pair.raw_ns - first.raw_ns for pair in pairs], np.float64),
                np.array([pair.fabric_ns - pair.raw_ns - offset_ns for pair in pairs], np.float64),
            )
            self._first_ns, self._offset_ns = first.raw_ns, offset_ns
        at, shift = self._arrays
        raw = raw_ns.astype(np.int64)
        shifts = np.interp((raw - self._first_ns).astype(np.float64), at, shift)
        fabric: npt.NDArray[np.int64] = raw + self._offset_ns + np.rint(shifts).astype(np.int64)
        return fabric

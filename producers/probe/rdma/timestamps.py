"""Provides timestamps of RDMA probes: from the NIC's clock if completions carry it, else from user space.

A NIC's counter is converted to a clock in ns, and is read together with the system clock. The module has no
side effects except for the callbacks that it receives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_TRIES: Final = 8


class CrossTimestamp(NamedTuple):
    """Simultaneous readings: at system time `system_ns` the clock read `clock_ns`, to within `bound_ns`."""

    clock_ns: int
    system_ns: int
    bound_ns: int


class TickClock:
    """A NIC's free-running counter as a clock in ns that starts at the system time of its first reading.

    A counter with fewer than 64 bits wraps. Call `read` at least once per quarter of its period. A timestamp
    is converted to the time nearest to the last reading.
    """

    def __init__(self, mask: int, khz: int, ticks: int, system_ns: int) -> None:
        """Start the clock at `system_ns`, counter value `ticks`. `mask` has ones for all valid bits.

        Raises ValueError if the counter cannot serve as a clock.
        """
        if mask < 0xFFFF or mask & (mask + 1):
            raise ValueError(f"completion stamps' mask {mask:#x}: expected ones from the lowest bit on")
        if khz < 1:
            raise ValueError(f"clock of {khz} kHz: expected at least 1")
        self._mask, self._khz = mask, khz
        self._last = self._start = ticks & mask
        self._epoch_ns = system_ns

    def read(self, ticks: int) -> int:
        """Convert the counter's present value `ticks` to ns; later timestamps are resolved relative to it."""
        self._last = self._unwrapped(ticks)
        return self._ns(self._last)

    def stamp(self, ticks: int) -> int:
        """Convert a recent NIC timestamp `ticks` to ns."""
        return self._ns(self._unwrapped(ticks))

    @property
    def tick_ns(self) -> int:
        """Duration of one tick of the counter, ns, rounded up."""
        return -(-1_000_000 // self._khz)

    def _unwrapped(self, ticks: int) -> int:
        ahead = (ticks - self._last) & self._mask
        return self._last + (ahead if ahead <= self._mask >> 1 else ahead - self._mask - 1)

    def _ns(self, ticks: int) -> int:
        return self._epoch_ns + (ticks - self._start) * 1_000_000 // self._khz


def cross_timestamp(
    read: Callable[[], int], system: Callable[[], int], tries: int = _TRIES
) -> CrossTimestamp:
    """Read a clock and the system clock together `tries` times; return the pair with the smallest bound.

    System time is the middle of the two system readings around the clock's reading, the bound half their gap.
    """
    best: CrossTimestamp | None = None
    for _ in range(tries):
        before = system()
        clock = read()
        after = system()
        bound = (after - before + 1) // 2
        if bound >= 0 and (best is None or bound < best.bound_ns):
            best = CrossTimestamp(clock, before + (after - before) // 2, bound)
    if best is None:  # the system clock was set back in every try
        return CrossTimestamp(read(), system(), 0)
    return best

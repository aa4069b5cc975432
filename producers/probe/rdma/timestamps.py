"""What stamps a prober's packets: the NIC's own clock where completions carry it, else user space.

In: raw readings of the NIC's clock, its frequency, and the system clock read around them. Out: stamps in ns,
and how the two clocks read together with the bound on that. Pure but for the calls that it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["TickClock", "CrossTimestamp", "cross_timestamp"]

_TRIES: Final = 8


class CrossTimestamp(NamedTuple):
    """Two clocks at one moment, ns: `clock_ns` is within `bound_ns` of what it read when the system clock
    read `system_ns`."""

    clock_ns: int
    system_ns: int
    bound_ns: int


class TickClock:
    """A NIC's free-running counter as a clock in ns, from the system's time at its first reading on.

    A counter of fewer than 64 bits wraps: `read` has to be called at least once in a quarter of that, and
    stamps are taken as the nearest to the last reading.
    """

    def __init__(self, mask: int, khz: int, ticks: int, system_ns: int) -> None:
        """`mask`: the bits that count, all ones from the lowest on. Raises ValueError."""
        if mask < 0xFFFF or mask & (mask + 1):
            raise ValueError(f"completion stamps' mask {mask:#x}: expected ones from the lowest bit on")
        if khz < 1:
            raise ValueError(f"clock of {khz} kHz: expected at least 1")
        self._mask, self._khz = mask, khz
        self._last = self._start = ticks & mask
        self._epoch_ns = system_ns

    def read(self, ticks: int) -> int:
        """Return a current reading as ns, and remember it."""
        self._last = self._unwrapped(ticks)
        return self._ns(self._last)

    def stamp(self, ticks: int) -> int:
        """Return a stamp of a short while ago as ns."""
        return self._ns(self._unwrapped(ticks))

    @property
    def wraps_s(self) -> float:
        """How long the counter takes to come round."""
        return (self._mask + 1) / (self._khz * 1e3)

    @property
    def tick_ns(self) -> int:
        """What one tick is worth, rounded up."""
        return -(-1_000_000 // self._khz)

    def _unwrapped(self, ticks: int) -> int:
        ahead = (ticks - self._last) & self._mask
        return self._last + (ahead if ahead <= self._mask >> 1 else ahead - self._mask - 1)

    def _ns(self, ticks: int) -> int:
        return self._epoch_ns + (ticks - self._start) * 1_000_000 // self._khz


def cross_timestamp(read: Callable[[], int], system: Callable[[], int], tries: int = _TRIES) -> CrossTimestamp:
    """Return a clock and the system clock read together: the tightest of some tries, the system clock's
    reading from the middle and half the time between both as the bound."""
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

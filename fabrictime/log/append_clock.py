"""The clock that stamps the embedded log's messages.

`AppendClock` runs on the monotonic clock and follows the system clock by the rules of NTP's clock discipline
(RFC 5905). It follows a small difference by slewing, and a large difference by a step after it has persisted.
So a system clock that is wrong for less than a minute is ignored. Readers follow steps in both directions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

STEP_MS: Final = 128
"""Largest difference that is slewed, ms; a larger one is stepped (STEPT of RFC 5905)."""
STEPOUT_MS: Final = 60_000
"""Time for which a large difference must persist before the clock steps, ms."""
SLEW_PPM: Final = 500
"""Largest rate of slewing, that of the kernel's clock discipline."""
_NS_PER_MS: Final = 1_000_000


class AppendClock:
    """A callable clock that returns the log's append time, ms since the Unix epoch."""

    def __init__(
        self,
        system_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        """Start at the system clock's time. `monotonic_ns` must count while the machine is suspended."""
        self._system_ns, self._monotonic_ns = system_ns, monotonic_ns
        self._read_ns = monotonic_ns()
        self._offset_ns = system_ns() - self._read_ns
        """Append time minus the monotonic clock, ns."""
        self._apart_since_ns: int | None = None
        """Monotonic time since which the system clock has differed by about the same large amount; None if it
        does not.
        """
        self._apart_ns = 0

    def __call__(self) -> int:
        """Return the append time of a message that arrives now."""
        now_ns = self._monotonic_ns()
        ahead_ns = self._system_ns() - now_ns - self._offset_ns
        if abs(ahead_ns) <= STEP_MS * _NS_PER_MS:
            limit_ns = (now_ns - self._read_ns) * SLEW_PPM // 1_000_000
            self._offset_ns += max(-limit_ns, min(limit_ns, ahead_ns))
            self._apart_since_ns = None
        else:
            self._follow_step(ahead_ns, now_ns)
        self._read_ns = now_ns
        return (now_ns + self._offset_ns) // _NS_PER_MS

    def _follow_step(self, ahead_ns: int, now_ns: int) -> None:
        """Step to the system clock if their difference has been about `ahead_ns` for long enough."""
        if self._apart_since_ns is None or abs(ahead_ns - self._apart_ns) > STEP_MS * _NS_PER_MS:
            self._apart_since_ns, self._apart_ns = now_ns, ahead_ns
            log.warning(
                "the system clock stepped by %+.3f s: append time follows if that persists for %d s",
                ahead_ns / 1e9,
                STEPOUT_MS // 1000,
            )
        elif now_ns - self._apart_since_ns >= STEPOUT_MS * _NS_PER_MS:
            self._offset_ns += ahead_ns
            self._apart_since_ns = None
            log.warning("append time stepped by %+.3f s to the system clock", ahead_ns / 1e9)

"""Times of live alert inputs without the steps of log time.

Alerts wait by the log's clock: to be raised, to be cleared, to be evaluated. If that clock is wrong for a
minute and returns, none of them may wait for it to catch up. So each partition's messages and the log's clock
continue at the worker's own pace where they step. A worker that reads the past, and a replay, use append
times as they are.
"""

from __future__ import annotations

from typing import Final

from schemas.kafka.message import Place
from streams.runtime.steady_time import SteadyTime

__all__ = ["LiveTimes"]

MAX_APART_NS: Final = 10_000_000_000
"""Largest difference of a partition's first message from the log's clock that is no step: the partition may
be read late."""


class LiveTimes:
    """Steady times from the end of a worker's recovery on. Pure: callers pass log time and monotonic time."""

    def __init__(self, log_ns: int, monotonic_ns: int) -> None:
        self._clock = SteadyTime()
        self._clock.of(log_ns, monotonic_ns)
        self._places: dict[Place, SteadyTime] = {}

    def now_ns(self, log_ns: int, monotonic_ns: int) -> int:
        """Return the steady time of the log's clock, which is at `log_ns`."""
        return self._clock.of(log_ns, monotonic_ns)

    def of(self, place: Place, append_ns: int, now_ns: int, monotonic_ns: int) -> int:
        """Return the steady time of a partition's next message. `now_ns`: the clock's steady time."""
        steady = self._places.get(place)
        if steady is None:
            steady = self._places[place] = SteadyTime()
            if abs(append_ns - now_ns) > MAX_APART_NS:
                steady.of(now_ns, monotonic_ns)
        return min(steady.of(append_ns, monotonic_ns), now_ns)  # no message waits for the clock

    def shifted_ns(self, append_ns: int) -> int:
        """Return the steady time of a message that may be much older than the clock."""
        return append_ns + self._clock.correction_ns

    def offset_ns(self, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time minus steady time, given fabric time minus append time."""
        return self._clock.offset_ns(log_offset_ns, monotonic_ns)

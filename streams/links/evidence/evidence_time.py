"""The time of a shard's evidence: log time minus the time during which all its hosts stood still.

A simulated fleet may run slower than the log's clock, and the log may stall while all agents wait. Neither
means that NICs are silent. So evidence time falls as far behind log time as the evidence of most NICs does.
Detectors measure silence, pauses and loss rates in the hosts' own time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

LATE_NS: Final = 250 * NS_PER_MS
"""Evidence that is later than this, in the median, shows that the hosts' time is behind. It is far above the
delay of an event, and far below the silence that makes a host DOWN."""
WINDOW_NS: Final = 300 * NS_PER_MS
"""Events of this log time make a median."""
MAX_LOST_NS: Final = 60 * NS_PER_S
"""Fabric time that moves by more from window to window was initialised anew."""


class EvidenceTime:
    """Converts log time to evidence time, which steps back if it ran ahead of the hosts' clocks."""

    def __init__(self) -> None:
        self.lost_ns = 0
        """Log time that passed at none of the hosts."""
        self._lags: deque[tuple[int, int]] = deque()
        """Log time and lag of the events of the window."""

    def of(self, log_ns: int) -> int:
        """Return the evidence time, ns, at a log time."""
        return log_ns - self.lost_ns

    def may_follow(self, moved_ns: int) -> bool:
        """Return whether to adopt a jump of fabric time by `moved_ns`, unless the cause is that hosts lag."""
        is_in_time = not self.lost_ns and moved_ns >= -LATE_NS
        return is_in_time or abs(moved_ns + self.lost_ns) > MAX_LOST_NS

    def note(self, log_ns: int, event_ns: int) -> None:
        """Note an event's append time `log_ns`, and its own time `event_ns` from its NIC's clock model."""
        self._lags.append((log_ns, log_ns - event_ns))
        while self._lags[0][0] < log_ns - WINDOW_NS:
            self._lags.popleft()
        lags_ns = sorted(lag_ns for _, lag_ns in self._lags)
        lag_ns = lags_ns[(len(lags_ns) - 1) // 2]
        if lag_ns < LATE_NS // 2:
            self.lost_ns = 0
        elif abs(lag_ns - self.lost_ns) > LATE_NS:
            self.lost_ns = lag_ns

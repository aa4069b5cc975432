"""Decides which windows of queues are new: windows follow each other in fabric time.

A window far from the last one is accepted only if another window follows it. Otherwise one absurd record
would make all later records seem old until fabric time reaches that record's time.
"""

from __future__ import annotations

from typing import Final

from streams.contention.rules import GAP_NS
from streams.runtime.units import NS_PER_S


class WindowOrder:
    """Accepts one shard's windows of queues only in the order of fabric time."""

    BACK_NS: Final = 60 * NS_PER_S
    """Largest distance of an earlier window that counts as published again, by a new owner of the queues."""

    def __init__(self) -> None:
        self.end_ns = 0
        """End of the last accepted window, fabric time; 0 if there is none."""
        self._doubtful_end_ns = 0
        """End of the last window that was far from its predecessor."""

    def accepts(self, start_ns: int, end_ns: int) -> bool:
        """Return whether a window, or its next part, is new. Call `end_window` after each accepted window."""
        if self.follows(start_ns):
            return True
        if -self.BACK_NS < start_ns - self.end_ns < 0:
            return False
        if 0 <= start_ns - self._doubtful_end_ns < GAP_NS:
            return True
        self._doubtful_end_ns = end_ns
        return False

    def follows(self, start_ns: int) -> bool:
        """Return whether a window begins soon after the last accepted one, or is the first."""
        return not self.end_ns or 0 <= start_ns - self.end_ns < GAP_NS

    def end_window(self, end_ns: int) -> None:
        """Set the time, ns, at which the last accepted window ended."""
        self.end_ns, self._doubtful_end_ns = end_ns, 0

"""Follows the difference between fabric time and the log's clock.

Windows are cut by log append time, which may step (`schemas/log_time.py`); fabric time does not. `LogOffset`
is the difference between them. A move by more than a second needs proof, because all tracks are extrapolated
by it. Otherwise one prober's absurd reading, in a window with few others, would move the whole fabric.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.log_time import STEP_NS
from streams.runtime.units import NS_PER_MS


class LogOffset:
    """Estimate of fabric time minus the log's append time, ns."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        """The difference, ns, rounded to whole ms."""
        self._proposed: tuple[int, float] | None = None
        """(window, offset in ns) of the last step that too few clocks showed."""

    def follow(self, window: int, offsets_ns: Sequence[int], clocks: int, step_ns: int) -> None:
        """Set the offset to the median of this window's offsets if the median differs by more than `step_ns`.

        `offsets_ns`: fabric time minus append time, from each NIC whose clock is synchronised. `clocks`:
        number of synchronised clocks, including clocks without an offset in this window. A step is followed
        at once if more than half of the clocks agree, else if the next window with offsets shows it again.
        """
        if not offsets_ns:
            return
        ahead_ns = np.array([offset_ns - self.offset_ns for offset_ns in offsets_ns], np.float64)
        middle_ns = float(np.median(ahead_ns))
        if abs(middle_ns) <= step_ns:
            return
        offset_ns = self.offset_ns + round(middle_ns)
        agreeing = int(np.count_nonzero(np.abs(ahead_ns - middle_ns) <= STEP_NS))
        if abs(middle_ns) > STEP_NS and 2 * agreeing <= clocks:
            proposed, self._proposed = self._proposed, (window, offset_ns)
            if proposed is None or proposed[0] == window or abs(proposed[1] - offset_ns) > STEP_NS:
                return
        self._proposed = None
        self.offset_ns = (offset_ns + NS_PER_MS // 2) // NS_PER_MS * NS_PER_MS

"""Recognises that log append time stepped back.

On Kafka, append time is the clock of the partition's leader. That clock may be wrong and be corrected, or a
leader with another clock may take over. So append time, and with it a window's number, may jump either way.
"""

from __future__ import annotations

from typing import Final

from schemas.records import ClockOffsets

__all__ = ["MAX_AHEAD_NS", "STEP_NS", "WindowOrder", "step_windows"]

STEP_NS: Final = 1_000_000_000
"""A message whose append time is this much before that of an earlier message shows a step back."""
MAX_AHEAD_NS: Final = 60_000_000_000
"""Time by which a window may be ahead of its record's append time: the leaders of two partitions may have
different clocks."""


def step_windows(window_ns: int) -> int:
    """Return the number of windows by which a later window must be behind to show a step back."""
    return max(2, -(-STEP_NS // window_ns))


class WindowOrder:
    """The order of the `ClockOffsets` of all shards, each part of which has one partition and one writer."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}
        """Shard and part to the window of its last record."""

    def steps_back(self, record: ClockOffsets) -> bool:
        """Take the next record; return whether its window shows that log time stepped back."""
        key, window = (record["shard"], record["part"]), record["window"]
        last, self._last[key] = self._last.get(key), window
        # A new owner of the shard may publish the last windows again.
        republished = 2 * step_windows(record["window_end_ns"] - record["window_start_ns"])
        return last is not None and window < last - republished

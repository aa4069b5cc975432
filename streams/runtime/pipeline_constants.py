"""Constants on which several stages of the pipeline agree, and those who run its stages without a worker."""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_MS

__all__ = ["INPUT_DELAY_NS", "SUB_SLOTS", "slot_ns_of"]

INPUT_DELAY_NS: Final = 150 * NS_PER_MS
"""Records are processed this long after their append time: all partitions have been read by then."""
SUB_SLOTS: Final = 4
"""Slots of `PathQueueing` per slot of `LinkQueues`: queues change within a slot."""


def slot_ns_of(rate_bps: int) -> int:
    """Return the slot length of `LinkQueues`, ns, for a link rate (0: unknown).

    10 ms below 10 Gbit/s, 1 ms below 40 Gbit/s, else 250 us.
    """
    if rate_bps >= 40_000_000_000:
        return 250_000
    return 1_000_000 if rate_bps >= 10_000_000_000 else 10_000_000

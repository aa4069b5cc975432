"""Constants on which several stages of the pipeline agree, and those who run its stages without a worker."""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_MS

WINDOW_NS: Final = 1_000 * NS_PER_MS
"""Log append time in a window of clocks and delays, by default."""
SILENCE_NS: Final = 150 * NS_PER_MS
"""Silence after which a partition delays no window, by default."""
GRACE_NS: Final = 1_500 * NS_PER_MS
"""Time after a window's first fits that the solver waits for other sources, by default."""
HOLDOVER_S: Final = 60.0
"""s without measurements that a clock stays in holdover, by default."""
QUEUEING_NS: Final = 30 * NS_PER_MS
"""Time between two `PathQueueing` records of a source."""
FLOWS_NS: Final = 500 * NS_PER_MS
"""Time between two updates of the flow rates that the inference of queues uses."""
FLOW_LAG_NS: Final = 50 * NS_PER_MS
"""Flows are used as of this long before a message of queues: all reports up to then have been read."""
DIAGNOSIS_INTERVAL_NS: Final = 5_000 * NS_PER_MS
"""Length of the interval that an evaluation of a job explains: it covers slow iterations."""
HOP_NS: Final = 5 * NS_PER_MS
"""Delay of a message through the log that benches without a log assume, above the measurement of
`bench detect`."""

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

"""Constants on which several stages of the pipeline, and programs that run stages without a worker, agree."""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_MS

WINDOW_NS: Final = 1_000 * NS_PER_MS
"""Default length of a window of clocks and delays, in log append time."""
SILENCE_NS: Final = 150 * NS_PER_MS
"""Default silence after which windows no longer wait for a partition."""
GRACE_NS: Final = 1_500 * NS_PER_MS
"""Default time, after a window's first fits, for which the solver waits for other sources."""
HOLDOVER_S: Final = 60.0
"""Default time without measurements for which a clock stays in holdover, s."""
QUEUEING_NS: Final = 30 * NS_PER_MS
"""Time between two `PathQueueing` records of a source."""
FLOWS_NS: Final = 500 * NS_PER_MS
"""Time between two updates of the flow rates that the inference of queues uses."""
FLOW_LAG_NS: Final = 50 * NS_PER_MS
"""Age of the flows that are used with a message of queues: all reports up to then have been read."""
DIAGNOSIS_INTERVAL_NS: Final = 5_000 * NS_PER_MS
"""Length of the interval that an evaluation of a job covers: long enough for slow iterations."""
HOP_NS: Final = 5 * NS_PER_MS
"""Delay of a message through the log, in benches without a log, longer than `bench detect` measured."""

INPUT_DELAY_NS: Final = 150 * NS_PER_MS
"""Delay after their append time at which records are processed: by then all partitions have been read."""
SUB_SLOTS: Final = 4
"""Number of `PathQueueing` slots per `LinkQueues` slot: queues change within a slot."""


def slot_ns_of(rate_bps: int) -> int:
    """Return the slot length of `LinkQueues`, ns, for a link rate (0: unknown).

    10 ms below 10 Gbit/s, 1 ms below 40 Gbit/s, else 250 us.
    """
    if rate_bps >= 40_000_000_000:
        return 250_000
    return 1_000_000 if rate_bps >= 10_000_000_000 else 10_000_000

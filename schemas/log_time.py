"""Detects that log append time stepped back.

In Kafka, append time is read from the clock of the partition's leader. The clock may be corrected, or another
leader elected. So append time, and with it a window's number, may jump forwards or back.
"""

from __future__ import annotations

from typing import Final

from schemas.input_error import InputError
from schemas.records import ClockOffsets

LOG_APPEND_TIME: Final = 1
"""Kafka's timestamp type for a timestamp that the broker set."""
CONFLUENT_BASE: Final = 1
"""Difference between confluent-kafka's numbers of timestamp types and the protocol's."""
STEP_NS: Final = 1_000_000_000
"""A message whose append time is this much before that of an earlier message shows a step back."""
MAX_AHEAD_NS: Final = 60_000_000_000
"""Largest time by which a window may be ahead of its record's append time, as the leaders of two partitions
may have different clocks."""


def append_ns_of(topic: str, kind: int | None, timestamp_ms: int | None) -> int:
    """Return the append time, ns, of a message with this timestamp type of the Kafka protocol.

    Raises ValueError for a timestamp that the log did not set: a host's clock cannot replace log time.
    """
    if kind != LOG_APPEND_TIME or timestamp_ms is None or timestamp_ms < 0:
        name = "of the producer (CreateTime)" if kind == 0 else "missing"
        raise InputError(f"topic {topic}: timestamp {name}, expected message.timestamp.type=LogAppendTime")
    return timestamp_ms * 1_000_000


MAX_AHEAD_OF_HOSTS_S: Final = 5.0
"""Log time may be ahead of the hosts' clocks by so much: a busy host's messages are appended late."""
MAX_BEHIND_HOSTS_S: Final = 1.0
"""Log time may be behind the hosts' clocks by so much only, as no message is appended early."""


def is_log_time_wrong(ahead_s: float) -> bool:
    """Return whether log time is wrong. `ahead_s`: log time minus the hosts' system clocks, s."""
    return not -MAX_BEHIND_HOSTS_S <= ahead_s <= MAX_AHEAD_OF_HOSTS_S


def step_windows(window_ns: int) -> int:
    """Return the number of windows that a later record must be behind an earlier one to show a step back."""
    return max(2, -(-STEP_NS // window_ns))


class WindowOrder:
    """Tracks the order of windows in the `ClockOffsets` of all shards.

    Each part of a shard's `ClockOffsets` has one partition and one writer, so its window numbers ascend.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}
        """Shard and part to its newest window."""
        self._earlier: dict[tuple[str, int], int] = {}
        """Earlier window that the last record showed, by (shard, part); the next record must confirm it."""

    def steps_back(self, record: ClockOffsets) -> bool:
        """Track the next record; return whether its window shows that log time stepped back.

        Two consecutive records must be behind: a single one may be another writer's mistake.
        """
        key, window = (record["shard"], record["part"]), record["window"]
        last, earlier = self._last.get(key, -1), self._earlier.pop(key, None)
        # A new owner of the shard may publish the last windows again.
        republished = 2 * step_windows(record["window_end_ns"] - record["window_start_ns"])
        if window >= last - republished:
            self._last[key] = max(window, last)
            return False
        if earlier is not None and earlier < window <= earlier + republished:
            self._last[key] = window
            return True
        self._earlier[key] = window
        return False

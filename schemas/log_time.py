"""Recognises that log append time stepped back.

On Kafka, append time is the clock of the partition's leader. That clock may be wrong and be corrected, or a
leader with another clock may take over. So append time, and with it a window's number, may jump either way.
"""

from __future__ import annotations

from typing import Final

from schemas.records import ClockOffsets

LOG_APPEND_TIME: Final = 1
"""Timestamp type of the Kafka protocol for a timestamp that the broker set."""
CONFLUENT_BASE: Final = 1
"""confluent-kafka's timestamp types minus those of the protocol."""
STEP_NS: Final = 1_000_000_000
"""A message whose append time is this much before that of an earlier message shows a step back."""
MAX_AHEAD_NS: Final = 60_000_000_000
"""Time by which a window may be ahead of its record's append time: the leaders of two partitions may have
different clocks."""


def append_ns_of(topic: str, kind: int | None, timestamp_ms: int | None) -> int:
    """Return the append time, ns, of a message with this timestamp type of the Kafka protocol.

    Raises ValueError for a timestamp that the log did not set: a host's clock cannot replace log time.
    """
    if kind != LOG_APPEND_TIME or timestamp_ms is None or timestamp_ms < 0:
        name = "of the producer (CreateTime)" if kind == 0 else "missing"
        raise ValueError(f"topic {topic}: timestamp {name}, expected message.timestamp.type=LogAppendTime")
    return timestamp_ms * 1_000_000


MAX_AHEAD_OF_HOSTS_S: Final = 5.0
"""Log time may look this much ahead of the hosts' clocks: a busy host's messages are appended late."""
MAX_BEHIND_HOSTS_S: Final = 1.0
"""Nothing makes log time look behind."""


def is_log_time_wrong(ahead_s: float) -> bool:
    """Return whether log time is wrong. `ahead_s`: log time minus the hosts' system clocks."""
    return not -MAX_BEHIND_HOSTS_S <= ahead_s <= MAX_AHEAD_OF_HOSTS_S


def step_windows(window_ns: int) -> int:
    """Return the number of windows by which a later window must be behind to show a step back."""
    return max(2, -(-STEP_NS // window_ns))


class WindowOrder:
    """The order of the `ClockOffsets` of all shards, each part of which has one partition and one writer."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}
        """Shard and part to its newest window."""
        self._earlier: dict[tuple[str, int], int] = {}
        """Shard and part to the earlier window of its last record, which the next one must confirm."""

    def steps_back(self, record: ClockOffsets) -> bool:
        """Take the next record; return whether its window shows that log time stepped back.

        Two consecutive records must show it: one alone may be a mistake of a foreign writer.
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

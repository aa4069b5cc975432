"""Fresh evidence in a log, as probers, stream worker and links service leave it; each can be stopped."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from schemas import codec
from schemas.topics import CLOCK_OFFSETS, LINKS

GROUP = "fabrictime-links"
SHARD = "elsewhere"
PERIOD_S = 0.2


def clock_offsets(window: int, log_offset_ns: int = 0) -> dict[str, Any]:
    """Return a window without clocks."""
    return {
        "shard": SHARD,
        "window": window,
        "part": 0,
        "parts": 1,
        "domain": "fabric",
        "reference": "ensemble",
        "window_start_ns": window * 1_000_000_000,
        "window_end_ns": (window + 1) * 1_000_000_000,
        "log_offset_ns": log_offset_ns,
        "solved_ns": window * 1_000_000_000,
        "clocks": [],
        "suspects": [],
    }


class FreshEvidence:
    """Publishes evidence while it is open. `running` names the sources that are not stopped."""

    def __init__(self, log: str) -> None:
        self.running = {"probes", "clocks", "links"}
        self.log_offset_ns = 0
        self._producer = Producer({"bootstrap.servers": log, "log_level": 0})
        self._group = Consumer({"bootstrap.servers": log, "group.id": GROUP, "log_level": 0})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._committed = 0

    def __enter__(self) -> Self:
        self._publish(0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        self._group.close()

    def _run(self) -> None:
        window = 0
        while not self._ending.wait(PERIOD_S):
            window += 1
            self._publish(window)

    def _publish(self, window: int) -> None:
        if "probes" in self.running:
            self._producer.produce(LINKS.name, None, SHARD, partition=0)
        if "clocks" in self.running:
            value = codec.encode(CLOCK_OFFSETS.record, clock_offsets(window, self.log_offset_ns))
            self._producer.produce(CLOCK_OFFSETS.name, value, f"{SHARD}/0", partition=0)
        self._producer.flush(5)
        if "links" in self.running:
            self._commit()

    def _commit(self) -> None:
        """Commit all but the newest event, as the links service does: that one only once no more come."""
        _, end = self._group.get_watermark_offsets(TopicPartition(LINKS.name, 0), timeout=5)
        offset = end - 1 if "probes" in self.running else end
        if offset > self._committed:
            self._committed = offset
            self._group.commit(offsets=[TopicPartition(LINKS.name, 0, offset)], asynchronous=False)

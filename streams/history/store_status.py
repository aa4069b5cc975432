"""Reports to the service manager whether ClickHouse accepts the rows of the sink's topics.

A server that does not answer, or is full, is reported as a fault of the sink (`X_FAULT`) until all topics can
be inserted again. The status includes the number of rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 1.0
"""Interval between two reports while nothing changes, s."""
MAX_ERROR: Final = 200
"""Largest number of characters of an error's text."""


class StoreStatus:
    """The insert status of all topics of one sink. `notify` sends a line to the service manager."""

    def __init__(
        self, url: str, notify: Callable[[str], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._url, self._notify, self._clock_s = url, notify, clock_s
        self._lock = threading.Lock()
        """Needed because the stores of several topics report from different threads."""
        self._rows = 0
        self._waiting: dict[str, tuple[str, float]] = {}
        """Maps topic whose insert fails to its last error and the time of the first one."""
        self._reported_s = float("-inf")
        self._report(is_due=True)

    def stored(self, topic: str, rows: int) -> None:
        """Record that `rows` rows of a topic were inserted, which ends the topic's failure."""
        with self._lock:
            self._rows += rows
            self._end_wait(topic)

    def forget(self, topic: str) -> None:
        """Clear the failure of a topic, because this sink does not retry its insert."""
        with self._lock:
            self._end_wait(topic)

    def _end_wait(self, topic: str) -> None:
        returned = self._waiting.pop(topic, None) is not None
        if returned and not self._waiting:
            self._notify("X_FAULT=")
        self._report(is_due=returned)

    def failed(self, topic: str, error: str) -> None:
        """Record that a topic's insert failed with `error` and is retried."""
        with self._lock:
            now_s = self._clock_s()
            is_first = not self._waiting
            self._waiting[topic] = (error, self._waiting.get(topic, (error, now_s))[1])
            if is_first:
                self._notify(f"X_FAULT=history {self._url} does not store: {error[:MAX_ERROR]}")
            self._report(is_due=is_first)

    def _report(self, *, is_due: bool) -> None:
        now_s = self._clock_s()
        if not is_due and now_s - self._reported_s < PERIOD_S:
            return
        self._reported_s = now_s
        text = f"{self._rows:,} rows stored"
        if self._waiting:
            since_s = now_s - min(at_s for _, at_s in self._waiting.values())
            text += f", {len(self._waiting)} topics wait for {since_s:.0f} s"
        self._notify(f"STATUS={text}")

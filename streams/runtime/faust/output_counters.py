"""Counts the outputs of a worker's stages, and keeps the newest clock windows, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from schemas.metrics.base import Sample
from schemas.records import AlertKind, AlertState, ClockOffsets, ClockSync, FlowAction
from schemas.topics import ALERTS, CLOCK_OFFSETS, DECISIONS, Topic
from streams.runtime.log_time import LogClock
from streams.runtime.operator import Output
from streams.runtime.units import NS_PER_S

FIRST_UPDATE: Final = 0
"""Number of the record that raises an alert; later records of the alert have higher ones."""


class OutputCounters:
    """Counters of one service's outputs. `log_clock`: estimate of the log's clock."""

    def __init__(self, log_clock: LogClock) -> None:
        self.published: Counter[str] = Counter()
        """Maps topic to the number of published messages."""
        self._log_clock = log_clock
        self._decisions: Counter[str] = Counter()
        self._alerts: Counter[str] = Counter()
        self._clocks: dict[str, dict[int, ClockOffsets]] = {}
        """Maps shard to the parts of its newest published window."""
        self._delay_ns: int | None = None

    def expect(self, topics: Iterable[Topic]) -> None:
        """Start the counters of these topics at 0, so that the first record also shows as an increase."""
        for topic in topics:
            self.published[topic.name] += 0
            if topic is DECISIONS:
                self._decisions.update(dict.fromkeys(set(FlowAction) - {FlowAction.UNKNOWN}, 0))
            elif topic is ALERTS:
                self._alerts.update(dict.fromkeys(set(AlertKind) - {AlertKind.UNKNOWN}, 0))

    def take(self, output: Output) -> None:
        """Count an output that is about to be sent."""
        self.published[output.topic.name] += 1
        record: Any = output.record
        if record is None:
            return
        if output.topic is DECISIONS:
            self._decisions[record["action"]] += 1
        elif output.topic is ALERTS and record["state"] == AlertState.RAISED:
            self._alerts[record["kind"]] += record["update"] == FIRST_UPDATE
        elif output.topic is CLOCK_OFFSETS:
            self._take_clocks(record)

    def _take_clocks(self, record: ClockOffsets) -> None:
        parts = self._clocks.get(record["shard"], {})
        if any(part["window"] != record["window"] for part in parts.values()):
            parts = {}
        self._clocks[record["shard"]] = {**parts, record["part"]: record}
        log_ns = self._log_clock.now_ns(time.monotonic_ns())
        self._delay_ns = log_ns + record["log_offset_ns"] - record["window_end_ns"]

    def forget_clocks(self) -> None:
        """Drop the clock windows: another worker may own their shards now."""
        self._clocks, self._delay_ns = {}, None

    def samples(self) -> Iterator[Sample]:
        """Yield the counters, and figures of the newest clock windows, as metrics."""
        for topic, count in self.published.items():
            yield Sample("fabrictime_topic_records_published_total", count, (topic,))
        for action, count in self._decisions.items():
            yield Sample("fabrictime_decisions_total", count, (action,))
        for kind, count in self._alerts.items():
            yield Sample("fabrictime_alerts_raised_total", count, (kind,))
        if self._delay_ns is not None:
            yield Sample("fabrictime_window_delay_seconds", self._delay_ns / NS_PER_S)
            yield from self._clock_samples()

    def _clock_samples(self) -> Iterator[Sample]:
        parts = [part for of_shard in self._clocks.values() for part in of_shard.values()]
        clocks = [clock for part in parts for clock in part["clocks"]]
        states = Counter(clock["state"] for clock in clocks)
        for state in ClockSync:
            yield Sample("fabrictime_fleet_clocks", states[state], (state,))
        bounds_ns = [clock["bound_ns"] for clock in clocks if clock["state"] != ClockSync.UNSYNCED]
        if bounds_ns:
            yield Sample("fabrictime_fleet_clock_bound_seconds", max(bounds_ns) / NS_PER_S)

"""Raises, updates and clears the alerts of one shard, one alert per cause.

`ShardAlerts` ingests records in log order and passes each to its source (sources/), which changes the alert
book (book.py). All times and texts come from the records. The state can be restored from the published alerts
and the records of the past hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from schemas.records import (
    Alert,
    AlertKind,
    ClockOffsets,
    ContentionWindow,
    LatencyRule,
    LinkEvent,
    LinkHealth,
    Nic,
    PathDelays,
)
from streams.alerts.book import AlertBook, Published
from streams.alerts.duplicate_names import DuplicateNames
from streams.alerts.latency_slo import EVERYONE
from streams.alerts.prober_health import ProberHealth
from streams.alerts.sources.clocks import ClockAlerts
from streams.alerts.sources.detections import DetectionAlerts
from streams.alerts.sources.jobs import JobAlerts
from streams.alerts.sources.latency import LatencyAlerts
from streams.alerts.sources.link_health import LinkHealthAlerts, nodes_of
from streams.alerts.sources.queues import QueueAlerts
from streams.alerts.sources.simulation import FleetPace, SimulationAlerts
from streams.alerts.unmeasured import UnmeasuredNics
from streams.runtime.detection import Detection
from streams.runtime.thresholds import Thresholds


class ShardAlerts:
    """The alerts of one shard. `thresholds` and `log_offset_ns` may be set at any time.

    `cables_of` returns the number of a switch's cables, 0 if unknown. `groups` returns the groups of a NIC,
    see latency_slo.py. `probe_slots`: see prober_health.py.
    """

    def __init__(
        self,
        shard: str,
        thresholds: Thresholds | None = None,
        cables_of: Callable[[str], int] | None = None,
        groups: Callable[[str], frozenset[str]] | None = None,
        probe_slots: Callable[[str], tuple[int, int] | None] | None = None,
    ) -> None:
        self.shard = shard
        self._book = AlertBook(shard, thresholds or Thresholds())
        self._duplicates = DuplicateNames()
        self._unmeasured = UnmeasuredNics(shard, self._explained)
        self._probers = ProberHealth(shard, self._book.thresholds, probe_slots)
        forget_agent = self._probers.forget_agent
        self._link_health = LinkHealthAlerts(self._book, cables_of or (lambda node: 0), forget_agent)
        self._queues = QueueAlerts(self._book)
        self._simulation = SimulationAlerts(self._book)
        self._clocks = ClockAlerts(
            self._book, self._link_health.health, self._simulation, self._duplicates.is_duplicate
        )
        self._latency = LatencyAlerts(self._book, groups or (lambda nic: frozenset({EVERYONE, nic})))
        self._detections = DetectionAlerts(self._book, forget_agent)
        self._jobs = JobAlerts(self._book)

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds in force, which may change at any time."""
        return self._book.thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._book.thresholds = self._probers.thresholds = thresholds

    @property
    def log_offset_ns(self) -> int:
        """Fabric time minus log append time, ns."""
        return self._book.log_offset_ns

    @log_offset_ns.setter
    def log_offset_ns(self, offset_ns: int) -> None:
        self._book.log_offset_ns = offset_ns

    @property
    def now_ns(self) -> int:
        """Newest log append time, ns."""
        return self._book.now_ns

    @property
    def due_ns(self) -> int:
        """Log append time at which `evaluate` next has an alert to raise or clear, ns."""
        times_ns = (self._link_health.due_ns, self._book.next_clear_ns, self._probers.due_ns)
        return min(*times_ns, self._simulation.due_ns, self._duplicates.due_ns, self._unmeasured.due_ns)

    def wants_delays(self, nic: str) -> bool:
        """Return whether any latency rule uses a NIC's `PathDelays`."""
        return self._latency.wants(nic)

    def open_ids(self) -> list[str]:
        """Return the ids of the active alerts."""
        return sorted(self._book.open)

    def recover(self, alerts: Iterable[Alert], events_from_ns: int = 0) -> None:
        """Restore the state from the published alerts (`Alert`), in any order.

        `events_from_ns`: append time from which `LinkEvent` records are read again.
        """
        for alert in self._book.recover(alerts):
            active_ns = max(alert.updated_ns - self.log_offset_ns, events_from_ns)
            self._probers.recover(alert.kind, alert.subject, alert.nics, active_ns)
            if alert.kind == AlertKind.DUPLICATE_NAME:
                self._duplicates.recover(alert.subject, alert.nics, active_ns)
            elif alert.kind == AlertKind.UNMEASURED:
                self._unmeasured.recover(alert.nics, active_ns)
            self._latency.recover(alert)
            self._jobs.recover(alert)
            self._link_health.recover(alert)

    def ingest_delays(self, record: PathDelays) -> Published:
        """Take one `PathDelays`; return the alerts to publish.

        Latency rules follow the time of their windows, so the order of delays among records is irrelevant.
        """
        self._latency.ingest(record)
        return self._book.take_published()

    def ingest_health(self, subject: str, record: LinkHealth | None, append_ns: int) -> Published:
        """Take a subject's health (None: the subject was forgotten); return the alerts to publish."""
        self._begin(append_ns)
        self._link_health.ingest(subject, record)
        return self._book.take_published()

    def ingest_contention(self, record: ContentionWindow, append_ns: int) -> Published:
        """Take one `ContentionWindow`; return the alerts to publish."""
        self._begin(append_ns)
        self._queues.ingest(record)
        return self._book.take_published()

    def ingest_diagnosis(self, head: Mapping[str, Any], append_ns: int) -> Published:
        """Take the leading fields of a `Diagnosis`; return the alerts to publish."""
        self._begin(append_ns)
        self._jobs.ingest(head)
        return self._book.take_published()

    def ingest_clocks(self, record: ClockOffsets, append_ns: int) -> Published:
        """Take one part of a window of clock offsets; return the alerts to publish."""
        self._begin(append_ns)
        self._clocks.ingest(record)
        return self._book.take_published()

    def ingest_pace(self, fleet: FleetPace | None, append_ns: int) -> Published:
        """Take the pace of the simulated shard (None: some NICs are real); return the alerts to publish."""
        if fleet is None and not self._simulation.is_simulated:
            return []
        self._begin(append_ns)
        self._simulation.ingest(fleet)
        return self._book.take_published()

    def ingest_event(self, event: LinkEvent, append_ns: int) -> Published:
        """Take one `LinkEvent`; return the alerts to publish."""
        self._probers.reach(append_ns)
        self._begin(append_ns)
        self._duplicates.ingest(event["nic"], event["run"], append_ns)
        self._unmeasured.ingest(event, append_ns)
        self._probers.ingest(event, append_ns)
        return self._book.take_published()

    def ingest_nic(self, name: str, nic: Nic | None, append_ns: int) -> Published:
        """Take a NIC's inventory record (None: the NIC was removed); return the alerts to publish."""
        self._begin(append_ns)
        self._unmeasured.announce(name, nic)
        if nic is None:
            self._duplicates.remove(name)
        else:
            self._duplicates.ingest(name, nic["run"], append_ns, next(iter(nic["addresses"]), None))
        return self._book.take_published()

    def _explained(self) -> set[str]:
        """Return the NICs and hosts that active alerts about other causes name."""
        names: set[str] = set()
        for alert in self._book.open.values():
            if alert.kind != AlertKind.UNMEASURED:
                names.update(alert.nics)
                names.update(node for subject in alert.covers() for node in nodes_of(subject))
        return names

    def _begin(self, append_ns: int) -> None:
        """Advance the log's clock to a record appended at `append_ns`."""
        self._advance(append_ns - 1)
        self._book.now_ns = max(self.now_ns, append_ns)

    def set_latency_rules(self, rules: Iterable[LatencyRule]) -> Published:
        """Set the active latency rules (`ActuatorConfig.latency_rules`); return the alerts to publish.

        Call this once after `recover`, and after every change: it clears the alerts of removed rules.
        """
        self._latency.set_rules(rules)
        return self._book.take_published()

    def ingest_detection(self, detection: Detection) -> Published:
        """Take a detection; return the alerts to publish."""
        self._advance(detection.at_ns - 1)
        self._detections.ingest(detection)
        return self._book.take_published()

    def evaluate(self, now_ns: int) -> Published:
        """Advance the log's clock to `now_ns`; return the alerts to publish."""
        self._advance(now_ns)
        return self._book.take_published()

    def _advance(self, to_ns: int) -> None:
        """Raise, clear and evaluate in the order of due times, up to `to_ns`."""
        while (due_ns := self.due_ns) <= to_ns:
            self._book.now_ns = max(self.now_ns, due_ns)
            self._link_health.raise_due(due_ns)
            self._book.clear_due(due_ns)
            self._simulation.raise_due(due_ns)
            detectors = (self._probers, self._duplicates, self._unmeasured)
            for detection in [d for detector in detectors for d in detector.evaluate(due_ns)]:
                self._detections.ingest(detection)

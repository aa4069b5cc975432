"""Raises the alert about a simulated fleet whose time passes more slowly than real time.

The pace comes from the inventory. While a fleet is slow, windows contain too few of its probes, so clocks may
look UNSYNCED. This alert then replaces alerts about clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.records import AlertKind, Severity
from schemas.simulation_pace import FULL_PACE, pace_text, slow_text
from schemas.topics import INVENTORY
from streams.alerts.book import AlertBook, OpenAlert, evidence_ref
from streams.alerts.rules import NEVER_NS, PACE_CHANGE, SLOW_NS


@dataclass(frozen=True, slots=True)
class FleetPace:
    """Pace of a shard's simulated NICs, as announced: simulated time divided by real time."""

    pace: float
    nics: int

    @property
    def text(self) -> str:
        """The alert's text at this pace."""
        return f"{slow_text(self.pace, self.nics)}; alerts about clocks are suppressed meanwhile"


class SimulationAlerts:
    """Raises the alert about the slow simulation of one shard."""

    def __init__(self, book: AlertBook) -> None:
        self._book = book
        self._fleet: FleetPace | None = None
        self._slow_from_ns: int | None = None
        """Log append time since which the fleet has been slow; None if it is not slow."""
        self._shown_pace: float | None = None
        """Pace in the published text; None if an earlier owner published it."""

    @property
    def is_simulated(self) -> bool:
        """Whether all NICs of the shard are simulated."""
        return self._fleet is not None

    @property
    def is_slow(self) -> bool:
        """Whether the shard's NICs are simulated more slowly than real time."""
        return self._fleet is not None and self._fleet.pace < FULL_PACE

    @property
    def due_ns(self) -> int:
        """Append time, ns, at which the fleet will have been slow for long enough for the alert."""
        return NEVER_NS if self._slow_from_ns is None or self._alert() else self._slow_from_ns + SLOW_NS

    def ingest(self, fleet: FleetPace | None) -> None:
        """Take the shard's pace; None if not all of its NICs are simulated."""
        self._fleet = fleet
        alert, now_ns = self._alert(), self._book.now_ns
        if not self.is_slow:
            self._slow_from_ns = None
            over_ns = now_ns + self._book.log_offset_ns
            if alert is not None and alert.clear_at_ns == NEVER_NS and over_ns > alert.raised_ns:
                alert.over_ns = over_ns
                alert.clear_at_ns = now_ns + self._book.thresholds.ns("alert_clear_s")
            return
        self._slow_from_ns = now_ns if self._slow_from_ns is None else self._slow_from_ns
        if alert is not None and fleet is not None:
            alert.clear_at_ns = NEVER_NS
            if self._shown_pace is None:
                self._shown_pace = fleet.pace
            elif abs(fleet.pace - self._shown_pace) >= PACE_CHANGE:
                alert.text, self._shown_pace = fleet.text, fleet.pace
                self._book.update(alert, now_ns + self._book.log_offset_ns)

    def raise_due(self, now_ns: int) -> None:
        """Raise the alert if the fleet has been slow for long enough."""
        if self.due_ns > now_ns or self._fleet is None or self._slow_from_ns is None:
            return
        shard, text = self._book.shard, self._fleet.text
        since_ns = self._slow_from_ns + self._book.log_offset_ns
        covered = self._book.covered_times(AlertKind.SIMULATION, shard)
        if any(raised_ns <= since_ns < cleared_ns for raised_ns, cleared_ns in covered):
            self._slow_from_ns = None  # announcements of that time, read again
            return
        self._shown_pace = self._fleet.pace
        alert = OpenAlert(
            kind=AlertKind.SIMULATION,
            subject=shard,
            severity=Severity.WARNING,
            raised_ns=since_ns,
            updated_ns=now_ns + self._book.log_offset_ns,
            text=text,
            evidence=[evidence_ref(INVENTORY.name, shard, since_ns, pace_text(self._fleet.pace))],
            members={shard},
        )
        if not self._book.raise_alert(alert):
            self._slow_from_ns = None

    def _alert(self) -> OpenAlert | None:
        return self._book.find(AlertKind.SIMULATION, self._book.shard)

"""Keeps the alerts of one shard: raises, updates, clears and groups them, one alert per cause.

Ids follow from an alert's subject and start time. So the same records give the same alerts, and an alert that
was published before is not raised again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from schemas.records import Alert, AlertKind, AlertState, Evidence, Severity
from streams.alerts.rules import (
    CLEARED_KEPT_NS,
    MAX_CLEARED,
    MAX_EVIDENCE,
    MAX_NAMES,
    MAX_TEXT,
    NEVER_NS,
    TOGETHER_NS,
)
from streams.runtime.thresholds import Thresholds

Published = list[tuple[str, Alert]]
"""Key of each alert, and the alert to publish under it."""

DETECTED: Final = frozenset(
    {
        *(AlertKind.AGENT, AlertKind.PROBE_STORM, AlertKind.MISWIRED),
        *(AlertKind.JOB_HANG, AlertKind.JOB_SLOW, AlertKind.JOB_STRAGGLER),
        *(AlertKind.SIMULATION, AlertKind.DUPLICATE_NAME, AlertKind.UNMEASURED),
    }
)
"""Kinds of alerts that do not depend on the health of the same subject."""


@dataclass(slots=True)
class OpenAlert:
    """One active alert."""

    kind: AlertKind
    subject: str
    severity: Severity
    raised_ns: int
    updated_ns: int
    text: str
    update: int = 0
    links: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    grouped: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    """Subjects whose state keeps the alert active."""
    over_ns: int = 0
    """Time at which the last of these subjects' states ended, according to its record."""
    clear_at_ns: int = NEVER_NS
    """Log append time at which the alert is cleared; `NEVER_NS` while it has members."""
    loss_rate: float | None = None
    """The loss rate in the text of a grey link; None if it has none, or until a new owner reads a record."""

    @property
    def alert_id(self) -> str:
        """Id of the alert, made of its kind, subject and start time."""
        return f"{self.kind}:{self.subject}:{self.raised_ns}"

    def covers(self) -> set[str]:
        """Return all subjects of the alert's cause, including subjects that have recovered."""
        return {self.subject, *self.grouped}

    def hold(self, subject: str) -> None:
        """Add a subject that keeps the alert active."""
        self.members.add(subject)
        self.clear_at_ns = NEVER_NS

    def add_evidence(self, refs: Iterable[Evidence]) -> None:
        """Append the evidence that is not yet listed, up to `MAX_EVIDENCE` references."""
        self.evidence = [*self.evidence, *(ref for ref in refs if ref not in self.evidence)][:MAX_EVIDENCE]

    def add_one_evidence(self, ref: Evidence) -> bool:
        """Append one evidence reference; return whether it is new and there was space."""
        if ref in self.evidence or len(self.evidence) >= MAX_EVIDENCE:
            return False
        self.evidence.append(ref)
        return True

    def add_names(
        self,
        *,
        links: Iterable[str] = (),
        nics: Iterable[str] = (),
        jobs: Iterable[str] = (),
        grouped: Iterable[str] = (),
    ) -> None:
        """Append the names that are not listed yet."""
        self.links += [link for link in links if link not in self.links]
        self.nics += [nic for nic in nics if nic not in self.nics]
        self.jobs += [job for job in jobs if job not in self.jobs]
        self.grouped += [subject for subject in grouped if subject not in self.grouped]


class AlertBook:
    """The alerts of one shard. `thresholds` and `log_offset_ns` may be set at any time."""

    def __init__(self, shard: str, thresholds: Thresholds) -> None:
        self.shard = shard
        self.thresholds = thresholds
        self.now_ns = 0
        """Newest log append time."""
        self.log_offset_ns = 0
        """Fabric time minus log append time."""
        self.open: dict[str, OpenAlert] = {}
        self._cleared: dict[str, int] = {}
        """Maps id of a cleared alert to its end."""
        self._covered: dict[str, list[tuple[int, int]]] = {}
        """Maps subject to the times that cleared alerts covered; replayed records of them bring no news."""
        self._out: Published = []

    def take_published(self) -> Published:
        """Return the alerts to publish, and empty the list."""
        out, self._out = self._out, []
        return out

    # --------------------------------------------------------------------------------------- queries

    def find(self, kind: AlertKind, subject: str) -> OpenAlert | None:
        """Return the active alert of a kind and subject; None if there is none."""
        return next((a for a in self.open.values() if a.kind == kind and a.subject == subject), None)

    def newest(self, matches: Callable[[OpenAlert], bool]) -> OpenAlert | None:
        """Return the newest active alert that matches; None if there is none."""
        active_alerts = [a for a in self.open.values() if matches(a)]
        return max(active_alerts, key=lambda a: (a.raised_ns, a.alert_id), default=None)

    def was_cleared(self, alert_id: str) -> bool:
        """Return whether the alert with this id was raised and cleared before."""
        return alert_id in self._cleared

    def was_covered(self, subject: str, since_ns: int) -> bool:
        """Return whether a cleared alert covered a subject when its state began, at `since_ns`."""
        times = self._covered.get(subject, ())
        return any(raised_ns - TOGETHER_NS <= since_ns < cleared_ns for raised_ns, cleared_ns in times)

    def covered_times(self, kind: AlertKind, subject: str) -> list[tuple[int, int]]:
        """Return (raised, cleared), ns, of the cleared alerts of a kind in `DETECTED` for a subject."""
        return self._covered.get(_coverage_key(kind, subject), [])

    @property
    def next_clear_ns(self) -> int:
        """Earliest time at which an alert is to be cleared, ns; `NEVER_NS` if none is."""
        return min((a.clear_at_ns for a in self.open.values()), default=NEVER_NS)

    # --------------------------------------------------------------------------------------- recovery

    def recover(self, alerts: Iterable[Alert]) -> list[OpenAlert]:
        """Restore the state from published alerts, in any order; return the active ones."""
        newest: dict[str, Alert] = {}
        for record in alerts:
            if record["shard"] == self.shard:
                previous = newest.get(record["alert_id"])
                if previous is None or previous["update"] <= record["update"]:
                    newest[record["alert_id"]] = record
        active = []
        for alert_id, record in newest.items():
            alert = _restored(record)
            if record["state"] == AlertState.CLEARED:
                self._note_cleared(alert, record["cleared_ns"] or record["updated_ns"])
            else:
                self.open[alert_id] = alert
                active.append(alert)
        return active

    # --------------------------------------------------------------------------------------- changes

    def raise_alert(self, alert: OpenAlert, text_of: Callable[[OpenAlert], str] | None = None) -> bool:
        """Raise an alert, unless it is active or was cleared before; return whether it is new."""
        alert.links = list(dict.fromkeys(alert.links))
        alert.evidence = alert.evidence[:MAX_EVIDENCE]
        if alert.alert_id in self._cleared or alert.alert_id in self.open:
            return False
        if text_of is not None:
            alert.text = text_of(alert)
        self.open[alert.alert_id] = alert
        self._publish(alert, None)
        return True

    def update(self, alert: OpenAlert, at_ns: int) -> None:
        """Publish an active alert again."""
        alert.update += 1
        alert.updated_ns = max(alert.updated_ns, at_ns)
        self._publish(alert, None)

    def release(self, alert: OpenAlert, subject: str, over_ns: int, hold_ns: int) -> None:
        """Remove a subject that has recovered; if it was the last one, clear the alert after `hold_ns`."""
        alert.members.discard(subject)
        alert.over_ns = max(alert.over_ns, over_ns)
        if not alert.members:
            alert.clear_at_ns = self.now_ns + hold_ns

    def clear(self, alert: OpenAlert) -> None:
        """Clear an alert, with its `over_ns` as the end."""
        del self.open[alert.alert_id]
        alert.update += 1
        alert.updated_ns = max(alert.updated_ns, alert.over_ns)
        cleared_ns = max(alert.over_ns, alert.raised_ns)
        self._note_cleared(alert, cleared_ns)
        self._publish(alert, cleared_ns)

    def clear_due(self, to_ns: int) -> None:
        """Clear the alerts whose hold-down ends by `to_ns`."""
        for alert_id in sorted(i for i, a in self.open.items() if a.clear_at_ns <= to_ns):
            self.clear(self.open[alert_id])

    def group(self, into: OpenAlert, alert: OpenAlert, at_ns: int) -> None:
        """Clear an alert, and add its content to the alert `into` about the same cause."""
        self.clear(alert)
        into.add_evidence(list(alert.evidence))
        into.add_names(links=alert.links, nics=alert.nics, grouped=(alert.subject, *alert.grouped))
        into.members |= alert.members
        self.update(into, max(at_ns, alert.updated_ns))

    def _note_cleared(self, alert: OpenAlert, cleared_ns: int) -> None:
        self._cleared[alert.alert_id] = cleared_ns
        for subject in alert.covers():
            key = _coverage_key(alert.kind, subject)
            self._covered.setdefault(key, []).append((alert.raised_ns, cleared_ns))
        if len(self._cleared) > MAX_CLEARED:
            oldest_ns = cleared_ns - CLEARED_KEPT_NS
            self._cleared = {i: at_ns for i, at_ns in self._cleared.items() if at_ns >= oldest_ns}
            recent_times = {s: [t for t in times if t[1] >= oldest_ns] for s, times in self._covered.items()}
            self._covered = {s: times for s, times in recent_times.items() if times}

    def _publish(self, alert: OpenAlert, cleared_ns: int | None) -> None:
        record: Alert = {
            "alert_id": alert.alert_id,
            "subject": alert.subject,
            "kind": alert.kind,
            "state": AlertState.RAISED if cleared_ns is None else AlertState.CLEARED,
            "severity": alert.severity,
            "shard": self.shard,
            "update": alert.update,
            "raised_ns": alert.raised_ns,
            "updated_ns": alert.updated_ns,
            "cleared_ns": cleared_ns,
            "text": alert.text[:MAX_TEXT],
            "links": alert.links[:MAX_NAMES],
            "nics": alert.nics[:MAX_NAMES],
            "jobs": alert.jobs[:MAX_NAMES],
            "grouped": alert.grouped[:MAX_NAMES],
            "evidence": list(alert.evidence),
        }
        self._out.append((alert.alert_id, record))


def evidence_ref(topic: str, key: str, at_ns: int, text: str) -> Evidence:
    """Return an element of `Alert.evidence`."""
    return {"topic": topic, "key": key, "at_ns": at_ns, "text": text[:MAX_TEXT]}


def clock_text(at_ns: int) -> str:
    """Return the time of day of a fabric time, to the millisecond."""
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def _restored(record: Alert) -> OpenAlert:
    return OpenAlert(
        kind=record["kind"],
        subject=record["subject"],
        severity=record["severity"],
        raised_ns=record["raised_ns"],
        updated_ns=record["updated_ns"],
        text=record["text"],
        update=record["update"],
        links=list(record["links"]),
        nics=list(record["nics"]),
        jobs=list(record["jobs"]),
        grouped=list(record["grouped"]),
        evidence=[ref.copy() for ref in record["evidence"]],
        members={record["subject"]},
    )


def _coverage_key(kind: AlertKind, subject: str) -> str:
    return f"{kind} {subject}" if kind in DETECTED else subject

"""Raises alerts from latency SLOs: an alert lasts until its rule is met again or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from schemas.records import AlertKind, AlertState, LatencyRule, PathDelays, Severity
from schemas.topics import DELAYS
from streams.alerts.book import AlertBook, OpenAlert, evidence_ref
from streams.alerts.latency_slo import Change, LatencyRules

SUBJECT_PREFIX: Final = "latency:"
"""Prefix of a latency rule's name in the subject of its alert."""


class LatencyAlerts:
    """Raises alerts from latency rules. `groups` returns the groups of a NIC, see latency_slo.py."""

    def __init__(self, book: AlertBook, groups: Callable[[str], frozenset[str]]) -> None:
        self._book = book
        self._rules = LatencyRules(groups)

    def wants(self, nic: str) -> bool:
        """Return whether any rule uses a NIC's `PathDelays`."""
        return self._rules.wants(nic)

    def recover(self, alert: OpenAlert) -> None:
        """Restore the state of a violated rule from its active alert."""
        if alert.kind == AlertKind.LATENCY:
            self._rules.restore(alert.subject.removeprefix(SUBJECT_PREFIX), alert.raised_ns)

    def set_rules(self, rules: Iterable[LatencyRule]) -> None:
        """Set the active rules; the alert of a removed rule is cleared."""
        self._apply(self._rules.set_rules(rules))

    def ingest(self, record: PathDelays) -> None:
        """Take one `PathDelays`."""
        self._apply(self._rules.take(record))

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            subject = f"{SUBJECT_PREFIX}{change.name}"
            alert = self._book.find(AlertKind.LATENCY, subject)
            if change.state == AlertState.CLEARED:
                if alert is not None and change.at_ns >= alert.raised_ns:
                    alert.over_ns, alert.text = change.since_ns, f"{alert.text}; over: {change.text}"
                    self._book.clear(alert)
            elif alert is None and not self._book.was_covered(subject, change.since_ns):
                self._book.raise_alert(_new_alert(subject, change))


def _new_alert(subject: str, change: Change) -> OpenAlert:
    return OpenAlert(
        kind=AlertKind.LATENCY,
        subject=subject,
        severity=Severity.WARNING,
        raised_ns=change.since_ns,
        updated_ns=change.at_ns,
        text=f"{change.name}: {change.text}",
        nics=list(change.nics),
        evidence=[evidence_ref(DELAYS.name, a, change.at_ns, f"{a} to {b}") for a, b in change.pairs],
        members={subject},
    )

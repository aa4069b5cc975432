"""Raises alerts from contention: queues that persist.

A queue behind a dead cable belongs to the cable's alert, and a queue in a pause storm to the storm's.
"""

from __future__ import annotations

from schemas.ids import end_parts
from schemas.records import AlertKind, ContentionKind, ContentionState, ContentionWindow, Evidence, Severity
from schemas.topics import CONTENTION
from streams.alerts.book import DETECTED, AlertBook, OpenAlert, evidence_ref
from streams.alerts.rules import BEHIND_NS, EARLY_NS, MAX_EVIDENCE, MAX_NAMES
from streams.alerts.sources.link_health import DEATHS, nodes_of


class QueueAlerts:
    """Raises alerts from `ContentionWindow` records."""

    def __init__(self, book: AlertBook) -> None:
        self._book = book

    def ingest(self, window: ContentionWindow) -> None:
        """Take one contention window; raise, update or clear the alert of its queue."""
        book, link = self._book, window["link"]
        alert = self._alert_of(link)
        if window["state"] == ContentionState.CLOSED:
            if alert is not None:
                self._end(alert, window)
        elif alert is not None:
            if alert.subject == link and window["updated_ns"] >= alert.updated_ns:
                alert.hold(link)
        elif self._persists(window):
            cause = self._cause_of(window)
            if cause is None:
                book.raise_alert(_new_alert(window))
                return
            cause.grouped.append(link)
            cause.add_names(jobs=window["jobs"])
            cause.evidence = [*cause.evidence, _evidence(window)][:MAX_EVIDENCE]
            book.update(cause, window["updated_ns"])

    def _end(self, alert: OpenAlert, window: ContentionWindow) -> None:
        link = window["link"]
        if link in alert.members and window["opened_ns"] >= alert.raised_ns:
            over_ns = window["closed_ns"] or window["updated_ns"]
            self._book.release(alert, link, over_ns, self._book.thresholds.ns("alert_clear_s"))

    def _persists(self, window: ContentionWindow) -> bool:
        """Return whether a queue has lasted long enough, and no cleared alert covered it."""
        lasted_ns = window["updated_ns"] - window["opened_ns"]
        is_long = lasted_ns >= self._book.thresholds.ns("alert_contention_s")
        return is_long and not self._book.was_covered(window["link"], window["opened_ns"])

    def _alert_of(self, link: str) -> OpenAlert | None:
        """Return the alert to which a link's queue belongs; None if it belongs to none."""
        return self._book.newest(
            lambda a: a.kind not in DETECTED and (link in a.covers() or link in a.members)
        )

    def _cause_of(self, window: ContentionWindow) -> OpenAlert | None:
        """Return the alert about the cause of a queue; None without such an alert.

        The cause is a cable of the same switch that just died, or a NIC that holds all traffic back.
        """
        for alert in sorted(self._book.open.values(), key=lambda a: (a.raised_ns, a.alert_id)):
            if _follows_death(window, alert) or _is_same_storm(window, alert):
                return alert
        return None


def _follows_death(window: ContentionWindow, alert: OpenAlert) -> bool:
    """Return whether a queue formed just after the failure that an alert reports, at one of its switches."""
    if alert.kind not in DEATHS.values() or not alert.members:
        return False
    near = {end_parts(end).node for end in window["link"].split(">")}
    nodes = {node for name in alert.covers() for node in nodes_of(name)}
    return -EARLY_NS <= window["opened_ns"] - alert.raised_ns <= BEHIND_NS and bool(near & nodes)


def _is_same_storm(window: ContentionWindow, alert: OpenAlert) -> bool:
    """Return whether a queue belongs to the pause storm of an active alert."""
    shares_links = window["link"] in alert.links or alert.subject in window["links"]
    return (
        window["kind"] == ContentionKind.PAUSE_STORM and alert.kind == AlertKind.CONTENTION and shares_links
    )


def _new_alert(window: ContentionWindow) -> OpenAlert:
    link = window["link"]
    nics = dict.fromkeys(nic for flow in window["flows"] for nic in (flow["nic"], flow["peer"]))
    return OpenAlert(
        kind=AlertKind.CONTENTION,
        subject=link,
        severity=Severity.CRITICAL if window["kind"] == ContentionKind.PAUSE_STORM else Severity.WARNING,
        raised_ns=window["opened_ns"],
        updated_ns=window["updated_ns"],
        text=window["text"],
        links=[link, *window["links"]],
        nics=list(nics)[:MAX_NAMES],
        jobs=list(window["jobs"]),
        evidence=[_evidence(window)],
        members={link},
    )


def _evidence(window: ContentionWindow) -> Evidence:
    return evidence_ref(CONTENTION.name, window["link"], window["updated_ns"], window["text"])

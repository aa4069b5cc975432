"""The text of notifications: the event and its subject, the time, the cause, and the next step.

The text is in the tense of the state: an active alert 'is down since', a cleared one 'was down from .. to'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from actuators.notify.actions import ActionSummary
from actuators.notify.notes import NoteIndex
from actuators.notify.plan import Notification
from actuators.notify.runbooks import page_of, runbook_of, title_of
from schemas.records import Alert, AlertKind, AlertState
from schemas.topics import TOPICS

MAX_NAMES: Final = 20
"""Names of links, NICs or jobs in a text; more are counted."""
MAX_ITEMS: Final = 20
"""Alerts with a paragraph of their own in a message; more are listed by subject."""


@dataclass(frozen=True, slots=True)
class Context:
    """The inputs of a notification's text besides its alerts: notes, actions, addresses and labels."""

    notes: NoteIndex
    actions: ActionSummary
    runbook_url: str
    page_url: str
    labels: dict[str, str]


def is_over(alert: Alert) -> bool:
    """Return whether an alert is cleared."""
    return bool(alert["state"] == AlertState.CLEARED)


def time_text(at_ns: int) -> str:
    """Format a time in UTC, to the second."""
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration_text(duration_ns: int) -> str:
    """Format a duration in its two largest units."""
    seconds = max(0, duration_ns) // 1_000_000_000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def when_text(alert: Alert) -> str:
    """Return a text on since when an alert is active, or from when until when it was active."""
    raised = time_text(alert["raised_ns"])
    if not is_over(alert):
        return f"since {raised}"
    cleared_ns = alert["cleared_ns"] or alert["updated_ns"]
    return f"from {raised} to {time_text(cleared_ns)}, for {duration_text(cleared_ns - alert['raised_ns'])}"


def names_text(names: Sequence[str]) -> str:
    """Return the first `MAX_NAMES` names as a list, with the number of further names."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def cause_text(alert: Alert) -> str:
    """Return a text on the most significant evidence of an alert."""
    if not alert["evidence"]:
        return alert["text"]
    first = alert["evidence"][0]
    return f"{first['text']} ({first['topic'] if first['topic'] in TOPICS else 'record'} {first['key']})"


def title(notification: Notification) -> str:
    """Return the title of a notification: state, kind and subject, or the number of subjects."""
    news = {alert_id for alert_id, _ in notification.news}
    alerts = [a for a in (*notification.firing, *notification.resolved) if not news or a["alert_id"] in news]
    is_all_over = all(is_over(alert) for alert in alerts)
    state = "RESOLVED" if is_all_over else ("STILL ACTIVE" if notification.is_reminder else "RAISED")
    subject = alerts[0]["subject"] if len(alerts) == 1 else f"{len(alerts)} subjects in {alerts[0]['shard']}"
    severity = "" if is_all_over else f" {max_severity(alerts)}"
    return f"[{state}{severity}] {title_of(alerts[0]['kind'])}: {subject}"


def max_severity(alerts: Sequence[Alert]) -> str:
    """Return the name of the highest severity among alerts."""
    order = ("INFO", "WARNING", "CRITICAL")
    return max((str(alert["severity"]) for alert in alerts), key=order.index, default="INFO")


def body(notification: Notification, context: Context) -> str:
    """Return the text of a notification: a paragraph for each alert, the next step and the runbook."""
    alerts = [*notification.firing, *notification.resolved]
    parts = [_paragraph(alert, context) for alert in alerts[:MAX_ITEMS]]
    if len(alerts) > MAX_ITEMS:
        parts.append(
            f"And {len(alerts) - MAX_ITEMS} more: {names_text([a['subject'] for a in alerts[MAX_ITEMS:]])}"
        )
    kind = alerts[0]["kind"]
    if notification.firing:
        parts.append(f"Next step: {next_step(kind)}")
    parts.append(f"Runbook: {page_of(kind, context.runbook_url)}")
    if context.page_url:
        parts.append(f"Page: {context.page_url}")
    return "\n\n".join(parts)


def next_step(kind: AlertKind) -> str:
    """Return the next step that a notification proposes for a kind of alert."""
    return runbook_of(kind).next_step


def _paragraph(alert: Alert, context: Context) -> str:
    state = "was active" if is_over(alert) else f"{alert['severity']}, active"
    lines = [
        f"{alert['subject']}: {state} {when_text(alert)}.",
        f"{'Report' if is_over(alert) else 'Now'}: {alert['text']}",
        f"Cause: {cause_text(alert)}",
        f"Done: {context.actions.text(alert)}",
    ]
    if alert["grouped"]:
        lines.append(f"Also affected: {names_text(alert['grouped'])}")
    if alert["jobs"]:
        lines.append(f"Jobs: {names_text(alert['jobs'])}")
    if owner := context.notes.owner_of(alert):
        lines.append(f"Owner: {owner}")
    if comments := context.notes.comments_of(alert):
        lines.append(f"Comment of {comments[-1]['author']}: {comments[-1]['text']}")
    return "\n".join(lines)

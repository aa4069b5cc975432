"""The labels and annotations of an alert, which Alertmanager's API and its webhook format share.

Labels identify an alert: they are the same in all its records and transmissions. All other fields are
annotations.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from actuators.notify.runbooks import page_of, title_of
from actuators.notify.texts import (
    Context,
    cause_text,
    is_over,
    names_text,
    next_step,
    when_text,
)
from schemas.records import Alert, AlertKind

NS_PER_S: Final = 1_000_000_000
MIN_DURATION_NS: Final = 1_000_000
"""Alertmanager refuses an alert that ends when it begins."""


def alert_name(kind: AlertKind) -> str:
    """Return the value of the label alertname, such as FabricLinkDown for LINK_DOWN."""
    return "Fabric" + "".join(part.capitalize() for part in str(kind).split("_"))


def labels_of(alert: Alert, context: Context) -> dict[str, str]:
    """Return the labels that identify an alert: the configured ones, name, severity, shard and subject."""
    return {
        **context.labels,
        "alertname": alert_name(alert["kind"]),
        "severity": str(alert["severity"]).lower(),
        "shard": alert["shard"] or "default",
        "subject": alert["subject"],
    }


def annotations_of(alert: Alert, context: Context) -> dict[str, str]:
    """Return the annotations of an alert; empty ones are omitted."""
    notes = context.notes
    comments = notes.comments_of(alert)
    annotations = {
        "summary": f"{title_of(alert['kind'])}: {alert['subject']}",
        "description": alert["text"],
        "when": when_text(alert),
        "cause": cause_text(alert),
        "done": context.actions.text(alert),
        "next_step": "" if is_over(alert) else next_step(alert["kind"]),
        "runbook_url": page_of(alert["kind"], context.runbook_url),
        "alert_id": alert["alert_id"],
        "also_affected": names_text(alert["grouped"]),
        "links": names_text(alert["links"]),
        "nics": names_text(alert["nics"]),
        "jobs": names_text(alert["jobs"]),
        "owner": notes.owner_of(alert),
        "acknowledged": "yes" if notes.is_acknowledged(alert) else "",
        "comment": comments[-1]["text"] if comments else "",
    }
    return {name: text for name, text in annotations.items() if text}


def time_json(at_ns: int) -> str:
    """Format a time as RFC 3339, with ns."""
    seconds, rest_ns = divmod(at_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def times_of(alert: Alert, now_ns: int, valid_ns: int) -> tuple[int, int]:
    """Return start and end of an alert, ns. An active alert ends `valid_ns` from now unless renewed."""
    start_ns = min(alert["raised_ns"], now_ns - MIN_DURATION_NS)
    if not is_over(alert):
        return start_ns, now_ns + valid_ns
    cleared_ns = alert["cleared_ns"] or alert["updated_ns"]
    return start_ns, max(start_ns + MIN_DURATION_NS, min(cleared_ns, now_ns))


def alert_json(alert: Alert, context: Context, now_ns: int, valid_ns: int) -> dict[str, Any]:
    """Return an alert in the JSON format of Alertmanager's API."""
    start_ns, end_ns = times_of(alert, now_ns, valid_ns)
    return {
        "labels": labels_of(alert, context),
        "annotations": annotations_of(alert, context),
        "startsAt": time_json(start_ns),
        "endsAt": time_json(end_ns),
        "generatorURL": context.page_url,
    }

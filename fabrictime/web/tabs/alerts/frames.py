"""Formats alerts and records as rows of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from actuators.notify.notes import NoteIndex, state_text
from fabrictime.state.fabric_state import is_cleared
from fabrictime.state.incidents import alert_place
from fabrictime.state.labels import arrow, kind_label
from fabrictime.web.addresses import fabric_address
from schemas.ids import host_of
from schemas.records import Alert, AlertKind, Severity
from schemas.units import delay_text, number_text, seconds_text

AnyRecord = Mapping[str, object]
"""A record of any topic."""

SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
MAX_LINKS: Final = 8
NOTED: Final = "operators"
"""Name of the row with acknowledgement, silence and owner."""
MAX_ITEMS: Final = 12
MIN_EPOCH_NS: Final = 10**17
"""A field `*_ns` with a value above this is a time since the Unix epoch, else a duration."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as names and texts, with its position in the log."""

    position: str
    fields: list[tuple[str, str]]


def ordered(alerts: Iterable[Alert]) -> list[Alert]:
    """Return active alerts by severity and age, then the cleared alerts, the newest first."""

    def order(alert: Alert) -> tuple[int, int, int]:
        if is_cleared(alert):
            return 1, 0, -(alert["cleared_ns"] or 0)
        return 0, SEVERITIES.index(alert["severity"]), -alert["raised_ns"]

    return sorted(alerts, key=order)


def age_text(alert: Alert, now_ns: int) -> str:
    """Return as text how long an alert has been active, or was active before it was cleared."""
    end = alert["cleared_ns"] if alert["cleared_ns"] is not None else now_ns
    return seconds_text((end - alert["raised_ns"]) / 1e9)


def figures(alert: Alert, now_ns: int) -> list[tuple[str, str]]:
    """Return an alert's fields as names and texts."""
    rows = [
        ("kind", kind_label(alert["kind"])),
        ("severity", alert["severity"]),
        ("subject", alert_place(alert)),
        ("raised", time_text(alert["raised_ns"])),
        ("was active for" if is_cleared(alert) else "active for", age_text(alert, now_ns)),
    ]
    if alert["cleared_ns"] is not None:
        rows.append(("cleared", time_text(alert["cleared_ns"])))
    named = {
        "links": [arrow(link) for link in alert["links"]],
        "NICs": alert["nics"],
        "jobs": alert["jobs"],
        "same cause": [arrow(link) for link in alert["grouped"]],
    }
    rows += [(name, _listed(items)) for name, items in named.items() if items]
    return rows


def note_rows(index: NoteIndex, alert: Alert, now_ns: int) -> list[tuple[str, str]]:
    """Return operators' notes about an alert as names and texts: acknowledged, silent, owner, comments."""
    state = state_text(index, alert, now_ns)
    comments = [f"{comment['author']}: {comment['text']}" for comment in index.comments_of(alert)]
    rows = {NOTED: state, "comments": _listed(comments, "; ")}
    return [(name, value) for name, value in rows.items() if value]


def related_links(alert: Alert) -> list[tuple[str, str]]:
    """Return (label, address) of an alert's links, or of its hosts if it names no link, and of its jobs."""
    links = list(alert["links"]) or [alert["subject"]] * (">" in alert["subject"])
    cables: dict[str, str] = {}
    for link in links:
        cables.setdefault("<>".join(sorted(link.replace("<>", ">").split(">"))), link)
    labelled = [(f"{arrow(link)} in the fabric", fabric_address(link=link)) for link in cables.values()]
    if not labelled or alert["kind"] == AlertKind.HOST_DOWN:
        hosts = dict.fromkeys(host_of(nic) for nic in alert["nics"] or [alert["subject"]])
        labelled = [(f"{host} in the fabric", fabric_address(node=host)) for host in hosts]
    labelled += [(f"job {job}", fabric_address(job=job)) for job in alert["jobs"]]
    return labelled[:MAX_LINKS]


def time_text(ns: int) -> str:
    """Return a time in ns since the Unix epoch as UTC text with milliseconds."""
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def nearest(
    candidates: Sequence[tuple[int, AnyRecord]], at_ns: int, text: str
) -> tuple[int, AnyRecord] | None:
    """Return (append time, record) of the candidate to which an alert's evidence most likely refers.

    A record that covers the time `at_ns` comes first, then a record with a NIC that the evidence's `text`
    names, then the record with the nearest append time.
    """

    def rank(candidate: tuple[int, AnyRecord]) -> tuple[bool, bool, int]:
        append_ns, record = candidate
        times = [v for name, v in record.items() if name.endswith("_ns") and isinstance(v, int)]
        is_unnamed = str(record.get("nic") or "\0") not in text
        return at_ns not in times, is_unnamed, abs(append_ns - at_ns)

    return min(candidates, key=rank, default=None)


def fields_of(record: AnyRecord) -> list[tuple[str, str]]:
    """Return a record's fields as names and texts. Long lists are cut."""
    return [(name, _value_text(name, value)) for name, value in record.items() if value not in (None, [], "")]


def _value_text(name: str, value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int) and name.endswith("_ns"):
        return time_text(value) if value > MIN_EPOCH_NS else delay_text(value)
    if isinstance(value, float):
        return number_text(value, 6)
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_value_text(k, v)}" for k, v in value.items() if v not in (None, [], ""))
    if isinstance(value, list | tuple):
        return _listed([_value_text(name, item) for item in value], "; ")
    return str(value)


def _listed(items: Sequence[str], separator: str = ", ") -> str:
    more = len(items) - MAX_ITEMS
    return separator.join(items[:MAX_ITEMS]) + (f"{separator}and {more} more" if more > 0 else "")

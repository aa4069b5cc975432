"""Writes the present faults and the events of an interval as one self-contained HTML file, for a ticket.

The log keeps alerts for a week; decisions and contention are read for the last hour only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from actuators.notify.runbooks import title_of
from fabrictime.state.action_entries import ActionEntry, entries
from fabrictime.state.action_groups import action_groups
from fabrictime.state.action_text import time_text
from fabrictime.state.fabric_state import STATES, UP, FabricState
from fabrictime.state.health import Overview
from fabrictime.state.incidents import Incident
from fabrictime.state.labels import arrow, verdict_label
from fabrictime.state.overview_reader import View
from schemas.ids import natural
from schemas.records import Alert, LinkHealth
from schemas.units import seconds_text

HERE: Final = Path(__file__).parent
ROWS: Final = 200
"""Number of rows of a table; further ones are counted."""
MAX_SPAN_S: Final = 3600.0
"""Longest interval of a report, s: that of the decisions which the reader takes from the log."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report. `empty`: the sentence that replaces a table without rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    empty: str


def incident_rows(view: Overview, now_ns: int) -> list[tuple[str, ...]]:
    """Return the incidents as rows: severity, problem, place, start, jobs, actions taken, next step."""
    return [_incident_row(view, incident, now_ns) for incident in view.incidents]


def _incident_row(view: Overview, incident: Incident, now_ns: int) -> tuple[str, ...]:
    age = seconds_text(max(0.0, (now_ns - incident.since_ns) / 1e9))
    return (
        "noted" if incident.is_quiet else incident.severity,
        incident.title,
        incident.where,
        f"{time_text(incident.since_ns)} ({age})",
        ", ".join(incident.jobs) or "none",
        view.done(incident),
        incident.next_step,
    )


def job_rows(heads: Sequence[Mapping[str, Any]], now_ns: int) -> list[tuple[str, ...]]:
    """Return slow jobs as rows: job, verdict, start of the verdict, text."""
    return [
        (
            head["job"],
            verdict_label(head["verdict"]),
            seconds_text(max(0.0, (now_ns - head["since_ns"]) / 1e9)),
            head["text"],
        )
        for head in heads
    ]


def tables(state: FabricState, view: View, span_s: float) -> list[Table]:
    """Return the report's tables for the newest `span_s` seconds. Hold the state's lock during the call."""
    now_ns = view.now_ns
    since_ns = now_ns - round(span_s * 1e9)
    recent = [entry for entry in entries(state.actions, now_ns) if entry.at_ns >= since_ns]
    alerts = [
        alert
        for alert in state.alerts.values()
        if alert["raised_ns"] >= since_ns or (alert["cleared_ns"] or now_ns) >= since_ns
    ]
    within = f"in the last {seconds_text(span_s)}"
    return [
        Table(
            "Problems now",
            ("severity", "problem", "place", "since (UTC)", "jobs", "done", "next step"),
            incident_rows(view.overview, now_ns),
            "No problem is known now.",
        ),
        Table(
            "Slow jobs now",
            ("job", "verdict", "for", "text"),
            job_rows(view.overview.slow_jobs, now_ns),
            "No job is known to be slow.",
        ),
        Table(
            f"Alerts {within}",
            ("raised (UTC)", "cleared", "severity", "kind", "place", "text"),
            [_alert_row(alert) for alert in sorted(alerts, key=lambda alert: -alert["raised_ns"])],
            f"No alert was active {within}.",
        ),
        Table(
            f"Actions {within}",
            ("newest (UTC)", "cause", "actions"),
            _action_rows(recent),
            f"No action was decided {within}.",
        ),
        Table(
            "Links, NICs and hosts that are not UP",
            ("state", "subject", "since (UTC)", "text"),
            _health_rows(state),
            "No link, NIC or host is known to be anything but UP.",
        ),
    ]


def _alert_row(alert: Alert) -> tuple[str, ...]:
    cleared_ns = alert["cleared_ns"]
    return (
        time_text(alert["raised_ns"]),
        "active" if cleared_ns is None else time_text(cleared_ns),
        alert["severity"],
        title_of(alert["kind"], cleared_ns is not None),
        arrow(alert["subject"]),
        alert["text"],
    )


def _action_rows(recent: Sequence[ActionEntry]) -> list[tuple[str, ...]]:
    return [(time_text(group.at_ns), group.cause, group.counts) for group in action_groups(recent)]


def _health_rows(state: FabricState) -> list[tuple[str, ...]]:
    records = [
        subject.record for subject in state.subjects.values() if STATES.index(subject.record["state"]) > UP
    ]
    return [
        (record["state"], arrow(record["subject"]), time_text(record["since_ns"]), record["text"])
        for record in sorted(records, key=_health_order)
    ]


def _health_order(record: LinkHealth) -> tuple[int, Any]:
    return -STATES.index(record["state"]), natural(record["subject"])


def page(state: FabricState, view: View, span_s: float) -> str:
    """Return the report as HTML. Hold the state's lock during the call."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    fleet = view.overview.fleet
    return environment.get_template("report.html").render(
        health=view.overview.health,
        at=f"{datetime.fromtimestamp(view.now_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC",
        span=seconds_text(span_s),
        figures=(
            ("NICs", fleet.nics),
            ("hosts", fleet.hosts),
            ("running jobs", fleet.jobs),
            *((f"cables {state_name}", count) for state_name, count in fleet.cables.items()),
        ),
        tables=tables(state, view, span_s),
        rows=ROWS,
    )

"""Rows and addresses of the tab Now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actuators.notify.runbooks import page_of, title_of
from fabrictime.state.action_groups import ActionGroup
from fabrictime.state.action_text import time_text
from fabrictime.state.alert_now import JOB_KINDS
from fabrictime.state.health import Overview
from fabrictime.state.incidents import Incident, Problem, alert_place, place_text
from fabrictime.state.labels import aliased_text, arrow, kind_label, readable, verdict_label
from fabrictime.web.addresses import (
    actions_address,
    alert_address,
    clocks_address,
    fabric_address,
    jobs_address,
)
from fabrictime.web.tabs.now.queries import HistoryFigures
from fabrictime.web.widgets import Cell, Part, Row
from schemas.ids import host_of
from schemas.records import Alert, AlertKind, LinkState
from schemas.units import bytes_text, counted, delay_text, percent_text, seconds_text

INCIDENTS_SHOWN: Final = 12
JOBS_SHOWN: Final = 6
ACTIONS_SHOWN: Final = 8
TEXT_SHOWN: Final = 220
JOBS_NAMED: Final = 3
EFFECTS_NAMED: Final = 3


def incident_address(incident: Incident) -> str:
    """Return the address of the tab that shows the cause of an incident."""
    cause = incident.cause
    if incident.switch:
        return fabric_address(node=incident.switch)
    if cause.kind in JOB_KINDS:
        return jobs_address(job=cause.subject)
    if ">" in cause.subject:
        return fabric_address(link=cause.links[0] if cause.links else cause.subject.replace("<>", ">"))
    if cause.kind in (AlertKind.HOST_DOWN, AlertKind.NIC_DOWN):
        return fabric_address(node=host_of(cause.subject))
    return alert_address(cause.alert_id)


def incident_rows(view: Overview, now_ns: int, runbook_url: str) -> list[Row]:
    """Return a row for each of the worst incidents."""
    return [_incident_row(view, one, now_ns, runbook_url) for one in view.incidents[:INCIDENTS_SHOWN]]


def _incident_row(view: Overview, incident: Incident, now_ns: int, runbook_url: str) -> Row:
    cause = incident.cause
    return {
        "id": f"{cause.kind} {cause.subject} {cause.since_ns}",
        "address": alert_address(cause.alert_id) if cause.alert_id else incident_address(incident),
        "where_address": incident_address(incident),
        "severity": "noted" if incident.is_quiet else incident.severity,
        "title": f"{incident.title}: {incident.where}{_verdict_text(cause)}",
        "text": shortened(readable(cause.text)),
        "aliased": _aliased_text(incident),
        "effects": _effects_text(incident),
        "note": incident.note,
        "since": time_text(incident.since_ns),
        "age": seconds_text((now_ns - incident.since_ns) / 1e9),
        "jobs": incident.jobs,
        "done": view.done(incident),
        "step": incident.next_step[:1].upper() + incident.next_step[1:],
        "runbook": page_of(cause.kind, runbook_url),
    }


def _verdict_text(problem: Problem) -> str:
    """Return a job's verdict in brackets, with `now` if the problem is over; empty without a verdict."""
    now = "now " if problem.has_recovered else ""
    return f" ({now}{problem.verdict})" if problem.verdict else ""


def shortened(text: str) -> str:
    """Return a text of at most `TEXT_SHOWN` characters; an ellipsis replaces the words that do not fit."""
    if len(text) <= TEXT_SHOWN:
        return text
    begin = text[: TEXT_SHOWN - 2]
    return f"{(begin.rpartition(' ')[0] or begin).rstrip(',;:')} …"


def _aliased_text(incident: Incident) -> str:
    """Return the cables that may be at fault instead of a link, NIC or host, as text."""
    others = [one for one in incident.cause.candidates if one not in incident.subjects]
    return "" if "@" in incident.cause.subject else aliased_text(others, incident.cause.subject)


def _effects_text(incident: Incident) -> str:
    """Return the further problems of an incident that its title does not name, as text; empty without any."""
    cause = incident.cause
    others = [one for one in incident.problems[1:] if incident.switch or one.kind != cause.kind]
    names = list(dict.fromkeys(_effect_text(problem, cause) for problem in others))
    more = f" and {len(names) - EFFECTS_NAMED} more" if len(names) > EFFECTS_NAMED else ""
    return f"same cause: {', '.join(names[:EFFECTS_NAMED])}{more}" if names else ""


def _effect_text(problem: Problem, cause: Problem) -> str:
    if problem.kind in JOB_KINDS:
        return f"job {problem.subject}" + (f", {problem.verdict}" if problem.verdict else "")
    if problem.kind == cause.kind:
        return arrow(problem.subject)
    return f"{kind_label(problem.kind)} {place_text(problem.kind, problem.subject)}"


def severity_cell(row: Row) -> Cell:
    """Return the table cell with the severity of an incident."""
    return [(f"ft-severity ft-{row['severity']}", row["severity"], "")]


def problem_cell(row: Row) -> Cell:
    """Return the table cell with an incident's title as a link, its text and its effects."""
    title = ("ft-go ft-subject", row["title"], "", row["where_address"])
    return [
        title,
        *(("ft-detail", row[name], "") for name in ("text", "aliased", "effects", "note") if row[name]),
    ]


def since_cell(row: Row) -> Cell:
    """Return the table cell with the time at which an incident began, and its age."""
    return [("", row["since"], ""), ("ft-detail", row["age"], "")]


def jobs_cell(row: Row) -> Cell:
    """Return the table cell with the jobs of an incident as links."""
    jobs = row["jobs"]
    more = len(jobs) - JOBS_NAMED
    lines: list[Any] = [("ft-go", job, "", jobs_address(job=job)) for job in jobs[:JOBS_NAMED]]
    return lines + ([("ft-detail", f"and {more} more", "")] if more > 0 else []) or [
        ("ft-detail", "none", "")
    ]


def step_cell(row: Row) -> Cell:
    """Return the table cell with the next step and the runbook, as a link if its address is a URL."""
    runbook = row["runbook"]
    is_web = runbook.startswith(("http://", "https://"))
    name = f"runbook {runbook.rpartition('/')[2].removesuffix('.md')}"
    page: Part = ("ft-go", name, runbook, runbook) if is_web else ("ft-detail", name, runbook)
    return [("", row["step"], ""), page]


# ------------------------------------------------------------------------------------------------- lists


def job_rows(heads: Sequence[Mapping[str, Any]], now_ns: int) -> list[Row]:
    """Return a row for each slow job; the job that has been slow for longest comes first."""
    return [
        {
            "id": head["job"],
            "job": head["job"],
            "verdict": verdict_label(head["verdict"]),
            "kind": "network" if head["blames_network"] else "host",
            "text": shortened(readable(head["text"])),
            "since": f"{seconds_text((now_ns - head['since_ns']) / 1e9)}",
            "iteration": _iteration_text(head),
        }
        for head in heads[:JOBS_SHOWN]
    ]


def _iteration_text(head: Mapping[str, Any]) -> str:
    iteration_ns, expected_ns = head["iteration_ns"], head["expected_iteration_ns"]
    if not iteration_ns or not expected_ns:
        return f"{delay_text(iteration_ns)} an iteration" if iteration_ns else "iteration time not known"
    return f"{iteration_ns / expected_ns:.1f} times its baseline"  # the text has the time of the verdict


def job_cell(row: Row) -> Cell:
    """Return the table cell with a job as a link, its verdict and its text."""
    return [
        ("ft-go ft-subject", row["job"], "", jobs_address(job=row["job"])),
        (f"ft-verdict ft-kind-{row['kind']}", row["verdict"], ""),
        ("ft-detail", row["text"], ""),
    ]


def pace_cell(row: Row) -> Cell:
    """Return the table cell with the time since which a job is slow, and its iteration time."""
    return [("", f"for {row['since']}", ""), ("ft-detail", row["iteration"], "")]


def action_rows(groups: Sequence[ActionGroup], now_ns: int) -> list[Row]:
    """Return a row for each of the newest groups of actions."""
    return [
        {
            "id": f"{group.subject} {group.entries[-1].decision_id}",
            "cause": group.cause,
            "counts": group.counts,
            "ago": f"{seconds_text((now_ns - group.at_ns) / 1e9)} ago",
            "address": actions_address(decision=group.entries[0].decision_id),
        }
        for group in groups[:ACTIONS_SHOWN]
    ]


def action_cell(row: Row) -> Cell:
    """Return the table cell with a fault and the actions that it caused."""
    return [("ft-subject", row["cause"], ""), ("ft-detail", row["counts"], "")]


def cleared_rows(alerts: Sequence[Alert], now_ns: int) -> list[Row]:
    """Return a row for each of the alerts that were cleared last."""
    return [
        {
            "id": alert["alert_id"],
            "title": title_of(alert["kind"], is_over=True),
            "where": alert_place(alert),
            "span": f"{time_text(alert['raised_ns'])} to {time_text(alert['cleared_ns'] or 0)}",
            "ago": f"{seconds_text((now_ns - (alert['cleared_ns'] or 0)) / 1e9)} ago",
            "address": alert_address(alert["alert_id"]),
        }
        for alert in alerts
    ]


def cleared_cell(row: Row) -> Cell:
    """Return the table cell with the title of a cleared alert as a link."""
    return [("ft-go", f"{row['title']}: {row['where']}", "", row["address"])]


def worst_rows(view: Overview, figures: HistoryFigures | None, is_fresh: bool) -> list[Row]:
    """Return the rows of the worst link, clock and queue; `not known` replaces `none` without fresh
    evidence.
    """
    return [_link_row(view, is_fresh), _clock_row(figures), _queue_row(view, is_fresh)]


def _row(name: str, value: str, note: str, address: str) -> Row:
    return {"id": name, "name": name, "value": value, "note": note, "address": address}


def _link_row(view: Overview, is_fresh: bool) -> Row:
    record = view.worst_link
    if record is not None:
        link = record["links"][0] if record["links"] else record["subject"].replace("<>", ">")
        return _row("link", arrow(record["subject"]), readable(record["text"]), fabric_address(link=link))
    up = view.fleet.cables.get(LinkState.UP, 0)
    if not is_fresh and up:
        return _row("link", "—", "not known now", "/fabric")
    if not up:
        return _row("link", "—", "no cable is measured yet", "/fabric")
    return _row("link", "none", f"{counted(up, 'cable')} UP", "/fabric")


def _clock_row(figures: HistoryFigures | None) -> Row:
    if figures is None:
        return _row("clock", "—", "the history has not answered yet", clocks_address())
    if figures.worst_clock is None:
        return _row("clock", "—", "no clock is measured yet", clocks_address())
    clock = figures.worst_clock
    bound = "" if clock.state == "UNSYNCED" else f", bound {delay_text(clock.bound_ns)}"
    note = f"{clock.state}{bound}; {figures.synced} of {figures.clocks} are SYNCED"
    return _row("clock", clock.clock, note, clocks_address(clock=clock.clock))


def _queue_row(view: Overview, is_fresh: bool) -> Row:
    if not view.queues or not is_fresh:
        note = "not known now" if view.queues else "no queue is inferred yet"
        return _row("queue", "—", note, fabric_address(metric="queue"))
    if view.worst_queue is None:
        return _row(
            "queue", "none", "the mean wait is at most 10 µs at each link", fabric_address(metric="queue")
        )
    link, queue = view.worst_queue
    depth = f"{bytes_text(queue.mean_bytes)}, " if queue.rate_bps else ""
    load = "" if queue.utilisation is None else f", {percent_text(queue.utilisation)} busy"
    note = f"{depth}{delay_text(queue.delay_ns(queue.mean_bytes))} of delay{load}"
    return _row("queue", arrow(link), note, fabric_address(link=link, metric="queue"))


def worst_cell(row: Row) -> Cell:
    """Return the table cell with a worst object as a link, and its figures."""
    return [("ft-go ft-subject", row["value"], "", row["address"]), ("ft-detail", row["note"], "")]

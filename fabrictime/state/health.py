"""The state of the fleet in one sentence, and the figures of the page's tab Now.

Pure: callers hold the state's lock. The page, `fabrictime status`, `fabrictime top`, the HTTP interface and
assistants' tools show this sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fabrictime.state import action_entries
from fabrictime.state.action_groups import ActionGroup, action_groups, done_text, groups_at
from fabrictime.state.alert_now import JOB_KINDS, is_slow
from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_state import STATES, UP, FabricState, is_cleared
from fabrictime.state.freshness import CURRENT, HistoryAge, consequence
from fabrictime.state.incidents import MOVABLE_KINDS, Incident, incidents
from fabrictime.state.queue_history import QueueDepth
from schemas.ids import end_parts
from schemas.records import Alert, AlertKind, LinkHealth, LinkState, Severity
from schemas.records import Verdict as JobVerdict
from schemas.units import counted

Level = Literal["ok", "wait", "warn", "bad"]

MIN_QUEUE_NS: Final = 10_000
"""Delay below which no queue counts as worst, ns: some packets wait behind others in any fabric."""
CLEARED_SHOWN: Final = 6
"""Number of cleared alerts on the first page."""
NAMED: Final = 2
"""Number of incidents that the sentence names."""
_UNKNOWN: Final = "Health is not known now"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the fleet as a sentence, with the consequence of late evidence."""

    level: Level
    sentence: str
    consequence: str = ""
    """Which figures are old; empty if all are current."""
    cause: str = ""
    """The missing evidence and the usual reason of its absence."""

    @property
    def text(self) -> str:
        """The sentence about the fleet, and the consequence of late evidence."""
        return " ".join(filter(None, (self.sentence, self.consequence)))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The size of the fleet: NICs, hosts, running jobs, jobs without a fault, and drawn cables by state."""

    nics: int
    hosts: int
    jobs: int
    healthy_jobs: int
    cables: Mapping[LinkState, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of the page's tab Now."""

    health: Health
    fleet: Fleet
    incidents: list[Incident]
    slow_jobs: list[Mapping[str, Any]]
    """Heads of the newest diagnoses of slow jobs, those that are slow for longest first."""
    worst_link: LinkHealth | None
    worst_queue: tuple[str, QueueDepth] | None
    """The link with the longest queue and that queue; None if no queue is worth a remark."""
    queues: int
    """Number of links whose queue is inferred."""
    cleared: list[Alert]
    """The alerts that were cleared last, the newest first."""
    actions: list[ActionGroup]
    """The last actions by fault, the newest first."""
    acts: bool
    """Whether decisions are carried out."""

    def done(self, incident: Incident) -> str:
        """Return as text the actions that an incident caused; `nothing` or a dash without actions."""
        text = done_text(self.actions, incident.places, incident.since_ns)
        if incident.cause.kind not in MOVABLE_KINDS:
            return text or "—"
        return text or ("nothing" if self.acts else "nothing: the mode is OBSERVE")


def overview(
    state: FabricState,
    evidence: Verdict,
    now_ns: int,
    history: HistoryAge = CURRENT,
    log_age_s: float | None = None,
) -> Overview:
    """Return the content of the page's tab Now. `log_age_s` is the age of the newest record of the log."""
    groups = action_groups(action_entries.entries(state.actions, now_ns))
    listed = _with_moved_jobs(state, now_ns, groups)
    running = [job.head for job in state.jobs.jobs.values() if job.is_running(now_ns)]
    hosts = {nic.host for nic in state.nics.values()}
    healthy = sum(head["verdict"] != JobVerdict.UNKNOWN and not is_slow(head) for head in running)
    fleet = Fleet(len(state.nics), len(hosts), len(running), healthy, state.cable_counts())
    slow_jobs = sorted((head for head in running if is_slow(head)), key=lambda head: head["since_ns"])
    persistent = [
        one.cause.subject
        for one in listed
        if one.cause.kind == AlertKind.CONTENTION and not one.has_recovered
    ]
    return Overview(
        health(fleet, listed, evidence, history, log_age_s),
        fleet,
        listed,
        slow_jobs,
        _worst_link(state),
        _worst_queue(state, persistent),
        len(state.queues.all_newest()),
        _cleared(state),
        groups,
        state.actions.mode().act,
    )


def _with_moved_jobs(state: FabricState, now_ns: int, groups: Sequence[ActionGroup]) -> list[Incident]:
    return [replace(one, moved_jobs=_moved_jobs(state, one, groups)) for one in incidents(state, now_ns)]


def jobs_of(state: FabricState, alert_id: str, now_ns: int) -> tuple[str, ...]:
    """Return the jobs of the incident to which an alert belongs."""
    groups = action_groups(action_entries.entries(state.actions, now_ns))
    return next(
        (
            incident.jobs
            for incident in _with_moved_jobs(state, now_ns, groups)
            if any(problem.alert_id == alert_id for problem in incident.problems)
        ),
        (),
    )


def _moved_jobs(state: FabricState, incident: Incident, groups: Sequence[ActionGroup]) -> frozenset[str]:
    """Return the jobs of the flows that actions on an incident moved or paced."""
    if incident.cause.kind not in MOVABLE_KINDS:
        return frozenset()
    at_incident = groups_at(groups, incident.places, incident.since_ns)
    flow_ids = {entry.flow_id for group in at_incident for entry in group.entries}
    return frozenset(state.flows.jobs_of(flow_ids))


def health(
    fleet: Fleet,
    listed: Sequence[Incident],
    evidence: Verdict,
    history: HistoryAge = CURRENT,
    log_age_s: float | None = None,
) -> Health:
    """Return the state of the fleet as a sentence, with the consequence of late evidence."""
    late = consequence(evidence, history, log_age_s)
    cause = "; ".join(evidence.missing) or history.fault
    active = [incident for incident in listed if not incident.is_quiet]
    if not fleet.nics and not sum(fleet.cables.values()):
        return Health("wait", "Nothing is measured yet: no NIC has announced itself.", "", cause)
    if evidence.missing:
        return Health("bad", f"{_UNKNOWN}.{_last_text(active)}", late, cause)
    if active:
        is_critical = active[0].severity == Severity.CRITICAL and not active[0].has_recovered
        level: Level = "bad" if is_critical else "warn"
        return Health(level, f"{_problems_text(active)}.", late, cause)
    if not evidence.is_checked:
        measured = f"{counted(fleet.nics, 'NIC')} on {counted(fleet.hosts, 'host')}"
        return Health("wait", f"{measured} are announced; the first measurements are being checked.")
    return Health("wait" if late else "ok", _healthy_text(fleet, len(listed)), late, cause)


def unknown(cause: str) -> Health:
    """Return the health of a fleet whose records could not be read. `cause` is the reason in one line."""
    return Health("bad", f"{_UNKNOWN}.", "", cause)


def _last_text(active: Sequence[Incident]) -> str:
    return f" The last state had {_problems_text(active)}." if active else ""


def _problems_text(active: Sequence[Incident]) -> str:
    """Return the number of incidents and the names of the worst ones, as text."""
    named = "; ".join(f"{_incident_text(incident)}{_jobs_text(incident)}" for incident in active[:NAMED])
    more = f"; and {len(active) - NAMED} more" if len(active) > NAMED else ""
    return f"{counted(len(active), 'problem')}: {named}{more}"


def _incident_text(incident: Incident) -> str:
    """Return the title and the place of an incident as one clause of a sentence."""
    title = incident.title if incident.title.startswith("NIC") else _lower(incident.title)
    joint = ": " if incident.cause.kind in JOB_KINDS else " at "
    return f"{title}{joint}{incident.where}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _jobs_text(incident: Incident) -> str:
    jobs = [job for job in incident.jobs if job not in incident.subjects]
    if not jobs:
        return ""
    return f", job {jobs[0]}" if len(jobs) == 1 else f", {len(jobs)} jobs"


def _healthy_text(fleet: Fleet, quiet: int) -> str:
    up = counted(fleet.cables.get(LinkState.UP, 0), "cable")
    size = f"{up} UP, {counted(fleet.nics, 'NIC')} on {counted(fleet.hosts, 'host')}"
    jobs = f", {counted(fleet.healthy_jobs, 'job')} without a fault" if fleet.healthy_jobs else ""
    if quiet:
        quiet_text = f"{counted(quiet, 'problem')} acknowledged, silenced or in maintenance"
        return f"Nothing new is wrong: {quiet_text}; {size}{jobs}."
    return f"Nothing is wrong: {size}{jobs}, no active alert."


def _cleared(state: FabricState) -> list[Alert]:
    alerts = [alert for alert in state.alerts.values() if is_cleared(alert)]
    return sorted(alerts, key=lambda alert: -(alert["cleared_ns"] or 0))[:CLEARED_SHOWN]


def _worst_link(state: FabricState) -> LinkHealth | None:
    """Return the newest record of cables in the worst state, without dead hosts' cables; None without any."""
    records = {
        name: subject.record
        for name, subject in state.subjects.items()
        if STATES.index(subject.record["state"]) > UP
    }
    return max(
        (
            record
            for name, record in records.items()
            if ">" in name and not any(end_parts(end).node in records for end in name.split("<>"))
        ),
        key=lambda record: (STATES.index(record["state"]), record["loss_rate"] or 0.0, record["since_ns"]),
        default=None,
    )


def _worst_queue(state: FabricState, persistent: Sequence[str]) -> tuple[str, QueueDepth] | None:
    """Return the link with the longest wait, and its queue; None if no wait reaches `MIN_QUEUE_NS`. Links in
    `persistent` count with any wait.
    """
    queues = state.queues.all_newest()
    listed = {state.cable_graph.existing_number(link) for link in persistent}
    longest_ns, number = max(
        (
            (wait_ns, number)
            for number, queue in queues.items()
            if (wait_ns := queue.delay_ns(queue.mean_bytes)) >= MIN_QUEUE_NS or number in listed
        ),
        default=(0.0, 0),
    )
    return (state.cable_graph.name(number), queues[number]) if longest_ns > 0 else None

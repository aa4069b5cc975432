"""Groups all active problems by their cause: alerts, links that are not UP, contention windows and slow jobs.

A problem joins the incident of the link, host or job that explains it: a slow job joins the incident of the
link that its verdict names, a link joins the incident of its dead host. Prober problems of many hosts, and
three or more links of one switch, are one incident. Pure: callers hold the state's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from actuators.notify.notes import state_text
from actuators.notify.runbooks import runbook_of, title_of
from fabrictime.state.alert_now import HANGS, JOB_KINDS, has_recovered, is_slow, text_now
from fabrictime.state.fabric_state import STATES, UP, FabricState
from fabrictime.state.labels import arrow, verdict_label
from schemas.ids import end_parts, host_of, natural
from schemas.records import Alert, AlertKind, ContentionWindow, HealthKind, LinkHealth, Severity, Verdict

Place = tuple[str, ...]
"""A kind of object and its name, under which an incident can be looked up."""

MAX_ALERTS: Final = 1_000
"""Number of alerts that are grouped, the worst first."""
MIN_SWITCH_LINKS: Final = 3
"""Number of links of one switch, in trouble of one kind, from which on they are one incident."""
MIN_QUEUE_NS: Final = 2_000_000_000
"""Shortest time for which a queue is a problem, ns: the flows of a healthy job meet for shorter."""
NAMES_SHOWN: Final = 3
SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
KINDS: Final = (
    AlertKind.HOST_DOWN,
    AlertKind.NIC_DOWN,
    AlertKind.LINK_DOWN,
    AlertKind.LINK_FLAPPING,
    AlertKind.LINK_GREY,
    AlertKind.MISWIRED,
    AlertKind.UNEXPLAINED_LOSS,
    AlertKind.CONTENTION,
    AlertKind.JOB_HANG,
    AlertKind.JOB_SLOW,
    AlertKind.JOB_STRAGGLER,
)
"""Kinds from cause to effect: a problem joins the incident of an earlier kind. Other kinds follow."""
LINK_KINDS: Final = frozenset(
    {AlertKind.LINK_DOWN, AlertKind.LINK_GREY, AlertKind.LINK_FLAPPING, AlertKind.MISWIRED}
)
MOVABLE_KINDS: Final = frozenset(KINDS) - {AlertKind.MISWIRED, AlertKind.UNEXPLAINED_LOSS}
"""Kinds to which actions on flows may answer."""
_HEALTH_KINDS: Final = {
    HealthKind.LINK: {
        "DOWN": AlertKind.LINK_DOWN,
        "FLAPPING": AlertKind.LINK_FLAPPING,
        "GREY": AlertKind.LINK_GREY,
    },
    HealthKind.NIC: {"DOWN": AlertKind.NIC_DOWN},
    HealthKind.HOST: {"DOWN": AlertKind.HOST_DOWN},
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: an alert, or a bad state that has no alert yet."""

    kind: AlertKind
    severity: Severity
    subject: str
    text: str
    since_ns: int
    links: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    alert_id: str = ""
    next_step: str = ""
    note: str = ""
    """Text of an operator's acknowledgement or silence; empty without one."""
    is_quiet: bool = False
    """Whether an operator has acknowledged or silenced it."""
    verdict: str = ""
    """Label of a job's verdict."""
    candidates: tuple[str, ...] = ()
    """Cables that may be at fault in place of the subject, because probes cannot distinguish them; of losses
    without a located cause, the places that may be the cause.
    """
    has_recovered: bool = False
    """Whether the subject is no longer in trouble, and the alert is still active."""


@dataclass(frozen=True, slots=True)
class Incident:
    """The problems with one common cause. The first problem is this cause.

    An alert about a trouble from which its job has recovered comes last.
    """

    problems: tuple[Problem, ...]
    switch: str = ""
    """The switch whose links are in trouble, if that is the cause."""
    moved_jobs: frozenset[str] = frozenset()
    """The jobs whose flows were moved away from the cause."""

    @property
    def cause(self) -> Problem:
        """The problem that explains the others of this incident."""
        return self.problems[0]

    @property
    def severity(self) -> Severity:
        """The highest severity of its problems that have not recovered; of all problems if all have."""
        present = [problem for problem in self.problems if not problem.has_recovered]
        return min((problem.severity for problem in present or self.problems), key=SEVERITIES.index)

    @property
    def since_ns(self) -> int:
        """The time at which the cause began, ns. The interval of a job's verdict may begin earlier."""
        return min(problem.since_ns for problem in self.problems if problem.kind == self.cause.kind)

    @property
    def is_quiet(self) -> bool:
        """Whether operators have acknowledged or silenced all of its problems."""
        return all(problem.is_quiet for problem in self.problems)

    @property
    def has_recovered(self) -> bool:
        """Whether the subjects of all its problems have recovered."""
        return all(problem.has_recovered for problem in self.problems)

    @property
    def note(self) -> str:
        """Text of the first operator's acknowledgement or silence; empty without one."""
        return next((problem.note for problem in self.problems if problem.note), "")

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that its problems affect, in the order of their names."""
        jobs = {job for problem in self.problems for job in problem.jobs} | self.moved_jobs
        return tuple(sorted(jobs, key=natural))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of all problems with the same kind as the cause."""
        same_kind = (problem.subject for problem in self.problems if problem.kind == self.cause.kind)
        return tuple(dict.fromkeys(same_kind))

    @property
    def places(self) -> set[str]:
        """The cables, NICs and hosts of its problems."""
        return {
            name
            for problem in self.problems
            for name in (problem.subject, *_cables(problem), *problem.nics, *map(host_of, problem.nics))
        }

    @property
    def title(self) -> str:
        """The kind of the cause as text, in the past tense if the subject has recovered."""
        cause = self.cause
        is_slow_otherwise = cause.verdict and cause.verdict != verdict_label(Verdict.STRAGGLER)
        if cause.kind == AlertKind.JOB_STRAGGLER and is_slow_otherwise and not cause.has_recovered:
            return "Job is slow"
        return title_of(cause.kind, cause.has_recovered)

    @property
    def where(self) -> str:
        """The place of the cause: a link, a switch, hosts or a job."""
        if self.switch:
            return f"{len(self.subjects)} links of {self.switch}"
        if self.cause.kind == AlertKind.UNEXPLAINED_LOSS and self.cause.candidates:
            return _one_of(self.cause.candidates)
        return names_text([place_text(self.cause.kind, subject) for subject in self.subjects])

    @property
    def next_step(self) -> str:
        """The next step for an operator, as text."""
        step = runbook_of(self.cause.kind).next_step
        return self.cause.next_step or step.replace("explain JOB", f"explain {self.cause.subject}")


def names_text(names: Sequence[str]) -> str:
    """Return the first few names, and the number of further names, as text."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def place_text(kind: AlertKind, subject: str) -> str:
    """Return the subject of a problem in readable form."""
    _, of_shard, shard = subject.partition("@")
    return f"shard {shard}" if of_shard else f"job {subject}" if kind in JOB_KINDS else arrow(subject)


def alert_place(alert: Alert) -> str:
    """Return the place of an alert for readers; of losses without a located cause, where it may be."""
    suspects = [*alert["links"], *alert["nics"]] if alert["kind"] == AlertKind.UNEXPLAINED_LOSS else []
    return _one_of(suspects) if suspects else place_text(alert["kind"], alert["subject"])


def _one_of(suspects: Sequence[str]) -> str:
    """Return the places one of which causes losses."""
    places = names_text([arrow(name) for name in suspects])
    return f"one of {places}" if len(suspects) > 1 else places


def incidents(state: FabricState, now_ns: int) -> list[Incident]:
    """Return the incidents, the worst first. Incidents that operators acknowledged or silenced come last."""
    hosts = {nic.host for nic in state.nics.values()}
    return group(problems(state, now_ns), hosts)


# ---------------------------------------------------------------------------------------------- problems


def problems(state: FabricState, now_ns: int) -> list[Problem]:
    """Return all active problems of the fleet."""
    active = sorted(state.active_alerts(), key=lambda alert: SEVERITIES.index(alert["severity"]))
    from_alerts = [_of_alert(state, alert, now_ns) for alert in active[:MAX_ALERTS]]
    over = {problem.alert_id for problem in from_alerts if problem.has_recovered}
    present = (alert for alert in active if alert["alert_id"] not in over)
    reported = {name for alert in present for name in _reported(alert)}
    unreported = [
        *_of_health(state, reported),
        *_of_contention(state.open_contention(now_ns), now_ns, reported),
        *_of_jobs(state, now_ns, reported),
    ]
    return from_alerts + unreported


def _of_alert(state: FabricState, alert: Alert, now_ns: int) -> Problem:
    job = state.jobs.jobs.get(alert["subject"]) if alert["kind"] in JOB_KINDS else None
    head = None if job is None else job.head
    if head is not None and not is_slow(head):
        head = None  # it says nothing about the alert's cause
    note = state_text(state.notes, alert, now_ns)
    health = state.subjects.get(alert["subject"])
    is_quiet = state.notes.is_quiet(alert, now_ns)
    links, nics = _places_of(alert) if head is None else _blamed(head)
    return Problem(
        alert["kind"],
        alert["severity"],
        alert["subject"],
        text_now(state, alert),
        alert["raised_ns"],
        links,
        nics,
        tuple(alert["jobs"]) or ((alert["subject"],) if alert["kind"] in JOB_KINDS else ()),
        alert["alert_id"],
        "" if head is None else head["remedy"],
        note,
        is_quiet,
        "" if head is None else verdict_label(head["verdict"]),
        () if health is None else tuple(health.record["candidates"]),
        has_recovered(state, alert),
    )


def _places_of(alert: Alert) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the links and NICs of an alert; for a job's alert, only its first link, else its first NIC."""
    links, nics = tuple(alert["links"]), tuple(alert["nics"])
    if alert["kind"] in JOB_KINDS:
        return links[:1], () if links else nics[:1]
    return links, nics


def _reported(alert: Alert) -> Iterator[str]:
    """Yield the names of subjects that an alert already covers, so that they are no further problems."""
    yield from (alert["subject"], *alert["grouped"])
    if alert["kind"] in LINK_KINDS or alert["kind"] == AlertKind.CONTENTION:
        yield from (_cable(name) for name in (alert["subject"], *alert["links"]) if ">" in name)


def _of_health(state: FabricState, reported: set[str]) -> Iterator[Problem]:
    for name, subject in state.subjects.items():
        record = subject.record
        kind = _HEALTH_KINDS.get(record["kind"], {}).get(record["state"])
        if kind is not None and STATES.index(record["state"]) > UP and name not in reported:
            yield _of_record(record, kind)


def _of_record(record: LinkHealth, kind: AlertKind) -> Problem:
    severity = Severity.CRITICAL if record["state"] == "DOWN" else Severity.WARNING
    nics = (record["subject"],) if kind == AlertKind.NIC_DOWN else ()
    links = tuple(record["links"])
    return Problem(
        kind,
        severity,
        record["subject"],
        record["text"],
        record["since_ns"],
        links,
        nics,
        candidates=tuple(record["candidates"]),
    )


def _of_contention(windows: Iterable[ContentionWindow], now_ns: int, reported: set[str]) -> Iterator[Problem]:
    for window in windows:
        if now_ns - window["opened_ns"] >= MIN_QUEUE_NS and _cable(window["link"]) not in reported:
            yield Problem(
                AlertKind.CONTENTION,
                Severity.INFO if not window["jobs"] else Severity.WARNING,
                window["link"],
                window["text"],
                window["opened_ns"],
                (window["link"],),
                jobs=tuple(window["jobs"]),
            )


def _of_jobs(state: FabricState, now_ns: int, reported: set[str]) -> Iterator[Problem]:
    for name, job in state.jobs.jobs.items():
        head = job.head
        if name in reported or not job.is_running(now_ns) or not is_slow(head):
            continue
        links, nics = _blamed(head)
        kind = AlertKind.JOB_STRAGGLER if not head["blames_network"] else AlertKind.JOB_SLOW
        kind = AlertKind.JOB_HANG if head["verdict"] in HANGS else kind
        yield Problem(
            kind,
            Severity.CRITICAL if kind == AlertKind.JOB_HANG else Severity.WARNING,
            name,
            head["text"],
            head["since_ns"],
            links,
            nics,
            (name,),
            next_step=head["remedy"],
            verdict=verdict_label(head["verdict"]),
        )


def _blamed(head: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the links and the NICs or hosts that a verdict names as its subject."""
    subject = head["subject"]
    if ">" in subject:
        return (subject,), ()
    return ((), (subject,)) if subject and subject != head["job"] else (tuple(head["links"][:1]), ())


# ---------------------------------------------------------------------------------------------- grouping


def group(listed: Iterable[Problem], hosts: set[str]) -> list[Incident]:
    """Group problems by cause. Return the incidents, the worst first. `hosts` are the hosts of the NICs."""
    ordered = sorted(listed, key=lambda problem: (_rank(problem.kind), problem.since_ns, problem.subject))
    switches = _switches(ordered, hosts)
    members: dict[int, list[Problem]] = {}
    number_of: dict[Place, int] = {}
    for problem in ordered:
        own, causes = _own_places(problem, switches), _cause_places(problem)
        number = next((number_of[place] for place in (*causes, *own) if place in number_of), len(members))
        is_first = number not in members
        for place in own:
            if is_first or place[0] != "kind":
                number_of.setdefault(place, number)
        members.setdefault(number, []).append(problem)
    return sorted((_incident(same_cause, switches) for same_cause in members.values()), key=_order)


def _rank(kind: AlertKind) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _order(incident: Incident) -> tuple[bool, bool, int, int, int, int]:
    is_over, severity = incident.has_recovered, SEVERITIES.index(incident.severity)
    rank = _rank(incident.cause.kind)
    return incident.is_quiet, is_over, severity, -len(incident.jobs), rank, incident.since_ns


def _incident(members: Sequence[Problem], switches: Mapping[tuple[str, str], str]) -> Incident:
    members = sorted(members, key=lambda problem: problem.has_recovered and problem.kind in JOB_KINDS)
    cause = members[0]
    same_kind = [problem for problem in members if problem.kind == cause.kind]
    switch = switches.get((cause.kind, cause.subject), "") if len(same_kind) >= MIN_SWITCH_LINKS else ""
    return Incident(tuple(members), switch)


@lru_cache(maxsize=1 << 14)
def _cable(name: str) -> str:
    return "<>".join(sorted(name.replace("<>", ">").split(">")))


def _cables(problem: Problem) -> list[str]:
    named = [problem.subject] if ">" in problem.subject else problem.links
    return list(dict.fromkeys(_cable(name) for name in named if ">" in name))


def _nodes(cable: str) -> list[tuple[str, str]]:
    return [end_parts(end) for end in cable.split("<>")]


def _switches(listed: Sequence[Problem], hosts: set[str]) -> dict[tuple[str, str], str]:
    """Return, by (kind, subject) of a link, the switch of which several links have this kind of trouble."""
    counts: Counter[tuple[str, str]] = Counter()
    subjects: dict[tuple[str, str], list[str]] = {}
    for problem in listed:
        if problem.kind in LINK_KINDS and ">" in problem.subject:
            for node in {node for node, _ in _nodes(_cable(problem.subject))} - hosts:
                counts[problem.kind, node] += 1
                subjects.setdefault((problem.kind, node), []).append(problem.subject)
    switches: dict[tuple[str, str], str] = {}
    for (kind, node), count in sorted(counts.items(), key=lambda item: (-item[1], natural(item[0][1]))):
        if count >= MIN_SWITCH_LINKS:
            for subject in subjects[kind, node]:
                switches.setdefault((kind, subject), node)
    return switches


def _own_places(problem: Problem, switches: Mapping[tuple[str, str], str]) -> list[Place]:
    """Return the keys under which later problems find this problem's incident."""
    if problem.kind in LINK_KINDS or problem.kind == AlertKind.CONTENTION:
        own: list[Place] = [("cable", cable) for cable in _cables(problem)]
        switch = switches.get((problem.kind, problem.subject))
        return [*own, ("switch", problem.kind, switch)] if switch else own
    if problem.kind == AlertKind.NIC_DOWN:
        return [("nic", problem.subject)]
    if problem.kind == AlertKind.HOST_DOWN:
        return [("host", problem.subject)]
    return [("job", problem.subject)] if problem.kind in JOB_KINDS else [("kind", problem.kind)]


def _cause_places(problem: Problem) -> Iterator[Place]:
    """Yield the keys of the incidents that may explain this problem, the most probable first."""
    for cable in _cables(problem):
        yield ("cable", cable)
    yield from (("cable", _cable(name)) for name in problem.candidates)
    for cable in _cables(problem):
        for node, port in _nodes(cable):
            yield ("nic", f"{node}/{port}")
            yield ("host", node)
    for name in (problem.subject, *problem.nics) if not _is_fleet_wide(problem) else ():
        yield ("nic", name)
        yield ("host", host_of(name))


def _is_fleet_wide(problem: Problem) -> bool:
    return len(problem.nics) > 1 and problem.kind not in JOB_KINDS

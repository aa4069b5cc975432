"""A read-only HTTP interface beside the page: faults, slow jobs, and actions of the policy.

All answers come from the live state that the page shows, and no route changes anything. FastAPI writes the
description, `/api/openapi.json`. Lists are limited, newest or worst first. Times are fabric time, ns since
the Unix epoch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field

from fabrictime.exports.networks import Network, networks_between
from fabrictime.state import action_entries
from fabrictime.state.action_text import as_record, mode_text
from fabrictime.state.fabric_state import STATES, UP, is_cleared
from fabrictime.state.health import overview
from schemas.records import Alert, Severity

if TYPE_CHECKING:
    from fabrictime.state.cable_graph import Plan
    from fabrictime.state.job_state import Job
    from fabrictime.web.live_fabric import LiveFabric

MAX_ROWS: Final = 1000
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SEVERITIES: Final = tuple(Severity)

Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Largest number of entries.")]
Part = Annotated[str, Query(description="Only entries whose subject contains this.")]


class Health(BaseModel):
    """Counts of NICs, cables, alerts and jobs, and whether the evidence for them is fresh."""

    text: str = Field(description="the sentence of the page's tab Now")
    is_fresh: bool = Field(description="whether the figures rest on fresh evidence")
    missing_evidence: list[str] = Field(description="evidence that is missing, and the usual cause")
    nics: int = Field(description="NICs that announce themselves")
    cables: dict[str, int] = Field(description="drawn cables by state")
    alerts: dict[str, int] = Field(description="active alerts by severity")
    contended_links: int = Field(description="links with an open contention window")
    jobs: int = Field(description="jobs that publish operations")
    slow_jobs: list[str] = Field(description="jobs that are slower than their baseline, or hang")
    mode: str = Field(description="whether actions are carried out")


class LinkState(BaseModel):
    """The health of a cable, NIC or host, with its evidence."""

    subject: str
    kind: str
    state: str
    since_ns: int
    loss_rate: float | None = Field(description="share of packets lost, of a GREY link")
    candidates: list[str] = Field(description="subjects that explain the same evidence equally well")
    text: str = Field(description="the state with its evidence")


class AlertState(BaseModel):
    """An alert with the operators' notes about it."""

    alert_id: str
    subject: str
    kind: str
    severity: str
    state: str
    text: str
    raised_ns: int
    cleared_ns: int | None
    jobs: list[str]
    is_acknowledged: bool
    silent_until_ns: int | None = Field(description="end of the silence in force")
    notes: list[str] = Field(description="comments with their authors")


class JobVerdict(BaseModel):
    """The newest verdict about a job: cause, confidence, subject and remedy."""

    job: str
    is_running: bool
    verdict: str
    confidence: float
    blames_network: bool
    subject: str
    text: str
    remedy: str
    since_ns: int
    end_ns: int = Field(description="end of the interval that the verdict is about")
    iteration_ns: int | None
    expected_iteration_ns: int | None
    missing: list[str] = Field(description="evidence that would have said more")


class Contention(BaseModel):
    """An open contention window of a link."""

    link: str
    kind: str
    opened_ns: int
    delay_ns: float
    flows: int
    jobs: list[str]


class HostPlace(BaseModel):
    """The groups of hosts to which a host belongs in one network, with switches, from the leaf upwards."""

    network: str
    groups: list[str]
    switches: list[list[str]] = Field(description="switches of each group")
    peers: list[int] = Field(description="number of hosts of each group, with this one")


class Api:
    """Answers requests from the live state. Each method is one HTTP route."""

    def __init__(self, live: LiveFabric) -> None:
        """Answer requests from the state in `live`."""
        self._live = live
        self._networks: tuple[Plan | None, tuple[Network, ...]] = None, ()
        """The drawn topology, which is the same object until it changes, and its networks."""

    def router(self) -> APIRouter:
        """Return a router with all routes below /api/v1."""
        router = APIRouter(prefix="/api/v1", tags=["state"])
        for path, method in (
            ("/health", self.health),
            ("/links", self.links),
            ("/alerts", self.alerts),
            ("/jobs", self.jobs),
            ("/jobs/{job:path}", self.job),
            ("/contention", self.contention),
            ("/actions", self.actions),
            ("/hosts/{host}", self.host),
        ):
            router.add_api_route(path, method, methods=["GET"])
        router.add_api_route("/{path:path}", self.unknown, methods=[*_METHODS], include_in_schema=False)
        return router

    def unknown(self, path: str, request: Request) -> None:
        """Answer an unknown path or method with an error as JSON, because the page would answer with HTML."""
        if request.method != "GET":
            raise HTTPException(405, f"method {request.method}: expected GET", headers={"Allow": "GET"})
        raise HTTPException(404, f"path {path!r}: expected one that /api/openapi.json describes")

    def health(self) -> Health:
        """Return counts of NICs, cables, alerts and jobs, and whether the evidence for them is fresh."""
        state, now_ns, evidence = self._live.state, self._live.now_ns(), self._live.verdict()
        with state.lock:
            view = overview(state, evidence, now_ns, log_age_s=state.age_s(self._live.log_now_ns()))
            by_severity = Counter(str(alert["severity"]) for alert in state.active_alerts())
            return Health(
                text=view.health.text,
                is_fresh=evidence.is_fresh,
                missing_evidence=list(evidence.missing),
                nics=view.fleet.nics,
                cables={name: count for name, count in view.fleet.cables.items() if count},
                alerts=dict(by_severity),
                contended_links=len({one["link"] for one in state.open_contention(now_ns)}),
                jobs=view.fleet.jobs,
                slow_jobs=sorted(head["job"] for head in view.slow_jobs)[:MAX_ROWS],
                mode=mode_text(state.actions),
            )

    def links(self, name: Part = "", everything: bool = False, limit: Limit = 100) -> list[LinkState]:
        """Return the cables, NICs and hosts that are not UP, or all with `everything`, the worst first."""
        state = self._live.state
        with state.lock:
            records = [subject.record for key, subject in state.subjects.items() if name in key]
            rows = [one for one in records if everything or STATES.index(one["state"]) > UP]
            rows.sort(key=lambda one: (-STATES.index(one["state"]), -one["since_ns"]))
            return [
                LinkState(
                    subject=one["subject"],
                    kind=one["kind"],
                    state=one["state"],
                    since_ns=one["since_ns"],
                    loss_rate=one["loss_rate"],
                    candidates=one["candidates"],
                    text=one["text"],
                )
                for one in rows[:limit]
            ]

    def alerts(self, name: Part = "", everything: bool = False, limit: Limit = 100) -> list[AlertState]:
        """Return the active alerts, the worst first. With `everything`, return also the cleared alerts."""
        state, now_ns = self._live.state, self._live.now_ns()
        with state.lock:
            alerts = [
                one
                for one in state.alerts.values()
                if name in one["subject"] and (everything or not is_cleared(one))
            ]
            alerts.sort(key=_rank)
            return [self._alert(one, now_ns) for one in alerts[:limit]]

    def _alert(self, alert: Alert, now_ns: int) -> AlertState:
        notes = self._live.state.notes
        silence = notes.silence_at(alert, now_ns)
        return AlertState(
            alert_id=alert["alert_id"],
            subject=alert["subject"],
            kind=alert["kind"],
            severity=alert["severity"],
            state=alert["state"],
            text=alert["text"],
            raised_ns=alert["raised_ns"],
            cleared_ns=alert["cleared_ns"],
            jobs=alert["jobs"],
            is_acknowledged=notes.is_acknowledged(alert),
            silent_until_ns=None if silence is None else silence.until_ns,
            notes=[
                f"{comment['author']}: {comment['text']}"
                for note in notes.of(alert)
                for comment in note["comments"]
            ],
        )

    def jobs(self, everything: bool = False, limit: Limit = 100) -> list[JobVerdict]:
        """Return the running jobs, or all jobs with `everything`, with their verdicts, the newest first."""
        state, now_ns = self._live.state, self._live.now_ns()
        with state.lock:
            jobs = [job for job in state.jobs.jobs.values() if everything or job.is_running(now_ns)]
            jobs.sort(key=lambda job: -job.newest.end_ns)
            return [_verdict(job, now_ns) for job in jobs[:limit]]

    def job(self, job: str) -> JobVerdict:
        """Return the newest verdict about a job: the reason why it is slow, and the remedy."""
        state, now_ns = self._live.state, self._live.now_ns()
        with state.lock:
            if job not in state.jobs.jobs:
                raise HTTPException(404, f"job {job!r}: no verdict within the last hour")
            return _verdict(state.jobs.jobs[job], now_ns)

    def contention(self, limit: Limit = 100) -> list[Contention]:
        """Return the open contention windows, the longest delay first."""
        state, now_ns = self._live.state, self._live.now_ns()
        with state.lock:
            windows = sorted(state.open_contention(now_ns), key=lambda one: -one["delay_ns"])
            return [
                Contention(
                    link=one["link"],
                    kind=one["kind"],
                    opened_ns=one["opened_ns"],
                    delay_ns=one["delay_ns"],
                    flows=one["flows_total"],
                    jobs=one["jobs"],
                )
                for one in windows[:limit]
            ]

    def actions(self, name: Part = "", limit: Limit = 100) -> list[dict[str, Any]]:
        """Return the newest decisions, each with its cause, outcome and effect, the newest first."""
        state, now_ns = self._live.state, self._live.now_ns()
        with state.lock:
            entries = [one for one in action_entries.entries(state.actions, now_ns) if name in one.flow_id]
            return [as_record(one) for one in entries[:limit]]

    def host(self, host: str) -> list[HostPlace]:
        """Return the switches of a host from leaf to core, in each network that it is cabled to."""
        state = self._live.state
        with state.lock:
            plan = state.plan()
        if (host, 0) not in plan.nodes:
            raise HTTPException(404, f"host {host!r}: no cable of it is known")
        places = []
        for network in self._networks_of(plan):
            groups = [group for level in network.levels for group in level if host in group.hosts]
            if groups:
                places.append(
                    HostPlace(
                        network=network.name,
                        groups=[group.name for group in groups],
                        switches=[list(group.switches) for group in groups],
                        peers=[len(group.hosts) for group in groups],
                    )
                )
        return places

    def _networks_of(self, plan: Plan) -> tuple[Network, ...]:
        newest, networks = self._networks
        if newest is not plan:
            names = [name for name, _ in plan.nodes]
            cables = [(names[low], names[high]) for low, _, high, _ in plan.cables]
            networks = networks_between(dict(plan.nodes), cables)
            self._networks = plan, networks
        return networks


def _rank(alert: Alert) -> tuple[bool, int, int]:
    """Return a sort key: active alerts first, then by severity, then the newest first."""
    return is_cleared(alert), -_SEVERITIES.index(alert["severity"]), -alert["raised_ns"]


def _verdict(job: Job, now_ns: int) -> JobVerdict:
    head, newest = job.head, job.newest
    return JobVerdict(
        job=head["job"],
        is_running=job.is_running(now_ns),
        verdict=newest.verdict,
        confidence=head["confidence"],
        blames_network=head["blames_network"],
        subject=head["subject"],
        text=head["text"],
        remedy=head["remedy"],
        since_ns=head["since_ns"],
        end_ns=newest.end_ns,
        iteration_ns=newest.iteration_ns,
        expected_iteration_ns=newest.expected_iteration_ns,
        missing=list(head["missing"]),
    )

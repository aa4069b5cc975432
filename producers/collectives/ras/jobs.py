"""Reports the jobs of this host whose RAS services answer, with or without our profiler.

A thread finds and queries the services; a query may take seconds. States of a job whose processes are
connected go into the records of its processes. Each other job gets its own records. The services of all hosts
of a job give the same report, so the lowest rank's host publishes each report, and other hosts only a few.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.collectives.job_name import job_name
from producers.collectives.process import TracedProcess
from producers.collectives.ras.discovery import Discovery, Service
from producers.collectives.ras.parse import parse_report
from producers.collectives.ras.query import is_own_address, query_ras
from producers.collectives.ras.report import RasReport, communicator_reports, rank_states
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import ClockReading
from schemas.records import CollectiveBatch, CollectiveSource, CommunicatorReport, RankState
from schemas.socket_access import SocketAccess, access_of, owned_name

_log = logging.getLogger(__name__)

QUICK_S: Final = 2.0
"""s between queries while a job makes no progress, so that a stall is noticed soon."""
FOLLOWER_S: Final = 20.0
"""s between records of a job from a host other than that of its lowest rank."""
MAX_SHARE: Final = 0.05
"""Maximum share of the time in which services collect reports."""
_ATTEMPTS: Final = 4
"""Maximum number of queries of an address: the kernel may choose a stopped process, or another job's."""
_FAILED_S: Final = 60.0
"""s for which a service that never answered is left alone."""
_GONE_S: Final = 15.0
"""s without an answer after which a job counts as ended."""
_REPEAT_S: Final = 60.0
_MAX_WARNINGS: Final = 20
_MAX_JOBS: Final = 64


class Answer(NamedTuple):
    """A report with the RAS service that sent it."""

    service: Service
    report: RasReport


class Place(NamedTuple):
    """The host that publishes the records: its name, boot, shard and network namespace."""

    host: str
    boot: str
    shard: str
    netns: str | None


@dataclass(slots=True)
class _Job:
    """A job without connected processes. `process` is the process name in the job's records."""

    tenant: str | None
    process: str
    version: str
    seen_s: float
    published_s: float = -FOLLOWER_S
    batch: int = 0
    end_ns: int = 0
    launched: dict[str, int] = field(default_factory=dict)
    """Operations by communicator in the last report."""
    is_idle: bool = False
    """Whether no operation was launched between the last two reports, or a rank is behind or missing."""


class RasJobs:
    """The jobs of one host that RAS services report. Call `poll` often; it never blocks."""

    def __init__(self, settings: CollectiveSettings, place: Place) -> None:
        self._settings, self._place = settings, place
        self._access: SocketAccess = access_of(settings.socket_users)
        self._discovery = Discovery(place.netns)
        self._fixed = self._fixed_service()
        self._jobs: dict[str, _Job] = {}
        self._answers: list[Answer] | None = None
        self._thread: threading.Thread | None = None
        self._due_s = self._busy_s = 0.0
        self._failed_s: dict[tuple[str, int], float] = {}
        self._answered: set[tuple[str, int]] = set()
        self._sent: dict[str, tuple[float, RankState]] = {}
        self.failed = 0
        """Services that answered with something else."""

    def _fixed_service(self) -> Service | None:
        """Return the configured service; None if none is configured or its address is another host's."""
        if self._settings.ras in ("auto", "off"):
            return None
        address, _, port = self._settings.ras.rpartition(":")
        address = address.strip("[]")
        if not is_own_address(address, self._place.netns):
            text = "collectives.ras %s: expected an address of %s"
            _log.warning(text, self._settings.ras, self._place.host)
            return None
        return Service(address, int(port), os.geteuid())

    @property
    def names(self) -> frozenset[str]:
        """Names of the reported jobs that have no connected process and so have their own records."""
        return frozenset(self._jobs)

    # ---- queries

    def poll(
        self, now_s: float, processes: Sequence[TracedProcess], clock: Callable[[], ClockReading]
    ) -> list[CollectiveBatch]:
        """Start due queries, pass rank states to `processes`, and return the records of other jobs."""
        records: list[CollectiveBatch] = []
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            answers, self._answers = self._answers or [], None
            records = list(self._records(now_s, answers, processes, clock()))
        is_on = self._settings.ras == "auto" or self._fixed is not None
        if is_on and self._thread is None and now_s >= self._due_s:
            self._begin(now_s)
        return records

    def _begin(self, now_s: float) -> None:
        is_idle = any(job.is_idle for job in self._jobs.values())
        wait_s = min(QUICK_S, self._settings.ras_s) if is_idle else self._settings.ras_s

        def work() -> None:
            self._busy_s = 0.0
            try:
                self._answers = self._ask_all(now_s)
            except OSError as error:
                self._warn(error)
            self._due_s = now_s + max(wait_s, self._busy_s / MAX_SHARE)

        self._due_s = now_s + wait_s
        self._thread = threading.Thread(target=work, name="RAS queries", daemon=True)
        self._thread.start()

    def _ask_all(self, now_s: float) -> list[Answer]:
        services = [self._fixed] if self._fixed is not None else self._discovery.services()
        answers: list[Answer] = []
        for service in services:
            is_due = now_s >= self._failed_s.get(service.key, now_s)
            if is_due and self._access.admits(service.user):
                answers += self._ask(service, now_s)
        return answers

    def _ask(self, service: Service, now_s: float) -> Iterator[Answer]:
        """Query a service repeatedly and yield its reports, until they name all of its processes."""
        left = set(service.environments)
        seen: set[str] = set()
        for _ in range(_ATTEMPTS):
            begin_s = time.monotonic()
            try:
                report = parse_report(query_ras(service.address, service.port, self._place.netns))
                self._busy_s += time.monotonic() - begin_s
            except (OSError, ValueError) as error:
                if service.key not in self._answered:
                    self._failed_s[service.key] = now_s + _FAILED_S
                    self._warn(error)
                    return
                continue
            self._answered.add(service.key)
            largest = report.largest
            if largest is not None and largest.id not in seen:
                seen.add(largest.id)
                yield Answer(service, report)
            left -= report.processes
            if not left or not report.processes:
                return

    def _warn(self, error: Exception) -> None:
        if isinstance(error, ConnectionRefusedError):  # RAS is off, or NCCL has none
            return
        self.failed += 1
        if self.failed <= _MAX_WARNINGS:
            _log.warning("%s: %s", self._place.host, error)

    # ---- records

    def _records(
        self,
        now_s: float,
        answers: Sequence[Answer],
        processes: Sequence[TracedProcess],
        clock: ClockReading,
    ) -> Iterator[CollectiveBatch]:
        for answer in answers:
            states = rank_states(answer.report)
            traced = self._traced(answer.report, processes)
            if traced is not None:
                self._pass(now_s, states, processes)
                continue
            name = self._name(answer)
            job = self._jobs.get(name)
            if job is None and len(self._jobs) < _MAX_JOBS:
                job = self._jobs[name] = self._new_job(answer, now_s)
            if job is not None and self._is_due(job, answer, states, now_s):
                yield self._record(name, job, clock, states, communicator_reports(answer.report))
        for name in [name for name, job in self._jobs.items() if now_s - job.seen_s >= _GONE_S]:
            yield self._record(name, self._jobs.pop(name), clock, [], [], ended=True)

    def _traced(self, report: RasReport, processes: Sequence[TracedProcess]) -> TracedProcess | None:
        """Return a connected process that is a rank of the reported job; None if there is none."""
        reported = {one.id for one in report.communicators}
        return next((process for process in processes if reported & process.ranks.keys()), None)

    def _pass(self, now_s: float, states: Sequence[RankState], processes: Sequence[TracedProcess]) -> None:
        """Pass each state to the first process of its communicator, unless it was published recently."""
        for state in states:
            owner = next((one for one in processes if state["communicator"] in one.ranks), None)
            key = f"{state['communicator']}/{state['rank']}"
            at_s, sent = self._sent.get(key, (-_REPEAT_S, None))
            if owner is not None and (sent != state or now_s - at_s >= _REPEAT_S):
                self._sent[key] = now_s, state
                owner.rank_states.append(state)

    def _name(self, answer: Answer) -> str:
        """Return the job's name from a process's environment, else from its communicator's id."""
        service, largest = answer.service, answer.report.largest
        name = job_name(_environment(answer))
        return owned_name(name or f"communicator-{largest.id if largest is not None else '?'}", service.user)

    def _new_job(self, answer: Answer, now_s: float) -> _Job:
        tenant = _environment(answer).get("FABRICTIME_TENANT")
        process = f"ras-{answer.service.port}-{time.time_ns() // 1_000_000}"
        return _Job(tenant or None, process, answer.report.version or "unknown", now_s)

    def _is_due(self, job: _Job, answer: Answer, states: Sequence[RankState], now_s: float) -> bool:
        """Store a job's newest report; return whether it must be published now."""
        launched = {one.id: sum(one.leaders.values()) for one in answer.report.communicators if one.leaders}
        job.is_idle = bool(states) or bool(launched and launched == job.launched)
        job.launched, job.seen_s = launched, now_s
        first = answer.report.first_rank
        leads = first is None or is_own_address(first.host, self._place.netns)
        if not leads and now_s - job.published_s < FOLLOWER_S:
            return False
        job.published_s = now_s
        return True

    def _record(
        self,
        name: str,
        job: _Job,
        clock: ClockReading,
        states: list[RankState],
        reports: list[CommunicatorReport],
        *,
        ended: bool = False,
    ) -> CollectiveBatch:
        begin_ns, job.end_ns = job.end_ns or clock.fabric_ns, clock.fabric_ns
        batch, job.batch = job.batch, job.batch + 1
        return {
            "job": name,
            "tenant": job.tenant,
            "host": self._place.host,
            "boot": self._place.boot,
            "process": job.process,
            "batch": batch,
            "shard": self._place.shard,
            "source": CollectiveSource.RAS,
            "version": job.version,
            "begin_ns": min(begin_ns, clock.fabric_ns),
            "end_ns": clock.fabric_ns,
            "clock": clock.state,
            "bound_ns": clock.bound_ns,
            "ended": ended,
            "events_dropped": 0,
            "events_invalid": 0,
            "calls_ignored": 0,
            "communicators": [],
            "operations": [],
            "transfers": [],
            "summaries": [],
            "queue_pairs": [],
            "counters": [],
            "ranks": states,
            "reports": reports,
            "activity": None,
        }


def _environment(answer: Answer) -> Mapping[str, str]:
    """Return the environment of a listening process that the report names; empty if none is readable."""
    environments = answer.service.environments
    named = sorted(answer.report.processes & environments.keys()) or sorted(environments)
    return environments[named[0]] if named else {}

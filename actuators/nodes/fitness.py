"""Fitness of hosts, determined from their audit results.

It is used before a job starts (`fabrictime audit gate`) and for drains (`node_policy`). Ages are measured by
log append time, so that no host's clock matters. Only the newest result of each check counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from schemas.records import AuditCategory, AuditResult, AuditSeverity, AuditStatus

COMPARED: Final = ("baseline.", "collectives.hosts", "fabric.", "fleet.", "sku.")
"""Prefixes of the ids of checks that are evaluated from other records, not on the host."""
FLEET: Final = "fleet"
"""Host of evaluation results that do not concern a single host."""
AGENT: Final = "agent."
"""Prefix of the ids of results about the agent itself; they say nothing about the host."""
MIN_SHARE: Final = 0.5
"""Share of a complete run's results that shows a host's fitness: a run of few checks proves little."""
MAX_OUTCOMES: Final = 16
"""Largest number of outcomes kept for each check of a host."""


class Fitness(StrEnum):
    """Whether a host may take jobs: FIT, UNFIT or UNKNOWN."""

    FIT = "FIT"
    UNFIT = "UNFIT"
    UNKNOWN = "UNKNOWN"


class Outcome(NamedTuple):
    """The outcome of a check in a run. `at_ns`: log append time."""

    check: str
    run: str
    at_ns: int
    status: AuditStatus
    is_error: bool
    """True if the check's failure makes a host unfit."""
    text: str
    category: AuditCategory = AuditCategory.OTHER
    subjects: tuple[str, ...] = ()
    """The devices, mounts or processes that failed."""
    remedy: str = ""

    @property
    def is_failed(self) -> bool:
        """True if the outcome is a failure that makes the host unfit."""
        return self.is_error and self.status is AuditStatus.FAILED


@dataclass(frozen=True, slots=True)
class HostFitness:
    """A host's fitness, its newest failures, and the reasons as text for people."""

    host: str
    fitness: Fitness
    reasons: tuple[str, ...] = ()
    failures: tuple[Outcome, ...] = ()
    outcomes: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """Outcomes by check, the newest first."""


@dataclass(slots=True)
class _Run:
    expected: int = 0
    checks: set[str] = field(default_factory=set)
    at_ns: int = 0

    @property
    def is_complete(self) -> bool:
        return 0 < self.expected <= len(self.checks)


class AuditHistory:
    """The newest outcomes of every host, filled with results in log order."""

    def __init__(self, run: str | None = None) -> None:
        """Begin without results. `run`: the only run whose results count; None: all runs count."""
        self._run = run
        self._outcomes: dict[str, dict[str, list[Outcome]]] = {}
        self._runs: dict[str, dict[str, _Run]] = {}
        self._whole = 0
        """Number of results of the largest complete run."""
        self.failing: dict[str, set[str]] = {}
        """Maps check to the hosts whose newest result of it makes them unfit."""

    @property
    def hosts(self) -> list[str]:
        """The hosts with results, sorted."""
        return sorted(self._outcomes)

    def take(self, record: AuditResult, at_ns: int) -> None:
        """Add a result that the log appended at `at_ns`; replace a result of the same run and check."""
        if self._run not in (None, record["run"]):
            return
        host, check, run = record["host"], record["check"], record["run"]
        status, is_error = AuditStatus(record["status"]), record["severity"] == AuditSeverity.ERROR
        failed = (item["subject"] for item in record["findings"] if item["status"] == AuditStatus.FAILED)
        category = AuditCategory(record["category"])
        outcome = Outcome(
            check, run, at_ns, status, is_error, record["text"], category, tuple(failed), record["remedy"]
        )
        outcomes = self._outcomes.setdefault(host, {}).setdefault(check, [])
        outcomes[:] = [outcome, *(earlier for earlier in outcomes if earlier.run != run)][:MAX_OUTCOMES]
        hosts = self.failing.setdefault(check, set())
        (hosts.add if outcome.is_failed else hosts.discard)(host)
        if not check.startswith(COMPARED):
            part = self._runs.setdefault(host, {}).setdefault(run, _Run())
            part.expected = max(part.expected, record["checks"])
            part.checks.add(check)
            part.at_ns = at_ns
            if part.is_complete:
                self._whole = max(self._whole, part.expected)

    def newest(self, host: str, check: str, since_ns: int = 0) -> Outcome | None:
        """Return the newest outcome of a check for a host; None if there is none since `since_ns`."""
        outcomes = self._of_check(host, check) if check in self._outcomes.get(host, {}) else []
        return outcomes[0] if outcomes and outcomes[0].at_ns >= since_ns else None

    def forget(self, before_ns: int) -> None:
        """Drop the runs and outcomes that are older than `before_ns`."""
        for host, checks in list(self._outcomes.items()):
            for check, outcomes in list(checks.items()):
                outcomes[:] = [outcome for outcome in outcomes if outcome.at_ns >= before_ns]
                if not outcomes:
                    del checks[check]
                    self.failing[check].discard(host)
            if not checks:
                del self._outcomes[host]
        for host, runs in list(self._runs.items()):
            self._runs[host] = {name: run for name, run in runs.items() if run.at_ns >= before_ns}

    def fitness(self, host: str, since_ns: int, *, strict: bool = False) -> HostFitness:
        """Return a host's fitness by results since `since_ns`. `strict`: UNKNOWN errors make it UNKNOWN."""
        outcomes = {
            check: recent
            for check in self._outcomes.get(host, {})
            if (
                recent := tuple(
                    outcome for outcome in self._of_check(host, check) if outcome.at_ns >= since_ns
                )
            )
        }
        newest = [every[0] for _, every in sorted(outcomes.items())]
        failures = tuple(outcome for outcome in newest if outcome.is_failed)
        if failures:
            reasons = tuple(_text(outcome) for outcome in failures)
            return HostFitness(host, Fitness.UNFIT, reasons, failures, outcomes)
        unknown = self._unknown(host, since_ns, newest, strict)
        return HostFitness(host, Fitness.UNKNOWN if unknown else Fitness.FIT, unknown, (), outcomes)

    def _of_check(self, host: str, check: str) -> list[Outcome]:
        """Return the outcomes of a check for a host, the newest first.

        A comparison of the fleet has results only for outlier hosts. So if it passed for the fleet in a run
        and has no result for this host, the host passed too.
        """
        every = self._outcomes[host][check]
        if not check.startswith(COMPARED):
            return every
        named, runs = {outcome.run for outcome in every}, self._runs.get(host, {})
        passed = [
            outcome
            for outcome in self._outcomes.get(FLEET, {}).get(check, ())
            if outcome.status is AuditStatus.PASSED and outcome.run not in named and outcome.run in runs
        ]
        return sorted([*every, *passed], key=lambda outcome: outcome.at_ns, reverse=True)

    def _unknown(self, host: str, since_ns: int, newest: Iterable[Outcome], strict: bool) -> tuple[str, ...]:
        """Return the reasons why the fitness of a host without failures is UNKNOWN; empty if it is fit."""
        runs = {name: run for name, run in self._runs.get(host, {}).items() if run.at_ns >= since_ns}
        statuses = {outcome.status for outcome in newest if not outcome.check.startswith(AGENT)}
        if not runs:
            return ("no result" if self._run is None else f"no result of run {self._run}",)
        needed = MIN_SHARE * self._whole
        if not any(run.is_complete and run.expected >= needed for run in runs.values()):
            name, run = max(runs.items(), key=lambda item: item[1].at_ns)
            expected = run.expected if run.expected >= needed else self._whole
            return (f"run {name}: {len(run.checks)} of {expected} results",)
        if AuditStatus.PASSED not in statuses:
            return ("no check passed",)
        unknown = [
            outcome for outcome in newest if outcome.is_error and outcome.status is AuditStatus.UNKNOWN
        ]
        return tuple(_text(outcome) for outcome in unknown) if strict else ()


def _text(outcome: Outcome) -> str:
    return f"{outcome.check}: {outcome.text}"

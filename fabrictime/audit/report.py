"""The report of a fleet audit: the results of all hosts in one run, with counts and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from producers.audit.report import AGENT
from schemas.records import AuditCategory, AuditResult, AuditSeverity, AuditStatus
from streams.audit.results import FLEET

FIT_EXIT: Final = 0
ERRORS_EXIT: Final = 1
NOT_RUN_EXIT: Final = 2
ANSWER: Final = AGENT.check_id
"""Id of the check that is UNKNOWN for a host without an answer, or with missing results."""
TITLES: Final = {
    AuditCategory.SOFTWARE: "Software",
    AuditCategory.NODE: "Memory and processors",
    AuditCategory.GPU: "GPUs",
    AuditCategory.STORAGE: "Storage",
    AuditCategory.PCIE: "PCIe",
    AuditCategory.FRONTEND: "Front-end network",
    AuditCategory.BACKEND: "Back-end network",
    AuditCategory.FABRIC: "Fabric",
    AuditCategory.COLLECTIVES: "Collectives",
    AuditCategory.KERNEL_LOG: "Kernel log",
    AuditCategory.OTHER: "Agents",
}
"""Titles of the categories, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of results by outcome. A failed check of severity WARNING is a warning, not an error."""

    errors: int = 0
    warnings: int = 0
    unknown: int = 0
    passed: int = 0
    skipped: int = 0

    @property
    def checked(self) -> int:
        """Number of results that passed or failed."""
        return self.errors + self.warnings + self.passed

    def __str__(self) -> str:
        return (
            f"{self.errors:,} errors, {self.warnings:,} warnings, {self.unknown:,} unknown, "
            f"{self.passed:,} passed, {self.skipped:,} skipped"
        )


def counted(results: Iterable[AuditResult]) -> Counts:
    """Return the numbers of `results` by outcome."""
    counts: Counter[str] = Counter()
    for result in results:
        is_warning = result["severity"] == AuditSeverity.WARNING
        match result["status"]:
            case AuditStatus.FAILED:
                counts["warnings" if is_warning else "errors"] += 1
            case AuditStatus.PASSED | AuditStatus.SKIPPED as status:
                counts[status.lower()] += 1
            case _:
                counts["unknown"] += 1
    return Counts(**counts)


@dataclass(frozen=True)
class AuditReport:
    """The results of one run over a fleet."""

    run: str
    hosts: tuple[str, ...]
    """Hosts that were expected, or answered; sorted."""
    results: Mapping[str, Mapping[str, AuditResult]]
    """Results by host and check id. A host that did not answer has a single one, UNKNOWN, of check `ANSWER`.
    The host of evaluation results that concern no single host is `FLEET`, which is not in `hosts`."""
    missing: tuple[str, ...]
    """Expected hosts without any result; sorted."""
    started_ns: int
    """Time of the request, ns since the Unix epoch, by the requester's system clock."""
    ended_ns: int
    nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """NICs in the inventory by host, for the table of nodes."""

    @property
    def took_s(self) -> float:
        """Time from the request to the last result, s."""
        return (self.ended_ns - self.started_ns) / 1e9

    def all_results(self) -> Iterator[AuditResult]:
        """Yield every result, host by host; at the end the fleet-wide results of the evaluation."""
        for host in (*self.hosts, FLEET):
            yield from self.results.get(host, {}).values()

    def with_results(self, more: Iterable[AuditResult]) -> AuditReport:
        """Return a report with further results. They replace existing results of the same host and check."""
        results = {host: dict(by_check) for host, by_check in self.results.items()}
        for result in more:
            results.setdefault(result["host"], {})[result["check"]] = result
        return replace(self, hosts=tuple(sorted({*self.hosts, *results} - {FLEET})), results=results)

    def limited_to(self, keep: Callable[[AuditResult], bool]) -> AuditReport:
        """Return a report with all hosts, but only the results for which `keep` is true."""
        results = {
            host: {check: result for check, result in by_check.items() if keep(result)}
            for host, by_check in self.results.items()
        }
        return replace(self, results=results)


def verdict(report: AuditReport) -> tuple[int, str]:
    """Return an exit code and a line of text.

    The code is 0 if all hosts are fit, 1 for an error, 2 if a host or the whole fleet was not checked.
    """
    counts = counted(report.all_results())
    if counts.errors:
        return ERRORS_EXIT, f"not fit: {counts}"
    if not counts.checked:
        return NOT_RUN_EXIT, f"nothing could be checked: {counts}"
    if report.missing:
        return NOT_RUN_EXIT, f"not checked everywhere: {len(report.missing)} hosts did not answer; {counts}"
    return FIT_EXIT, f"no error found: {counts}"

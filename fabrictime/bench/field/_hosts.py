"""Runs all checks on a whole host: it has no error when healthy, and its planted fault is found."""

from __future__ import annotations

from dataclasses import dataclass

from fabrictime.bench.field._audit import check_fault, verdict_of
from fabrictime.bench.field._cases import Case, expected
from fabrictime.bench.field._host import changed, empty_host
from fabrictime.bench.field._machines import add_machine
from fabrictime.testbed.audit.recorded import RecordedHost
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS


@dataclass(frozen=True, slots=True)
class HostRun:
    """The results of a healthy host, and the error text of the same host with its fault."""

    results: tuple[Result, ...]
    missed: str
    """Why the planted fault does not count as found; empty if it is found."""

    @property
    def errors(self) -> list[Result]:
        """The errors that the healthy host's checks report, which are all false."""
        return [result for result in self.results if verdict_of(result) == "FAILED"]

    @property
    def unanswered(self) -> float:
        """Share of the checks that are SKIPPED or UNKNOWN."""
        count = sum(verdict_of(result) in ("SKIPPED", "UNKNOWN") for result in self.results)
        return count / max(1, len(self.results))


def run_host(case: Case) -> HostRun:
    """Run the passive checks on the healthy host, and the expected check on the host with the fault."""
    host = healthy_host(case)
    results = [run_check(check, host) for check in CHECKS.values() if not check.active]
    fault = case.table["fault"]
    changed(host, fault)
    missed = [check_fault(each, host) for each in expected([fault["expect"], *fault.get("also", ())])]
    return HostRun(tuple(results), next(filter(None, missed), ""))


def healthy_host(case: Case) -> RecordedHost:
    """Return the host of a case without its fault."""
    host = empty_host()
    add_machine(host, case.table["machine"])
    changed(host, case.table.get("host", {}))
    return host


def fault_of(case: Case) -> str:
    """Return an error text if the host has a false error or its fault is missed; empty if all is right."""
    run = run_host(case)
    if run.errors:
        first = run.errors[0]
        more = f" and {len(run.errors) - 1} more" if len(run.errors) > 1 else ""
        return f"healthy, but {first.check.check_id} failed{more}: {first.text[:200]}"
    return run.missed and f"with its fault: {run.missed}"

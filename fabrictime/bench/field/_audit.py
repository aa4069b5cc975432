"""Runs the checks of a case on its host, and compares their results with the expected ones."""

from __future__ import annotations

import fnmatch

from fabrictime.bench.field._cases import Case, Expected, expected, text_fault
from fabrictime.bench.field._host import host_of
from fabrictime.testbed.audit.recorded import RecordedHost
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditSeverity, AuditStatus


def fault_of(case: Case) -> str:
    """Return an error text if the audit results of a case are wrong; empty if all are right.

    Raises BadCase.
    """
    host = host_of(case.table.get("host", {}))
    tables = [case.table["expect"], *case.table.get("also", ())]
    for expectation in expected(tables, case.check):
        fault = check_fault(expectation, host)
        if fault:
            return fault
    return ""


def check_fault(expectation: Expected, host: RecordedHost) -> str:
    """Return an error text if the result of a check on a host is wrong; empty if it is right.

    A pattern such as `kernel-log.*` passes if the result of one matching check is right.
    """
    checks = [CHECKS[name] for name in fnmatch.filter(CHECKS, expectation.check) if not CHECKS[name].active]
    if expectation.check in CHECKS:
        checks = [CHECKS[expectation.check]]
    if not checks:
        return f"no check {expectation.check!r}"
    faults = [_result_fault(expectation, run_check(check, host.copy())) for check in checks]
    return "" if "" in faults else faults[0] if len(faults) == 1 else f"none of {expectation.check} is right"


def _result_fault(expectation: Expected, result: Result) -> str:
    verdict, name = verdict_of(result), result.check.check_id
    if verdict not in expectation.verdicts:
        return f"{name} is {verdict}, expected {' or '.join(expectation.verdicts)}: {result.text[:200]}"
    subjects = {finding.subject for finding in result.findings if finding.status is AuditStatus.FAILED}
    if expectation.subjects is not None and subjects != set(expectation.subjects):
        named = ", ".join(sorted(subjects)) or "none"
        return f"{name} names {named}, expected {', '.join(expectation.subjects) or 'none'}"
    text = "; ".join([result.text, *(f"{finding.subject}: {finding.text}" for finding in result.findings)])
    return text_fault(expectation.contains, expectation.lacks, text)


def verdict_of(result: Result) -> str:
    """Return the status of a result, with WARNING for a failed check that only warns."""
    warns = result.status is AuditStatus.FAILED and result.check.severity is AuditSeverity.WARNING
    return "WARNING" if warns else result.status.name

"""Counts and verdict of a report."""

from __future__ import annotations

from fabrictime.audit.report import AuditReport, Counts, counted, verdict
from schemas.records import AuditCategory, AuditResult, AuditSeverity, AuditStatus
from tests.fabrictime.audit.results import RUN, result


def report_of(*results: AuditResult, missing: tuple[str, ...] = ()) -> AuditReport:
    return AuditReport(RUN, missing, {}, missing, 0, 10**9).with_results(results)


def test_a_failed_warning_is_no_error() -> None:
    results = [
        result(status=AuditStatus.FAILED),
        result(status=AuditStatus.FAILED, severity=AuditSeverity.WARNING),
        *(result(status=each) for each in (AuditStatus.UNKNOWN, AuditStatus.PASSED, AuditStatus.SKIPPED)),
    ]
    assert counted(results) == Counts(1, 1, 1, 1, 1)
    assert counted(results).checked == 3
    assert counted([]) == Counts()


def test_the_exit_code_is_0_only_if_every_host_was_checked_without_an_error() -> None:
    passed, failed = result("h1"), result("h2", status=AuditStatus.FAILED)
    warning = result("h2", status=AuditStatus.FAILED, severity=AuditSeverity.WARNING)
    unknown = result("h1", status=AuditStatus.UNKNOWN)
    assert verdict(report_of(passed, warning))[0] == 0
    assert verdict(report_of(passed, failed))[0] == 1
    assert verdict(report_of(passed, failed, missing=("h3",)))[0] == 1
    assert verdict(report_of(passed, missing=("h3",)))[0] == 2
    assert verdict(report_of(unknown))[0] == 2
    assert verdict(report_of())[0] == 2


def test_further_results_belong_to_the_report() -> None:
    first = report_of(result("h2"), result("h1"))
    fleet = result("h1", "fleet.kernel", category=AuditCategory.FABRIC)
    more = first.with_results([fleet, result("h3"), result("h2", text="newer")])
    assert first.hosts == ("h1", "h2")
    assert more.hosts == ("h1", "h2", "h3")
    assert more.results["h1"]["fleet.kernel"] == fleet
    assert more.results["h2"]["backend.mtu"]["text"] == "newer"

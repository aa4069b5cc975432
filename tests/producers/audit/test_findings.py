"""The auditor's metric counts the checks that failed when they last ran."""

from producers.audit.findings import FailedChecks
from tests.records import make


def result(host, check, status, severity="ERROR"):
    return make("AuditResult", host=host, check=check, status=status, severity=severity)


def counts(checks):
    return {sample.labels[0]: sample.value for sample in checks.samples()}


def test_the_newest_result_of_each_check_counts():
    checks = FailedChecks()
    assert counts(checks) == {"WARNING": 0, "ERROR": 0}
    checks.take(result("h1", "backend.mtu", "FAILED"))
    checks.take(result("h1", "backend.mtu", "FAILED"))
    checks.take(result("h2", "backend.mtu", "FAILED"))
    checks.take(result("h1", "software.kernel-taint", "FAILED", "WARNING"))
    assert counts(checks) == {"WARNING": 1, "ERROR": 2}
    checks.take(result("h1", "backend.mtu", "PASSED"))
    checks.take(result("h2", "backend.mtu", "SKIPPED"))
    assert counts(checks) == {"WARNING": 1, "ERROR": 0}


def test_a_check_that_cannot_be_read_does_not_end_a_finding():
    checks = FailedChecks()
    checks.take(result("h1", "backend.mtu", "FAILED"))
    checks.take(result("h1", "backend.mtu", "UNKNOWN"))
    assert counts(checks) == {"WARNING": 0, "ERROR": 1}

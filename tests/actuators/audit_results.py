"""Audit results of a host in a run, as the agent publishes them."""

from schemas.records import AuditAction, AuditCategory, AuditSeverity, AuditStatus

CATEGORIES = {
    "backend": AuditCategory.BACKEND,
    "fabric": AuditCategory.FABRIC,
    "node": AuditCategory.NODE,
    "pcie": AuditCategory.PCIE,
}
CHECKS = ("backend.carrier", "node.ecc", "pcie.link")


def result(
    host="n1",
    check="backend.carrier",
    status=AuditStatus.PASSED,
    run="r1",
    *,
    severity=AuditSeverity.ERROR,
    text="mlx5_0: 'carrier' is down, expected up",
    checks=3,
    subjects=(),
):
    return {
        "run": run,
        "host": host,
        "shard": "",
        "sku": "",
        "check": check,
        "category": CATEGORIES.get(check.partition(".")[0], AuditCategory.OTHER),
        "title": "RDMA interfaces are up",
        "status": status,
        "severity": severity,
        "action": AuditAction.REPLACE,
        "remedy": "Check cable and transceiver",
        "text": text,
        "checked_ns": 1,
        "took_ns": 1,
        "checks": checks,
        "findings": [{"subject": each, "status": status, "text": text} for each in subjects],
        "facts": [],
    }


def run_of(host="n1", run="r1", failed=(), status=AuditStatus.FAILED):
    """Return the results of a complete run in which these checks have another outcome."""
    return [result(host, check, status if check in failed else AuditStatus.PASSED, run) for check in CHECKS]

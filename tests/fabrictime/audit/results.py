"""Audit results for tests."""

from __future__ import annotations

from schemas.records import AuditAction, AuditCategory, AuditResult, AuditSeverity, AuditStatus

RUN = "audit-1"


def result(
    host: str = "h1",
    check: str = "backend.mtu",
    status: AuditStatus = AuditStatus.PASSED,
    *,
    run: str = RUN,
    checks: int = 2,
    severity: AuditSeverity = AuditSeverity.ERROR,
    category: AuditCategory = AuditCategory.BACKEND,
    text: str = "9000",
    checked_ns: int = 10**18,
) -> AuditResult:
    """Return a result of one host and check."""
    return AuditResult(
        run=run,
        host=host,
        shard="fabric",
        sku="",
        check=check,
        category=category,
        title="Interfaces have the same MTU",
        status=status,
        severity=severity,
        action=AuditAction.MONITOR,
        remedy="ip link set dev INTERFACE mtu MTU",
        text=text,
        checked_ns=checked_ns,
        took_ns=1000,
        checks=checks,
        findings=[],
        facts=[],
    )

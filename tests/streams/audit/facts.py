"""Audit results with facts, for the tests of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.records import AuditCategory, AuditFact, AuditResult, AuditSeverity, AuditStatus
from tests.records import make

Value = str | float


def fact(name: str, value: Value, subject: str = "") -> AuditFact:
    """Return a fact as a host states it."""
    if isinstance(value, str):
        return {"name": name, "subject": subject, "text": value, "number": None}
    return {"name": name, "subject": subject, "text": f"{value:.12g}", "number": float(value)}


def stated(
    host: str, facts: Mapping[str, Value | Mapping[str, Value]], sku: str = "h100", **fields: Any
) -> AuditResult:
    """Return a host's result with facts: name to value, or to values by subject."""
    rows = [
        fact(name, value, subject)
        for name, values in facts.items()
        for subject, value in (values if isinstance(values, Mapping) else {"": values}).items()
    ]
    defaults: dict[str, Any] = {
        "run": "r1", "host": host, "sku": sku, "check": "software.versions", "shard": "fabric",
        "category": AuditCategory.SOFTWARE, "title": "Versions", "status": AuditStatus.PASSED,
        "severity": AuditSeverity.ERROR, "remedy": "Install it", "text": "versions", "checked_ns": 1_000,
        "checks": 1, "facts": rows,
    }  # fmt: skip
    return make(AuditResult, **(defaults | fields))


def failed(results: list[AuditResult]) -> list[tuple[str, str, list[str]]]:
    """Return host, check and subjects of what failed."""
    return [
        (r["host"], r["check"], [f["subject"] for f in r["findings"] if f["status"] == AuditStatus.FAILED])
        for r in results
        if r["status"] == AuditStatus.FAILED
    ]

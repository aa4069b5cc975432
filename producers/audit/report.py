"""Turns the results of a host's checks into records. Pure functions."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from producers.audit.base import Check, Fact, Finding, Result, advice, one_line
from schemas.records import (
    AuditAction,
    AuditCategory,
    AuditFact,
    AuditFinding,
    AuditResult,
    AuditSeverity,
    AuditStatus,
)

MAX_TEXT: Final = 512
MAX_LABEL: Final = 256
"""Largest lengths of the formats `text` (MAX_TEXT) and `label` (MAX_LABEL) of schemas/formats.py."""
MAX_FINDINGS: Final = 512
"""Largest number of findings in a result, and of facts. Findings that passed are left out first."""
MAX_NUMBER: Final = 1e18
_NOTABLE: Final = (AuditStatus.FAILED, AuditStatus.UNKNOWN)

AGENT: Final = Check(
    "agent.answer",
    AuditCategory.OTHER,
    "The host's agent runs all checks that were requested",
    lambda host: iter(()),
    AuditSeverity.ERROR,
    AuditAction.MONITOR,
    "Start the service auditor on the host with this version of fabrictime, and read its log",
)
"""Check under which the agent reports itself: its version, and requested checks that it does not have."""


class AuditedHost(NamedTuple):
    """The fields of a host that each result repeats."""

    host: str
    shard: str
    sku: str


def result_record(
    result: Result, run: str, host: AuditedHost, *, checked_ns: int, checks: int
) -> AuditResult:
    """Return the record of a result. `checks`: number of results that the host publishes in this run.

    Texts are cut to the lengths of their formats; control characters are escaped.
    """
    check, findings = (
        result.check,
        sorted(result.findings, key=lambda finding: finding.status not in _NOTABLE),
    )
    action, remedy = advice(result)
    facts = [(finding.subject, finding.fact) for finding in result.findings if finding.fact is not None]
    return AuditResult(
        run=run,
        host=host.host,
        shard=host.shard,
        sku=host.sku,
        check=check.check_id,
        category=check.category,
        title=_cut(check.title, MAX_TEXT),
        status=result.status,
        severity=check.severity,
        action=action,
        remedy=_cut(remedy, MAX_TEXT),
        text=_cut(result.text, MAX_TEXT),
        checked_ns=checked_ns,
        took_ns=round(result.took_s * 1e9),
        checks=checks,
        findings=[_finding(finding) for finding in findings[:MAX_FINDINGS]],
        facts=[_fact(subject, fact) for subject, fact in facts[:MAX_FINDINGS]],
    )


def _finding(finding: Finding) -> AuditFinding:
    return AuditFinding(
        subject=_cut(finding.subject, MAX_LABEL), status=finding.status, text=_cut(finding.text, MAX_TEXT)
    )


def _fact(subject: str, fact: Fact) -> AuditFact:
    number = fact.number
    is_figure = number is not None and math.isfinite(number) and abs(number) <= MAX_NUMBER
    return AuditFact(
        name=_cut(fact.name, MAX_LABEL),
        subject=_cut(subject, MAX_LABEL),
        text=_cut(fact.text, MAX_TEXT),
        number=number if is_figure else None,
    )


def _cut(text: str, limit: int) -> str:
    line = one_line(text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"

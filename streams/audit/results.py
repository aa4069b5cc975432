"""Holds the rules of the evaluation, and makes audit results from their findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from schemas.audit_remedy import Remedied
from schemas.input_error import InputError
from schemas.records import (
    AuditAction,
    AuditCategory,
    AuditFact,
    AuditFinding,
    AuditResult,
    AuditSeverity,
    AuditStatus,
)

FLEET: Final = "fleet"
"""Host of results that do not concern a single host."""
MAX_FINDINGS: Final = 4096
MAX_TEXT: Final = 512
MAX_LABEL: Final = 256
MAX_QUOTED: Final = 3
"""Largest number of findings that a result's text quotes."""
UNKNOWN_REMEDY: Final = "Run the audit again when the records that the text names are there"
"""Advice where a rule could not be evaluated: its own remedy mends a fault that may not be there."""
ORDER: Final = (AuditStatus.FAILED, AuditStatus.UNKNOWN, AuditStatus.PASSED, AuditStatus.SKIPPED)
"""Statuses; the one that decides a result comes first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A declared expectation. Its check id begins with `fleet.`, `fabric.`, `baseline.` or `sku.`."""

    check: str
    title: str
    severity: AuditSeverity
    action: AuditAction
    remedy: str
    rows: tuple[int, ...] = ()
    """Numbers of the published checks that the rule covers, in the design's list."""


@dataclass(frozen=True, slots=True)
class Found:
    """Outcome of a rule for one subject. A non-empty `remedy` is more specific and replaces the rule's."""

    host: str
    subject: str
    status: AuditStatus
    text: str
    remedy: str = ""


_Find = TypeVar("_Find", bound=Callable[..., Iterator[Found]])
_RULE_OF: Final[dict[Callable[..., Iterator[Found]], Rule]] = {}


def rule_of(find: Callable[..., Iterator[Found]]) -> Rule:
    """Return the rule that a decorator (`error`, `warning`) declared on the function."""
    return _RULE_OF[find]


def error(check: str, title: str, *rows: int) -> Callable[[Remedied[_Find]], _Find]:
    """Return a decorator that declares a function's rule of severity ERROR; it yields the findings."""
    return lambda remedied: _declared(AuditSeverity.ERROR, check, title, rows, remedied)


def warning(check: str, title: str, *rows: int) -> Callable[[Remedied[_Find]], _Find]:
    """Return a decorator that declares a rule whose findings do not make a host unfit."""
    return lambda remedied: _declared(AuditSeverity.WARNING, check, title, rows, remedied)


def _declared(
    severity: AuditSeverity, check: str, title: str, rows: tuple[int, ...], remedied: Remedied[_Find]
) -> _Find:
    _RULE_OF[remedied.find] = Rule(check, title, severity, remedied.action, remedied.text, rows)
    return remedied.find


@dataclass(frozen=True, slots=True)
class Scope:
    """The run that results belong to, the time of the evaluation, and the SKU and shard of each host."""

    run: str
    at_ns: int
    skus: Mapping[str, str]
    shards: Mapping[str, str]

    @classmethod
    def of(cls, results: Iterable[AuditResult]) -> Scope:
        """Return the scope of a run's results. Raises ValueError without results."""
        all_results = list(results)
        if not all_results:
            raise InputError("no audit result: expected at least one")
        newest = max(all_results, key=lambda result: (result["checked_ns"], result["run"]))
        return cls(
            newest["run"],
            newest["checked_ns"],
            {result["host"]: result["sku"] for result in all_results},
            {result["host"]: result["shard"] for result in all_results},
        )

    def with_sku(self, sku: str) -> Scope:
        """Return the scope with a SKU for results that concern the whole fleet."""
        return replace(self, skus={**self.skus, FLEET: sku})


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` in one line of printable characters, shortened to at most `limit` characters."""
    plain = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def latest(results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return the newest result of each host and check: a host may report twice."""
    newest: dict[tuple[str, str], AuditResult] = {}
    for result in results:
        key = result["host"], result["check"]
        known_result = newest.get(key)
        if known_result is None or _age(known_result) < _age(result):
            newest[key] = result
    return [newest[key] for key in sorted(newest)]


def _age(result: AuditResult) -> tuple[int, str, str]:
    return result["checked_ns"], result["text"], repr(result["facts"])


def results_of(rule: Rule, findings: Iterable[Found], scope: Scope) -> list[AuditResult]:
    """Return one result per host with findings, in the order of hosts."""
    by_host: dict[str, list[Found]] = {}
    for finding in findings:
        by_host.setdefault(finding.host, []).append(finding)
    return [_result(rule, host, by_host[host], scope) for host in sorted(by_host)]


def _result(rule: Rule, host: str, host_findings: list[Found], scope: Scope) -> AuditResult:
    status = min((finding.status for finding in host_findings), key=ORDER.index)
    host_findings = sorted(
        host_findings, key=lambda finding: (ORDER.index(finding.status), finding.subject, finding.text)
    )
    notable = [finding for finding in host_findings if finding.status is status]
    text = "; ".join(dict.fromkeys(finding.text for finding in notable[:MAX_QUOTED]))
    if len(notable) > MAX_QUOTED:
        text += f"; and {len(notable) - MAX_QUOTED} more"
    remedy = UNKNOWN_REMEDY if status is AuditStatus.UNKNOWN else rule.remedy
    remedies = dict.fromkeys(finding.remedy for finding in notable if finding.remedy)
    findings: list[AuditFinding] = [
        {
            "subject": one_line(finding.subject, MAX_LABEL),
            "status": finding.status,
            "text": one_line(finding.text),
        }
        for finding in host_findings[:MAX_FINDINGS]
    ]
    facts: list[AuditFact] = []
    return {
        "run": scope.run,
        "host": host,
        "shard": scope.shards.get(host, ""),
        "sku": scope.skus.get(host, ""),
        "check": rule.check,
        "category": AuditCategory.FABRIC,
        "title": one_line(rule.title),
        "status": status,
        "severity": rule.severity,
        "action": AuditAction.MONITOR if status is AuditStatus.UNKNOWN else rule.action,
        "remedy": one_line("; ".join(remedies) or remedy),
        "text": one_line(text),
        "checked_ns": scope.at_ns,
        "took_ns": 0,
        "checks": 1,
        "findings": findings,
        "facts": facts,
    }

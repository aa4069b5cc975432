"""Interface of audit checks.

A check declares its id, title, severity and remedy. Its function yields a finding per subject. It reads the
host only by `Host`, so that a recorded host can stand in for a real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from producers.audit.host.base import Host, Missing, NotRecorded, Unreadable
from producers.audit.reasons import absence, help_for, mismatch
from schemas.audit_remedy import Remedied
from schemas.records import AuditAction, AuditCategory, AuditSeverity, AuditStatus
from schemas.unexpected import DATA_ERRORS

_EXPECTATION: Final = re.compile(r"[,;] (?:expected|the host's majority|most \w[\w ]* have)\b[^;]*")
"""The part of a text that only a finding that fails needs."""
MAX_SUBJECTS: Final = 3
"""Largest number of subjects, and of texts, that a result's text has."""
MAX_LINE: Final = 512
"""Patterns search only this many characters of a line of a command's output or of a log."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that is compared across the fleet. `name` has the unit; `number` is None for a mere text."""

    name: str
    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's outcome for one subject: a device, mount or process; empty for the host itself."""

    subject: str
    status: AuditStatus
    text: str
    fact: Fact | None = None


def stated(name: str, value: str | float, subject: str = "") -> Finding:
    """Return a finding that passes and states a fact, which is compared across the fleet only."""
    number = None if isinstance(value, str) else float(value)
    text = value if isinstance(value, str) else f"{value:.12g}"
    return Finding(subject, AuditStatus.PASSED, f"{name} {text}", Fact(name, text, number))


def _only_states(finding: Finding) -> bool:
    """Return whether a finding only states a fact."""
    return finding.fact is not None and finding.text == f"{finding.fact.name} {finding.fact.text}"


def category_name(category: AuditCategory) -> str:
    """Return a category as users write it, such as `kernel-log`."""
    return category.lower().replace("_", "-")


def passed(text: str, subject: str = "") -> Finding:
    """Return a finding with the status PASSED."""
    return Finding(subject, AuditStatus.PASSED, text)


def failed(text: str, subject: str = "") -> Finding:
    """Return a finding with the status FAILED."""
    return Finding(subject, AuditStatus.FAILED, text)


def checked(is_right: bool, text: str, subject: str = "") -> Finding:
    """Return a finding that passes if `is_right`, else fails.

    `text` ends with what was expected, or what most others have: a finding that passes leaves that out.
    """
    if is_right:
        return Finding(subject, AuditStatus.PASSED, _EXPECTATION.sub("", text))
    return Finding(subject, AuditStatus.FAILED, text)


Find = Callable[[Host], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `rows`: numbers, in the design's list, of the published checks that it covers."""

    check_id: str
    category: AuditCategory
    title: str
    find: Find
    severity: AuditSeverity
    action: AuditAction
    remedy: str
    rows: tuple[int, ...] = ()
    limit_s: float = 10.0
    """A check that takes longer is UNKNOWN."""
    active: bool = False
    """True if it puts load on the host or its network: it runs on request only."""


class Checks(list[Check]):
    """A module's checks, in the order of their functions: the decorator `CHECKS.error(...)` declares one.

    An id begins with the category. For `rows`, `limit_s` and `active` see `Check`. The constructor sets the
    default of `limit_s` and `active` for the module.
    """

    def __init__(self, *, limit_s: float = 10.0, active: bool = False) -> None:
        super().__init__()
        self._usual = limit_s, active

    def error(
        self, check_id: str, title: str, *rows: int, limit_s: float | None = None, active: bool | None = None
    ) -> Callable[[Remedied[Find]], Find]:
        """Declare the function as a check that makes a host unfit for jobs where it fails."""
        return partial(self._add, AuditSeverity.ERROR, check_id, title, rows, limit_s, active)

    def warning(
        self, check_id: str, title: str, *rows: int, limit_s: float | None = None, active: bool | None = None
    ) -> Callable[[Remedied[Find]], Find]:
        """Declare the function as a check that only warns: where it fails, the host stays fit for jobs."""
        return partial(self._add, AuditSeverity.WARNING, check_id, title, rows, limit_s, active)

    def _add(
        self,
        severity: AuditSeverity,
        check_id: str,
        title: str,
        rows: tuple[int, ...],
        limit_s: float | None,
        active: bool | None,
        remedied: Remedied[Find],
    ) -> Find:
        find, action, text = remedied
        category = AuditCategory[check_id.partition(".")[0].upper().replace("-", "_")]
        limit_s, active = limit_s or self._usual[0], self._usual[1] if active is None else active
        self.append(Check(check_id, category, title, find, severity, action, text, rows, limit_s, active))
        return find


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one check on one host; its status is the worst of the findings'."""

    check: Check
    status: AuditStatus
    text: str
    findings: tuple[Finding, ...]
    took_s: float = 0.0


_ORDER = (AuditStatus.FAILED, AuditStatus.UNKNOWN, AuditStatus.PASSED, AuditStatus.SKIPPED)


def worst(statuses: Iterator[AuditStatus]) -> AuditStatus:
    """Return the worst status, in the order FAILED, UNKNOWN, PASSED, SKIPPED; SKIPPED if there is none."""
    return min(statuses, key=_ORDER.index, default=AuditStatus.SKIPPED)


def run_check(check: Check, host: Host) -> Result:
    """Run a check. Its status is SKIPPED if its source is missing, UNKNOWN if its source cannot be read."""
    findings: list[Finding] = []
    try:
        findings.extend(check.find(host))
    except (Missing, NotRecorded) as error:
        if not findings:
            return Result(check, AuditStatus.SKIPPED, one_line(absence(str(error))), ())
        findings.append(Finding("", AuditStatus.UNKNOWN, absence(str(error))))
    except Unreadable as error:
        findings.append(Finding("", AuditStatus.UNKNOWN, str(error)))
    except (*DATA_ERRORS, OSError) as error:  # another kernel or tool prints something else
        findings.append(Finding("", AuditStatus.UNKNOWN, mismatch(error)))
    findings = [
        replace(finding, text=absence(finding.text)) if finding.status is AuditStatus.SKIPPED else finding
        for finding in findings
    ]
    status = worst(finding.status for finding in findings)
    text = summary([finding for finding in findings if finding.status is status])
    return Result(check, status, one_line(text) or "nothing to check here", tuple(findings))


def summary(findings: Sequence[Finding]) -> str:
    """Return findings of one status in one text. It has a fact once, and a text once for all its subjects.

    A fact of a part, such as `GPU 0/NVLink 3`, is left out beside a text about its device.

    Faults have a text for each subject, so that each can be found by its subject.
    """
    covered_subjects = {finding.subject for finding in findings if not _only_states(finding)}
    subjects_by_text: dict[str, list[str]] = {}
    for number, finding in enumerate(findings):
        device, _, _ = finding.subject.partition("/")
        if _only_states(finding) and not covered_subjects.isdisjoint((finding.subject, device)):
            continue
        is_fault = finding.status not in (AuditStatus.PASSED, AuditStatus.SKIPPED)
        key = f"{number} {finding.text}" if is_fault else f"- {finding.text}"
        subjects_by_text.setdefault(key, []).append(finding.subject)
    parts = [
        f"{listed(subjects)}: {key.partition(' ')[2]}" if any(subjects) else key.partition(" ")[2]
        for key, subjects in subjects_by_text.items()
    ]
    text = "; ".join(parts[:MAX_SUBJECTS])
    return text + (f"; and {len(parts) - MAX_SUBJECTS} more" if len(parts) > MAX_SUBJECTS else "")


def listed(names: Sequence[str]) -> str:
    """Return names separated by commas; the first few, and the number of others."""
    if len(names) <= MAX_SUBJECTS:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_SUBJECTS])} and {len(names) - MAX_SUBJECTS} more"


def advice(result: Result) -> tuple[AuditAction, str]:
    """Return what to do about a result: the check's remedy, or what would help where it is UNKNOWN."""
    check = result.check
    if result.status is AuditStatus.UNKNOWN:
        return AuditAction.MONITOR, help_for(check.check_id, result.text)
    return check.action, check.remedy


def short_lines(text: str) -> str:
    """Return `text` with its lines cut to MAX_LINE: on a crafted long line, a pattern would take too long."""
    return "\n".join(line[:MAX_LINE] for line in text.splitlines())


def one_line(text: str) -> str:
    """Return `text` with its control characters escaped, as a device's file may contain any."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)

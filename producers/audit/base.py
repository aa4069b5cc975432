"""Interface of audit checks.

A check declares its id, title, severity and remedy. Its function yields a finding per subject. It reads the
host only by `Host`, so that a recorded host can stand in for a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from producers.audit.host import Host, Missing, Unreadable
from schemas.audit_remedy import Remedied
from schemas.records import AuditAction, AuditCategory, AuditSeverity, AuditStatus
from schemas.unexpected import DATA_ERRORS

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
    text = value if isinstance(value, str) else f"{value:g}"
    return Finding(subject, AuditStatus.PASSED, f"{name} {text}", Fact(name, text, number))


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
    """Return a finding that passes if `is_right`, else fails."""
    return Finding(subject, AuditStatus.PASSED if is_right else AuditStatus.FAILED, text)


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
    except Missing as error:
        if not findings:
            return Result(check, AuditStatus.SKIPPED, one_line(str(error)), ())
        findings.append(Finding("", AuditStatus.UNKNOWN, str(error)))
    except Unreadable as error:
        findings.append(Finding("", AuditStatus.UNKNOWN, str(error)))
    except (*DATA_ERRORS, OSError) as error:  # another kernel or tool prints something else
        findings.append(
            Finding("", AuditStatus.UNKNOWN, f"unexpected content: {type(error).__name__}: {error}")
        )
    status = worst(finding.status for finding in findings)
    notable = [finding for finding in findings if finding.status is status]
    text = "; ".join(
        f"{finding.subject}: {finding.text}" if finding.subject else finding.text for finding in notable[:3]
    )
    if len(notable) > 3:
        text += f"; and {len(notable) - 3} more"
    return Result(check, status, one_line(text) or "nothing to check here", tuple(findings))


def short_lines(text: str) -> str:
    """Return `text` with its lines cut to MAX_LINE: on a crafted long line, a pattern would take too long."""
    return "\n".join(line[:MAX_LINE] for line in text.splitlines())


def one_line(text: str) -> str:
    """Return `text` with its control characters escaped, as a device's file may contain any."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)

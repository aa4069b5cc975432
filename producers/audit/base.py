"""Interface of audit checks.

A check declares its subject, its expectation, its severity and its remedy. Its function reads through
`Host` only and yields a finding per subject, so that a recorded host can stand in for a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from producers.audit.host import Host, Missing, Unreadable

__all__ = [
    "Action",
    "Category",
    "Check",
    "Finding",
    "Result",
    "Severity",
    "Status",
    "one_line",
    "run_check",
    "worst",
]


class Status(StrEnum):
    """Outcome of a check. What cannot be read is UNKNOWN, never PASSED."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    SKIPPED = "SKIPPED"


class Severity(StrEnum):
    """Effect of a failed check: an ERROR makes a host unfit, a WARNING does not."""

    WARNING = "WARNING"
    ERROR = "ERROR"


class Action(StrEnum):
    """The remedy of a failed check, by kind."""

    MONITOR = "MONITOR"
    RESET = "RESET"
    REBOOT = "REBOOT"
    REPLACE = "REPLACE"
    ISOLATE = "ISOLATE"


class Category(StrEnum):
    """Group of checks in the report."""

    SOFTWARE = "software"
    NODE = "node"
    STORAGE = "storage"
    PCIE = "pcie"
    BACK_END = "backend"
    KERNEL_LOG = "kernel-log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject's outcome. `subject`: device, mount or process; empty for the host itself."""

    subject: str
    status: Status
    text: str


def passed(text: str, subject: str = "") -> Finding:
    """Return a finding that is as expected."""
    return Finding(subject, Status.PASSED, text)


def failed(text: str, subject: str = "") -> Finding:
    """Return a finding that is not as expected."""
    return Finding(subject, Status.FAILED, text)


def checked(is_right: bool, text: str, subject: str = "") -> Finding:
    """Return a finding that passed or failed."""
    return Finding(subject, Status.PASSED if is_right else Status.FAILED, text)


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `rows`: numbers of the published checks that it covers, in the design's list."""

    check_id: str
    category: Category
    title: str
    find: Callable[[Host], Iterator[Finding]]
    severity: Severity
    action: Action
    remedy: str
    rows: tuple[int, ...] = ()
    limit_s: float = 10.0
    """Time after which the check is UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one check on one host: the worst of its findings."""

    check: Check
    status: Status
    text: str
    findings: tuple[Finding, ...]


_ORDER = (Status.FAILED, Status.UNKNOWN, Status.PASSED, Status.SKIPPED)


def worst(statuses: Iterator[Status]) -> Status:
    """Return FAILED if there is one, else UNKNOWN, else PASSED; SKIPPED without any."""
    return min(statuses, key=_ORDER.index, default=Status.SKIPPED)


def run_check(check: Check, host: Host) -> Result:
    """Run a check. A thing that is not there makes it SKIPPED; one that cannot be read, UNKNOWN."""
    findings: list[Finding] = []
    try:
        findings.extend(check.find(host))
    except Missing as error:
        if not findings:
            return Result(check, Status.SKIPPED, one_line(str(error)), ())
        findings.append(Finding("", Status.UNKNOWN, str(error)))
    except Unreadable as error:
        findings.append(Finding("", Status.UNKNOWN, str(error)))
    except (ValueError, IndexError, KeyError) as error:  # another kernel or tool prints something else
        findings.append(Finding("", Status.UNKNOWN, f"unexpected content: {type(error).__name__}: {error}"))
    status = worst(each.status for each in findings)
    notable = [each for each in findings if each.status is status]
    text = "; ".join(f"{each.subject}: {each.text}" if each.subject else each.text for each in notable[:3])
    if len(notable) > 3:
        text += f"; and {len(notable) - 3} more"
    return Result(check, status, one_line(text) or "nothing to check here", tuple(findings))


def one_line(text: str) -> str:
    """Return `text` with its control characters escaped: the content of a device's file may hold any."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)

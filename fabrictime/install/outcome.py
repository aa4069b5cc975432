"""The outcome of one check of an installation. A failed check names its remedy in one line."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from producers.audit.base import Check, advice, run_check
from producers.audit.host.base import Host
from schemas.records import AuditSeverity, AuditStatus


class Level(StrEnum):
    """Result of a check. WARNING means that the agent works without one of its functions."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(NamedTuple):
    """One line of the report on an installation. `fix` is the remedy; empty if none is needed."""

    area: str
    check: str
    level: Level
    text: str
    fix: str = ""


def audited(area: str, check: Check, host: Host) -> Iterator[Outcome]:
    """Run an audit check, and yield its outcome with the check's remedy.

    Results that cannot be obtained, such as results only for root, are warnings.
    """
    result = run_check(check, host)
    if result.status is AuditStatus.SKIPPED:
        yield Outcome(area, check.check_id, Level.SKIPPED, result.text)
        return
    if result.status is AuditStatus.PASSED:
        yield Outcome(area, check.check_id, Level.OK, result.text)
        return
    is_error = result.status is AuditStatus.FAILED and check.severity is AuditSeverity.ERROR
    level = Level.FAILED if is_error else Level.WARNING
    yield Outcome(area, check.check_id, level, result.text, advice(result)[1])

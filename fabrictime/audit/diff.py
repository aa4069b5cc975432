"""Compares two runs of a fleet audit: checks with a changed outcome on a host, and changed values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fabrictime.audit.groups import RANK, Level, level_of
from fabrictime.audit.host_names import name_order
from fabrictime.audit.report import AuditReport
from schemas.records import AuditFact, AuditResult


class Change(StrEnum):
    """Kinds of changes, in the order of the report."""

    NEW_ERROR = "new error"
    NEW_WARNING = "new warning"
    NEW_UNKNOWN = "new unknown"
    OTHER_CAUSE = "fails differently"
    FIXED = "fixed"
    OTHER = "changed"


ABSENT: Final = "not checked"
_ORDER: Final = tuple(Change)
_FAULTS: Final = (Level.ERROR, Level.WARNING)
_NEW: Final = {
    Level.ERROR: Change.NEW_ERROR,
    Level.WARNING: Change.NEW_WARNING,
    Level.UNKNOWN: Change.NEW_UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class CheckChange:
    """A change of a check's outcome, and the hosts with this change."""

    change: Change
    check: str
    title: str
    before: str
    after: str
    hosts: tuple[str, ...]
    remedy: str
    """Remedy of the check; empty unless it fails now."""


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A change of a value, and the hosts with this change."""

    check: str
    name: str
    subject: str
    before: str
    after: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunDiff:
    """Difference of two runs: changed checks, new failures first; changed values; hosts in only one run."""

    before: str
    after: str
    checks: tuple[CheckChange, ...]
    values: tuple[ValueChange, ...]
    hosts_gone: tuple[str, ...]
    hosts_new: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        """Whether a check of severity ERROR newly fails on a host."""
        return any(check.change is Change.NEW_ERROR for check in self.checks)


def diff(before: AuditReport, after: AuditReport) -> RunDiff:
    """Return the difference of two runs. Hosts of only one run are listed, but not compared."""
    removed_hosts, new = set(before.hosts) - set(after.hosts), set(after.hosts) - set(before.hosts)
    checks: dict[CheckChange, list[str]] = defaultdict(list)
    values: dict[ValueChange, list[str]] = defaultdict(list)
    for host in sorted(set(before.hosts) & set(after.hosts), key=name_order):
        old, now = before.results.get(host, {}), after.results.get(host, {})
        for change in _check_changes(old, now):
            checks[change].append(host)
        for value in _value_changes(old, now):
            values[value].append(host)
    return RunDiff(
        before.run,
        after.run,
        tuple(
            CheckChange(
                change.change,
                change.check,
                change.title,
                change.before,
                change.after,
                tuple(hosts),
                change.remedy,
            )
            for change, hosts in sorted(checks.items(), key=lambda item: _check_order(*item))
        ),
        tuple(
            ValueChange(change.check, change.name, change.subject, change.before, change.after, tuple(hosts))
            for change, hosts in sorted(values.items(), key=lambda item: _value_order(*item))
        ),
        tuple(sorted(removed_hosts, key=name_order)),
        tuple(sorted(new, key=name_order)),
    )


def _check_order(change: CheckChange, hosts: list[str]) -> tuple[int, int, str, str]:
    return _ORDER.index(change.change), -len(hosts), change.check, change.after


def _value_order(change: ValueChange, hosts: list[str]) -> tuple[str, str, str, int]:
    return change.check, change.name, change.subject, -len(hosts)


def _check_changes(
    before: Mapping[str, AuditResult], after: Mapping[str, AuditResult]
) -> Iterator[CheckChange]:
    """Yield the changes of one host's checks, with an empty field `hosts`."""
    for check in before.keys() | after.keys():
        old, now = before.get(check), after.get(check)
        change = _change(old, now)
        if change is not None:
            result = now or before[check]
            remedy = (
                f"{result['action'].lower()}: {result['remedy']}" if now and level_of(now) in _FAULTS else ""
            )
            yield CheckChange(change, check, result["title"], _outcome(old), _outcome(now), (), remedy)


def _change(old: AuditResult | None, now: AuditResult | None) -> Change | None:
    """Return the kind of change of a check on one host; None if its outcome is the same."""
    was, level = _level(old), _level(now)
    if was == level:
        return Change.OTHER_CAUSE if level in _FAULTS and _outcome(old) != _outcome(now) else None
    if level in _NEW and (was is None or RANK[level] < RANK[was]):
        return _NEW[level]
    if was in _FAULTS:
        return Change.FIXED if level in (Level.PASSED, Level.WARNING) else Change.OTHER
    return None if None in (was, level) else Change.OTHER


def _level(result: AuditResult | None) -> Level | None:
    return None if result is None else level_of(result)


def _outcome(result: AuditResult | None) -> str:
    if result is None:
        return ABSENT
    level = level_of(result)
    return str(level) if level is Level.PASSED else f"{level}: {result['text']}"


def _value_changes(
    before: Mapping[str, AuditResult], after: Mapping[str, AuditResult]
) -> Iterator[ValueChange]:
    """Yield the changes of one host's facts, except facts that are numbers, which vary from run to run."""
    for check in before.keys() & after.keys():
        old, now = _texts(before[check]["facts"]), _texts(after[check]["facts"])
        for name, subject in old.keys() | now.keys():
            was, value = old.get((name, subject), ABSENT), now.get((name, subject), ABSENT)
            if was != value:
                yield ValueChange(check, name, subject, was, value, ())


def _texts(facts: list[AuditFact]) -> dict[tuple[str, str], str]:
    return {(fact["name"], fact["subject"]): fact["text"] for fact in facts if fact["number"] is None}

"""History queries about audits: the newest result of each host and check, of one run or of the last day.

The aggregates ignore repeated rows, so the queries read without FINAL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fabrictime.audit.groups import LEVELS, Level
from fabrictime.web.history_client import History
from fabrictime.web.history_sql import rows
from schemas import tables

MAX_CHECKS: Final = 300
MAX_HOSTS: Final = 500
"""Hosts of one check."""
MAX_RESULTS: Final = 500
"""Results of one host."""

_LEVEL: Final = "lower(if(status = 'FAILED', severity, status))"
_RANK: Final = f"indexOf([{', '.join(repr(str(level)) for level in LEVELS)}], level)"
_SCOPE: Final = (
    "({run:String} = '' OR run = {run:String}) "
    "AND checked >= fromUnixTimestamp64Nano({since_ns:Int64}, 'UTC')"
)
_NEWEST_NS: Final = "toUnixTimestamp64Nano(max(checked))"


@dataclass(frozen=True, slots=True)
class Scope:
    """The results that count: of one run, or of all runs if `run` is empty, from `since_ns` on."""

    run: str
    since_ns: int

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of a query."""
        return {"run": self.run, "since_ns": self.since_ns}


@dataclass(frozen=True, slots=True)
class Cell:
    """Counts of one host in one category, in the order of `LEVELS`."""

    host: str
    category: str
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check that did not pass on some hosts."""

    check: str
    title: str
    level: Level
    hosts: int
    action: str
    remedy: str
    category: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run with its hosts and errors; times in ns since the Unix epoch."""

    run: str
    newest_ns: int
    hosts: int
    errors: int


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A check's newest result on one host; `findings`: subject, status and text."""

    host: str
    check: str
    title: str
    level: Level
    category: str
    text: str
    action: str
    remedy: str
    run: str
    checked_ns: int
    took_ns: int
    findings: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class AuditFleet:
    """All hosts, and the checks that did not pass, the worst first."""

    cells: list[Cell]
    checks: list[CheckRow]
    newest_ns: int | None


def state(history: History, scope: Scope) -> tuple[int, int]:
    """Return figures that change with every new result."""
    sql = f"SELECT count(), max(recorded_ns) FROM {_table(history)} WHERE {_SCOPE}"
    count, recorded_ns = next(rows(history, sql, **scope.parameters()))
    return int(count), int(recorded_ns)


def fleet(history: History, scope: Scope) -> AuditFleet:
    """Return the counts of each host and category, and the checks that did not pass."""
    sql = (
        "SELECT host, category, check, level, count(), max(at) FROM (SELECT host, check, "
        f"any(category) AS category, argMax({_LEVEL}, (checked, recorded_ns)) AS level, {_NEWEST_NS} AS at "
        f"FROM {_table(history)} WHERE {_SCOPE} GROUP BY host, check) "
        "GROUP BY GROUPING SETS ((host, category, level), (check, level))"
    )
    cells: dict[tuple[str, str], dict[str, int]] = {}
    hosts: dict[tuple[str, str], int] = {}
    newest_ns: int | None = None
    for host, category, check, level, count, at in rows(history, sql, **scope.parameters()):
        newest_ns = max(newest_ns or 0, int(at))
        if host:
            cells.setdefault((host, category), {})[level] = int(count)
        else:
            hosts[check, level] = int(count)
    found = [Cell(*key, tuple(counts.get(level, 0) for level in LEVELS)) for key, counts in cells.items()]
    return AuditFleet(sorted(found, key=_by_host), _checks(history, scope, hosts), newest_ns)


def _by_host(cell: Cell) -> tuple[str, str]:
    return cell.host, cell.category


def _checks(history: History, scope: Scope, hosts: Mapping[tuple[str, str], int]) -> list[CheckRow]:
    """Return the checks that did not pass, the worst first. `hosts`: check and level to number of hosts."""
    texts = ("title", "action", "remedy", "category")
    newest = ", ".join(f"argMax({name}, (checked, recorded_ns))" for name in texts)
    sql = (
        f"SELECT check, {_LEVEL} AS level, {newest} FROM {_table(history)} "
        f"WHERE {_SCOPE} AND status NOT IN ('PASSED', 'SKIPPED') GROUP BY check, level"
    )
    found = [
        CheckRow(check, title, Level(level), hosts[check, level], action, remedy, category)
        for check, level, title, action, remedy, category in rows(history, sql, **scope.parameters())
        if (check, level) in hosts
    ]
    found.sort(key=lambda row: (LEVELS.index(row.level), -row.hosts, row.check))
    return found[:MAX_CHECKS]


def runs(history: History, since_ns: int, limit: int) -> list[RunRow]:
    """Return the newest runs; those of several hosts stand before those of one."""
    sql = (
        f"SELECT run, {_NEWEST_NS} AS newest, uniqExact(host) AS hosts, "
        "uniqExactIf((host, check), status = 'FAILED' AND severity = 'ERROR') "
        f"FROM {_table(history)} WHERE {_SCOPE} GROUP BY run "
        f"ORDER BY hosts > 1 DESC, newest DESC LIMIT {int(limit)}"
    )
    found = rows(history, sql, **Scope("", since_ns).parameters())
    return [RunRow(run, int(newest), int(hosts), int(errors)) for run, newest, hosts, errors in found]


def host_results(history: History, scope: Scope, host: str) -> list[ResultRow]:
    """Return a host's results, the worst first."""
    return _results(history, scope, "host = {host:String}", f"LIMIT {MAX_RESULTS}", host=host)


def check_results(history: History, scope: Scope, check: str) -> list[ResultRow]:
    """Return a check's results on all hosts, the worst first."""
    return _results(history, scope, "check = {check:String}", f"LIMIT {MAX_HOSTS}", check=check)


def _results(history: History, scope: Scope, where: str, limit: str, **more: str) -> list[ResultRow]:
    columns = (
        "title, category, text, action, remedy, run, took_ns, finding_subject, finding_status, finding_text"
    )
    sql = (
        "SELECT host, check, level, at, title, category, text, action, remedy, run, took_ns, "
        f"arrayZip(finding_subject, finding_status, finding_text) FROM ({_latest(history, columns, where)}) "
        f"ORDER BY {_RANK}, check, host {limit}"
    )
    return [
        ResultRow(
            host=host,
            check=check,
            title=title,
            level=Level(level),
            category=category,
            text=text,
            action=action,
            remedy=remedy,
            run=run,
            checked_ns=int(at),
            took_ns=int(took_ns),
            findings=tuple(findings),
        )
        for host, check, level, at, title, category, text, action, remedy, run, took_ns, findings in rows(
            history, sql, **scope.parameters(), **more
        )
    ]


def _latest(history: History, columns: str, where: str = "1") -> str:
    """Return the query of each host's and check's newest result: host, check, level, at, and `columns`."""
    names = [name.strip() for name in columns.split(",")]
    newest = ", ".join(f"newest.{k} AS {name}" for k, name in enumerate(names, start=2))
    return (
        f"SELECT host, check, newest.1 AS level, at, {newest} FROM (SELECT host, check, "
        f"argMax(({_LEVEL}, {', '.join(names)}), (checked, recorded_ns)) AS newest, {_NEWEST_NS} AS at "
        f"FROM {_table(history)} WHERE {_SCOPE} AND {where} GROUP BY host, check)"
    )


def _table(history: History) -> str:
    return f"{history.database}.{tables.AUDIT}"

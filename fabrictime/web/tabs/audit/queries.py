"""History queries about audits: the newest result of each host and check, within one run or the last day.

The queries' aggregates ignore repeated rows, so the queries read without FINAL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, TypeVarTuple

from fabrictime.audit.groups import LEVELS, Level
from fabrictime.web.history_client import History
from fabrictime.web.history_reader import HistoryReader, kept_for
from fabrictime.web.history_sql import records, rows
from schemas import queries, tables

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

MAX_CHECKS: Final = 300
MAX_HOSTS: Final = 500
"""Largest number of hosts that are listed for one check."""
MAX_RESULTS: Final = 500
"""Largest number of results that are listed for one host."""

MAX_RUNS: Final = 8
HOUR_NS: Final = 3_600_000_000_000
DAY_NS: Final = 24 * HOUR_NS
RUN_DAYS: Final = 7
"""Runs of this many days are listed."""

_RANK: Final = f"indexOf([{', '.join(repr(level.name) for level in LEVELS)}], level)"
_SCOPE: Final = (
    "({run:String} = '' OR run = {run:String}) "
    "AND checked >= fromUnixTimestamp64Nano({since_ns:Int64}, 'UTC')"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Selects audit results: of one run, or of all runs if `run` is empty, checked at `since_ns` or later."""

    run: str
    since_ns: int

    def parameters(self) -> Mapping[str, Any]:
        """Return the query parameters that select these results."""
        return {"run": self.run, "since_ns": self.since_ns}


@dataclass(frozen=True, slots=True)
class Cell:
    """One host's number of results in one category, by level in the order of `LEVELS`."""

    host: str
    category: str
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check that did not pass, and the number of hosts on which it did not pass."""

    check: str
    title: str
    level: Level
    hosts: int
    action: str
    remedy: str
    category: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the audit: its hosts, number of errors, and times in ns since the Unix epoch."""

    run: str
    newest_ns: int
    hosts: int
    errors: int


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A check's newest result on one host. `findings` are (subject, status, text)."""

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
    """The numbers of results of all hosts, and the checks that did not pass, the worst first."""

    cells: list[Cell]
    checks: list[CheckRow]
    newest_ns: int | None


def audited(
    history: HistoryReader, query: Callable[[History, Scope, *Arguments], T], run: str, *arguments: *Arguments
) -> T:
    """Run `query` for one run, or for the last day if `run` is empty, and return its result.

    The result is cached until the history has a new audit result.
    """
    scope = Scope(run, 0 if run else (history.now_ns() - DAY_NS) // HOUR_NS * HOUR_NS)
    key = (query, scope, *arguments)
    return history.cached(key, _state_now(history, scope), lambda: query(history, scope, *arguments))


@kept_for(1.0)
def _state_now(history: HistoryReader, scope: Scope) -> tuple[int, int]:
    return state(history, scope)


@kept_for(5.0)
def newest_runs(history: HistoryReader) -> list[RunRow]:
    """Return the newest runs of the last `RUN_DAYS` days."""
    return runs(history, history.now_ns() - RUN_DAYS * DAY_NS, MAX_RUNS)


def state(history: History, scope: Scope) -> tuple[int, int]:
    """Return the number of results and the newest recording time, ns. Every new result changes both."""
    sql = f"SELECT count(), max(recorded_ns) {_rows(history)}"
    count, recorded_ns = next(rows(history, sql, **scope.parameters()))
    return int(count), int(recorded_ns)


def fleet(history: History, scope: Scope) -> AuditFleet:
    """Return the number of results by host, category and level, and the checks that did not pass."""
    sql = (
        "SELECT host, category, check, lower(level) AS outcome, count(), toUnixTimestamp64Nano(max(at)) "
        f"FROM ({queries.newest_results(_rows(history), ('category',))}) "
        "GROUP BY GROUPING SETS ((host, category, outcome), (check, outcome))"
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
    counted = [Cell(*key, tuple(counts.get(level, 0) for level in LEVELS)) for key, counts in cells.items()]
    counted.sort(key=lambda cell: (cell.host, cell.category))
    return AuditFleet(counted, _checks(history, scope, hosts), newest_ns)


def _checks(history: History, scope: Scope, hosts: Mapping[tuple[str, str], int]) -> list[CheckRow]:
    """Return the checks that did not pass, the worst first. `hosts` is the number of hosts by (check,
    level).
    """
    texts = ("title", "action", "remedy", "category")
    newest = ", ".join(f"argMax({name}, (checked, recorded_ns))" for name in texts)
    sql = (
        f"SELECT check, lower({queries.RESULT_LEVEL}) AS level, {newest} {_rows(history)} "
        "AND status NOT IN ('PASSED', 'SKIPPED') GROUP BY check, level"
    )
    checks = [
        CheckRow(check, title, Level(level), hosts[check, level], action, remedy, category)
        for check, level, title, action, remedy, category in rows(history, sql, **scope.parameters())
        if (check, level) in hosts
    ]
    checks.sort(key=lambda row: (LEVELS.index(row.level), -row.hosts, row.check))
    return checks[:MAX_CHECKS]


def runs(history: History, since_ns: int, limit: int) -> list[RunRow]:
    """Return the newest runs of several hosts, without the runs in which a host checks itself at its
    start.
    """
    sql = (
        "SELECT run, toUnixTimestamp64Nano(max(checked)) AS newest, uniqExact(host) AS hosts, "
        "uniqExactIf((host, check), status = 'FAILED' AND severity = 'ERROR') "
        f"{_rows(history)} GROUP BY run HAVING hosts > 1 ORDER BY newest DESC LIMIT {limit}"
    )
    return records(RunRow, history, sql, **Scope("", since_ns).parameters())


def host_results(history: History, scope: Scope, host: str) -> list[ResultRow]:
    """Return a host's results, the worst first."""
    return _results(history, scope, "host = {host:String}", MAX_RESULTS, host=host)


def check_results(history: History, scope: Scope, check: str) -> list[ResultRow]:
    """Return a check's results on all hosts, the worst first."""
    return _results(history, scope, "check = {check:String}", MAX_HOSTS, check=check)


def _results(history: History, scope: Scope, where: str, limit: int, **more: str) -> list[ResultRow]:
    texts = ("title", "category", "text", "action", "remedy", "run", "took_ns")
    columns = (*texts, "finding_subject", "finding_status", "finding_text")
    sql = (
        "SELECT host, check, title, lower(level), category, text, action, remedy, run, "
        "toUnixTimestamp64Nano(at), took_ns, arrayZip(finding_subject, finding_status, finding_text) "
        f"FROM ({queries.newest_results(f'{_rows(history)} AND {where}', columns)}) "
        f"ORDER BY {_RANK}, check, host LIMIT {limit}"
    )
    return records(ResultRow, history, sql, **scope.parameters(), **more)


def _rows(history: History) -> str:
    return f"FROM {history.database}.{tables.AUDIT} WHERE {_SCOPE}"

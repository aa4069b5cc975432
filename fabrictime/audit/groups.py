"""Groups the results of a fleet audit for display: by level, host, check, cause, action and value.

Pure functions of AuditResults. The terminal report, the HTML report and the live page's tab share them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

from fabrictime.audit.connections import CHECKS as CONNECTION_CHECKS
from fabrictime.audit.connections import Connections, connections
from fabrictime.audit.host_names import name_order
from fabrictime.audit.report import TITLES
from schemas.records import AuditAction, AuditCategory, AuditResult, AuditSeverity, AuditStatus


class Level(StrEnum):
    """Level of a result for display, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    PASSED = "passed"
    SKIPPED = "skipped"


LEVELS: Final = tuple(Level)
RANK: Final = {level: rank for rank, level in enumerate(LEVELS)}
ACTION_ORDER: Final = (
    AuditAction.ISOLATE,
    AuditAction.REPLACE,
    AuditAction.REBOOT,
    AuditAction.RESET,
    AuditAction.MONITOR,
)
_LEVELS: Final = {
    (AuditStatus.FAILED, AuditSeverity.ERROR): Level.ERROR,
    (AuditStatus.FAILED, AuditSeverity.WARNING): Level.WARNING,
    **{(AuditStatus.UNKNOWN, severity): Level.UNKNOWN for severity in AuditSeverity},
    **{(AuditStatus.PASSED, severity): Level.PASSED for severity in AuditSeverity},
    **{(AuditStatus.SKIPPED, severity): Level.SKIPPED for severity in AuditSeverity},
}


def level_of(result: AuditResult) -> Level:
    """Return the level of a result; a failed check has the level of its severity."""
    return _LEVELS[result["status"], result["severity"]]


def worst_of(counts: Mapping[Level, int]) -> Level:
    """Return the worst level with a count above 0; SKIPPED if there is none."""
    return next((level for level in LEVELS if counts.get(level)), Level.SKIPPED)


@dataclass(frozen=True, slots=True)
class Cause:
    """One outcome of a check, with its text, its remedy and its hosts."""

    level: Level
    text: str
    remedy: str
    hosts: tuple[str, ...]


@dataclass(slots=True)
class CheckGroup:
    """The results of one check on all hosts of the fleet."""

    check: str
    category: AuditCategory
    title: str
    severity: AuditSeverity
    action: AuditAction
    counts: Counter[Level] = field(default_factory=Counter)
    _remedies: Counter[str] = field(default_factory=Counter)
    _texts: dict[tuple[Level, str, str], list[str]] = field(default_factory=dict)

    def add(self, result: AuditResult, level: Level) -> None:
        """Add a host's result, which has the level `level`."""
        self.counts[level] += 1
        if level is not Level.UNKNOWN:  # its remedy is what would help to check
            self._remedies[result["remedy"]] += 1
            self.action = result["action"]
        if level is not Level.PASSED:
            self._texts.setdefault((level, result["text"], result["remedy"]), []).append(result["host"])

    @property
    def level(self) -> Level:
        """The check's worst level on any host."""
        return worst_of(self.counts)

    @property
    def remedy(self) -> str:
        """The check's general remedy; the result of a host may have a more specific one."""
        return next((remedy for remedy, _ in self._remedies.most_common(1)), "")

    @property
    def failed(self) -> int:
        """Number of hosts on which the check failed."""
        return self.counts[Level.ERROR] + self.counts[Level.WARNING]

    @property
    def hosts(self) -> int:
        """Number of hosts with a result of the check."""
        return self.counts.total()

    def causes(self, *levels: Level) -> list[Cause]:
        """Return the causes with these levels, sorted by level, then by descending number of hosts."""
        causes = [
            Cause(level, text, remedy, tuple(sorted(hosts, key=name_order)))
            for (level, text, remedy), hosts in self._texts.items()
            if level in levels
        ]
        return sorted(
            causes, key=lambda cause: (RANK[cause.level], -len(cause.hosts), name_order(cause.hosts[0]))
        )


def check_groups(results: Iterable[AuditResult]) -> list[CheckGroup]:
    """Return the results by check, the check with most errors first, then by warnings and unknown results."""
    groups: dict[str, CheckGroup] = {}
    for result in results:
        group = groups.get(result["check"])
        if group is None:
            group = groups[result["check"]] = CheckGroup(
                result["check"],
                result["category"],
                result["title"],
                result["severity"],
                result["action"],
            )
        group.add(result, level_of(result))
    return sorted(
        groups.values(), key=lambda group: (*(-group.counts[level] for level in LEVELS[:3]), group.check)
    )


@dataclass(slots=True)
class HostRow:
    """One host's results: counts by category and level, and results that did not pass, the worst first."""

    host: str
    sku: str = ""
    shard: str = ""
    counts: Counter[Level] = field(default_factory=Counter)
    by_category: dict[AuditCategory, Counter[Level]] = field(default_factory=dict)
    open: list[AuditResult] = field(default_factory=list)
    of_network: dict[str, AuditResult] = field(default_factory=dict)
    """Results by check id, of the checks that show the state of the host's connections."""

    @property
    def level(self) -> Level:
        """The worst level of the host's results."""
        return worst_of(self.counts)

    @property
    def connections(self) -> Connections:
        """The state of the host's ports and NICs."""
        return connections(self.of_network)

    @property
    def action(self) -> AuditAction | None:
        """The strongest action that the host's errors require; None without an error."""
        actions = {result["action"] for result in self.open if level_of(result) is Level.ERROR}
        return min(actions, key=ACTION_ORDER.index, default=None)


def host_rows(results: Iterable[AuditResult]) -> list[HostRow]:
    """Return a row per host, in the order of `name_order`."""
    rows: dict[str, HostRow] = {}
    for result in results:
        row = rows.get(result["host"])
        if row is None:
            row = rows[result["host"]] = HostRow(result["host"], result["sku"], result["shard"])
        level = level_of(result)
        row.counts[level] += 1
        row.by_category.setdefault(result["category"], Counter())[level] += 1
        if RANK[level] < RANK[Level.PASSED]:
            row.open.append(result)
        if result["check"] in CONNECTION_CHECKS:
            row.of_network[result["check"]] = result
    for row in rows.values():
        row.open.sort(key=lambda result: (RANK[level_of(result)], result["check"]))
    return sorted(rows.values(), key=lambda row: name_order(row.host))


def worklist(rows: Iterable[HostRow]) -> Iterator[tuple[AuditAction, list[str]]]:
    """Yield each action with its hosts. A host is listed at the strongest action that its errors require."""
    hosts: dict[AuditAction, list[str]] = defaultdict(list)
    for row in rows:
        if row.action is not None:
            hosts[row.action].append(row.host)
    for action in ACTION_ORDER:
        if action in hosts:
            yield action, hosts[action]


@dataclass(frozen=True, slots=True)
class Spread:
    """A fact that differs among hosts of one machine type. `figures`: its numbers by host; None for texts."""

    check: str
    name: str
    subject: str
    sku: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """Each value with its hosts, the most frequent value first."""
    figures: Mapping[str, float] | None = None

    @property
    def range(self) -> tuple[float, float, float]:
        """Lowest, median and highest of the numbers."""
        figures = list((self.figures or {}).values())
        return min(figures), median(figures), max(figures)


def spreads(results: Iterable[AuditResult]) -> list[Spread]:
    """Return the facts that differ among hosts of one machine type, those with fewest deviating hosts
    first.
    """
    values: dict[tuple[str, str, str, str], dict[str, tuple[str, float | None]]] = defaultdict(dict)
    for result in results:
        for fact in result["facts"]:
            key = result["check"], fact["name"], fact["subject"], result["sku"]
            values[key][result["host"]] = fact["text"], fact["number"]
    differing = [_spread(key, by_host) for key, by_host in values.items() if len(set(by_host.values())) > 1]
    return sorted(differing, key=_odd_hosts)


def _spread(key: tuple[str, str, str, str], by_host: Mapping[str, tuple[str, float | None]]) -> Spread:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host in sorted(by_host, key=name_order):
        hosts[by_host[host][0]].append(host)
    ordered = sorted(hosts.items(), key=lambda item: (-len(item[1]), name_order(item[1][0])))
    figures = {host: number for host, (_, number) in by_host.items() if number is not None}
    return Spread(
        *key,
        values=tuple((text, tuple(of_value)) for text, of_value in ordered),
        figures=figures if len(figures) == len(by_host) else None,
    )


def _odd_hosts(spread: Spread) -> tuple[int, str, str]:
    total = sum(len(hosts) for _, hosts in spread.values)
    return total - len(spread.values[0][1]), spread.check, spread.name


def of_category(groups: Sequence[CheckGroup]) -> Iterator[tuple[AuditCategory, list[CheckGroup]]]:
    """Yield each category with its checks, in the report's order."""
    by_category: dict[AuditCategory, list[CheckGroup]] = defaultdict(list)
    for group in groups:
        by_category[group.category].append(group)
    for category in TITLES:
        if category in by_category:
            yield category, by_category[category]

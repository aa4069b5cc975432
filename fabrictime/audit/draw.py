"""Draws the report of a fleet for a terminal: tree of checks with remedies, table of nodes, verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from fabrictime.audit.connections import TITLES as CONNECTIONS
from fabrictime.audit.groups import LEVELS, CheckGroup, Level, check_groups, host_rows, of_category
from fabrictime.audit.host_names import folded
from fabrictime.audit.report import TITLES, AuditReport, verdict
from schemas.records import AuditAction
from streams.audit.results import FLEET

MAX_CAUSES: Final = 8
"""Largest number of a check's causes that have a line each; the hosts of all further ones share a line."""
STYLES: Final = {
    Level.ERROR: "red",
    Level.WARNING: "yellow",
    Level.UNKNOWN: "yellow",
    Level.PASSED: "green",
    Level.SKIPPED: "dim",
}
NOTABLE: Final = (Level.ERROR, Level.WARNING, Level.UNKNOWN)
COUNTABLE: Final = (Level.ERROR, Level.WARNING)


def draw(report: AuditReport, *, everything: bool = False) -> RenderableType:
    """Return the whole report for rich. With `everything`, it includes passed and skipped checks."""
    return Group(tree(report, everything=everything), node_table(report), Text(verdict(report)[1], "bold"))


def tree(report: AuditReport, *, everything: bool = False) -> Tree:
    """Return a tree of categories and their checks that did not pass; with `everything`, of all checks."""
    title = f"Audit {report.run}: {len(report.hosts):,} hosts, {report.took_s:.1f} s"
    root = Tree(Text(title, "bold"))
    for category, groups in of_category(check_groups(report.all_results())):
        total = sum((group.counts for group in groups), Counter[Level]())
        branch = root.add(Text.assemble((TITLES[category], "bold"), "  ", _counts(total)))
        for group in groups:
            if everything or group.level in NOTABLE:
                _add_check(branch, group)
    return root


def _add_check(branch: Tree, group: CheckGroup) -> None:
    """Add a check to `branch`, with the causes of its failures, and the hosts and remedy of each cause."""
    leaf = branch.add(Text.assemble(f"{group.title} ({group.check})  ", _counts(group.counts)))
    causes = group.causes(*NOTABLE)
    for cause in causes[:MAX_CAUSES]:
        label, hosts = cause.level.upper(), folded(cause.hosts)
        line = leaf.add(Text.assemble((f"{label} ", STYLES[cause.level]), (hosts, "bold"), f": {cause.text}"))
        if cause.remedy != group.remedy:
            action = AuditAction.MONITOR if cause.level is Level.UNKNOWN else group.action
            line.add(Text(f"{action}: {cause.remedy}", "italic"))
    rest = [host for cause in causes[MAX_CAUSES:] for host in cause.hosts]
    if rest:
        leaf.add(f"{len(causes) - MAX_CAUSES:,} other texts on {folded(rest)}")
    if group.failed:
        leaf.add(Text(f"{group.action}: {group.remedy}", "italic"))


def node_table(report: AuditReport) -> Table:
    """Return a table of hosts: status, agent, NICs, connections, and the checks that did not pass."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("host", "status", "agent", "NIC", *CONNECTIONS.values(), "findings"):
        table.add_column(column, no_wrap=column in ("host", "status"))
    for row in host_rows(report.all_results()):
        if row.host != FLEET:
            is_missing = row.host in report.missing
            nics = report.nics.get(row.host)
            stated = (getattr(row.connections, name) or "-" for name in CONNECTIONS)
            table.add_row(
                row.host,
                _status(row.counts, is_missing),
                "no answer" if is_missing else "answered",
                str(len(nics)) if nics else "-",
                *stated,
                _counts(row.counts, NOTABLE),
            )
    return table


def _status(counts: Mapping[Level, int], is_missing: bool) -> Text:
    if counts[Level.ERROR]:
        return Text("FAILED", STYLES[Level.ERROR])
    if is_missing or not (counts[Level.WARNING] or counts[Level.PASSED]):
        return Text("UNKNOWN", STYLES[Level.UNKNOWN])
    level = Level.WARNING if counts[Level.WARNING] else Level.PASSED
    return Text(level.upper(), STYLES[level])


def _counts(counts: Mapping[Level, int], levels: Iterable[Level] = LEVELS) -> Text:
    """Return the counts of `levels` as text, such as `2 errors  1 unknown`."""
    present = [(level, counts[level]) for level in levels if counts[level]]
    return Text("  ").join(
        Text(f"{count:,} {level}{'s' * (level in COUNTABLE and count != 1)}", STYLES[level])
        for level, count in present
    )

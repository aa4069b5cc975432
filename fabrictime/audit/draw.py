"""Draws the report of a fleet for a terminal: tree of checks with remedies, table of nodes, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from fabrictime.audit.groups import LEVELS, CheckGroup, Level, check_groups, of_category
from fabrictime.audit.host_names import folded
from fabrictime.audit.report import TITLES, AuditReport, Counts, counted, verdict

__all__ = ["draw", "node_table", "tree"]

MAX_CAUSES: Final = 8
"""Different texts of one check that are drawn one by one; the hosts of the others share a line."""
STYLES: Final = {
    Level.ERROR: "red",
    Level.WARNING: "yellow",
    Level.UNKNOWN: "yellow",
    Level.PASSED: "green",
    Level.SKIPPED: "dim",
}
NOTABLE: Final = (Level.ERROR, Level.WARNING, Level.UNKNOWN)
COUNTED: Final = {
    "errors": Level.ERROR,
    "warnings": Level.WARNING,
    "unknown": Level.UNKNOWN,
    "passed": Level.PASSED,
    "skipped": Level.SKIPPED,
}
"""Fields of `Counts`, with the level that each counts."""


def draw(report: AuditReport, *, everything: bool = False) -> RenderableType:
    """Return the whole report for rich. `everything`: passed and skipped checks too."""
    return Group(tree(report, everything=everything), node_table(report), Text(verdict(report)[1], "bold"))


def tree(report: AuditReport, *, everything: bool = False) -> Tree:
    """Return categories with counts, below them the checks that did not pass, with hosts and remedy."""
    title = f"Audit {report.run}: {len(report.hosts):,} hosts, {report.took_s:.1f} s"
    root = Tree(Text(title, "bold"))
    for category, groups in of_category(check_groups(report.all_results())):
        total = counted(report.of_category(category))
        branch = root.add(Text.assemble((TITLES[category], "bold"), "  ", _counts(total)))
        for group in groups:
            if everything or group.level in NOTABLE:
                _add_check(branch, group)
    return root


def _add_check(branch: Tree, group: CheckGroup) -> None:
    """Add a check with the causes why it did not pass, their hosts and remedies."""
    counts = Text("  ").join(
        Text(f"{group.counts[level]:,} {level}", STYLES[level]) for level in LEVELS if group.counts[level]
    )
    leaf = branch.add(Text.assemble(f"{group.title} ({group.check})  ", counts))
    causes = group.causes(*NOTABLE)
    for cause in causes[:MAX_CAUSES]:
        label, hosts = cause.level.upper(), folded(cause.hosts)
        line = leaf.add(Text.assemble((f"{label} ", STYLES[cause.level]), (hosts, "bold"), f": {cause.text}"))
        if cause.level is not Level.UNKNOWN and cause.remedy != group.remedy:
            line.add(Text(f"{group.action}: {cause.remedy}", "italic"))
    rest = [host for cause in causes[MAX_CAUSES:] for host in cause.hosts]
    if rest:
        leaf.add(f"{len(causes) - MAX_CAUSES:,} other texts on {folded(rest)}")
    if group.failed:
        leaf.add(Text(f"{group.action}: {group.remedy}", "italic"))


def node_table(report: AuditReport) -> Table:
    """Return a row per host: status, agent, NICs, and errors, warnings and unknown of each category."""
    shown = [each for each in TITLES if report.of_category(each)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("host", "status", "agent", "NICs", *(TITLES[each] for each in shown)):
        table.add_column(column, no_wrap=column in ("host", "status"))
    for host in report.hosts:
        results = list(report.results.get(host, {}).values())
        counts = counted(results)
        agent = "no answer" if host in report.missing else "answered"
        cells = [_cell(counted(each for each in results if each["category"] == one)) for one in shown]
        status = _status(counts if host not in report.missing else Counts(errors=counts.errors))
        table.add_row(host, status, agent, str(len(report.nics.get(host, ()))), *cells)
    return table


def _status(counts: Counts) -> Text:
    if counts.errors:
        return Text("FAILED", "red")
    if not counts.checked:
        return Text("UNKNOWN", "yellow")
    return Text("WARNING", "yellow") if counts.warnings else Text("PASSED", "green")


def _cell(counts: Counts) -> Text:
    """Return what did not pass in a category: `2 errors 1 unknown`, or ok; a dash if nothing was checked."""
    text = _texts(counts, ("errors", "warnings", "unknown"))
    if text.plain:
        return text
    return Text("ok", "green") if counts.checked else Text("-", "dim")


def _counts(counts: Counts) -> Text:
    return _texts(counts, COUNTED)


def _texts(counts: Counts, names: Iterable[str]) -> Text:
    found = [(name, getattr(counts, name)) for name in names]
    return Text("  ").join(Text(f"{count:,} {name}", STYLES[COUNTED[name]]) for name, count in found if count)

"""Draws the report of a fleet for a terminal: tree of checks with remedies, table of nodes, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from fabrictime.audit.report import TITLES, AuditReport, Counts, counted, verdict
from schemas.records import AuditResult, AuditSeverity, AuditStatus

__all__ = ["draw", "node_table", "tree"]

MAX_HOSTS: Final = 8
"""Hosts of one check that are drawn one by one; the others are named in one line."""
MAX_NAMES: Final = 12
STYLES: Final = {
    "errors": "red",
    "warnings": "yellow",
    "unknown": "yellow",
    "passed": "green",
    "skipped": "dim",
}
NOTABLE: Final = (AuditStatus.FAILED, AuditStatus.UNKNOWN)


def draw(report: AuditReport, *, everything: bool = False) -> RenderableType:
    """Return the whole report for rich. `everything`: passed and skipped checks too."""
    return Group(tree(report, everything=everything), node_table(report), Text(verdict(report)[1], "bold"))


def tree(report: AuditReport, *, everything: bool = False) -> Tree:
    """Return categories with counts, below them the checks that did not pass, with hosts and remedy."""
    title = f"Audit {report.run}: {len(report.hosts):,} hosts, {report.took_s:.1f} s"
    root = Tree(Text(title, "bold"))
    for category, name in TITLES.items():
        of_category = report.of_category(category)
        if not of_category:
            continue
        branch = root.add(Text.assemble((name, "bold"), "  ", _counts(counted(of_category))))
        for _, group in groupby(of_category, key=lambda each: each["check"]):
            results = list(group)
            if everything or any(each["status"] in NOTABLE for each in results):
                _add_check(branch, results)
    return root


def _add_check(branch: Tree, results: list[AuditResult]) -> None:
    """Add a check with the hosts where it did not pass, and its remedy."""
    first = results[0]
    counts = counted(results)
    leaf = branch.add(Text.assemble(f"{first['title']} ({first['check']})  ", _counts(counts)))
    notable = [each for each in results if each["status"] in NOTABLE]
    for each in notable[:MAX_HOSTS]:
        label = _label(each)
        leaf.add(Text.assemble((f"{label} ", _style(label)), (each["host"], "bold"), f": {each['text']}"))
    if len(notable) > MAX_HOSTS:
        leaf.add(f"and {_names(each['host'] for each in notable[MAX_HOSTS:])}")
    if counts.errors or counts.warnings:
        leaf.add(Text(f"{first['action']}: {first['remedy']}", "italic"))


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
        table.add_row(host, _status(counts), agent, str(len(report.nics.get(host, ()))), *cells)
    return table


def _status(counts: Counts) -> Text:
    if counts.errors:
        return Text("FAILED", "red")
    if not counts.checked:
        return Text("UNKNOWN", "yellow")
    return Text("WARNING", "yellow") if counts.warnings else Text("PASSED", "green")


def _cell(counts: Counts) -> Text:
    """Return what did not pass in a category: `2 errors 1 unknown`, or ok; a dash if nothing was checked."""
    shown = [(name, getattr(counts, name)) for name in ("errors", "warnings", "unknown")]
    text = Text(" ").join(Text(f"{count} {name}", STYLES[name]) for name, count in shown if count)
    if text.plain:
        return text
    return Text("ok", "green") if counts.checked else Text("-", "dim")


def _counts(counts: Counts) -> Text:
    parts = [(name, getattr(counts, name)) for name in STYLES]
    return Text("  ").join(Text(f"{count:,} {name}", STYLES[name]) for name, count in parts if count)


def _label(result: AuditResult) -> str:
    is_warning = result["severity"] == AuditSeverity.WARNING and result["status"] == AuditStatus.FAILED
    return "WARNING" if is_warning else str(result["status"])


def _style(label: str) -> str:
    return "red" if label == AuditStatus.FAILED else "yellow"


def _names(hosts: Iterable[str]) -> str:
    names = list(hosts)
    text = ", ".join(names[:MAX_NAMES])
    return text if len(names) <= MAX_NAMES else f"{text} and {len(names) - MAX_NAMES:,} more"

"""Audits this host: runs the passive checks, prints a tree of results, and judges whether the host is fit."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fabrictime.audit import report
from fabrictime.commands.screen import table_of
from producers.audit.base import Check, Result, advice, category_name, listed, one_line
from producers.audit.bundles.host import open_bundle
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host
from producers.audit.host.live import LiveHost
from producers.audit.reasons import ROOT
from producers.audit.runner import run_checks
from producers.audit.settings import CheckSettings
from schemas.input_error import InputError
from schemas.records import AuditCategory, AuditSeverity, AuditStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

NOT_RUN_EXIT: Final = 2
TITLES: Final = {
    category: title for category, title in report.TITLES.items() if category is not AuditCategory.OTHER
}
STYLES: Final = {
    AuditStatus.PASSED: "green",
    AuditStatus.FAILED: "red",
    AuditStatus.UNKNOWN: "yellow",
    AuditStatus.SKIPPED: "dim",
}


def chosen(only: Sequence[str]) -> list[Check]:
    """Return the checks in these categories or with these ids; all passive checks if `only` is empty.

    An active check must be named by its id. Raises ValueError for an unknown name.
    """
    categories = [category_name(title) for title in TITLES]
    for name in only:
        if name not in CHECKS and name not in categories:
            raise InputError(f"--only {name}: expected {', '.join(categories)}, or an id from --list")
    return [
        check
        for check in CHECKS.values()
        if check.check_id in only
        or (not check.active and (not only or category_name(check.category) in only))
    ]


def verdict(results: Iterable[Result]) -> tuple[int, str]:
    """Return (exit code, one line of text): 0 if the host is fit, 1 if not, 2 if nothing could be checked."""
    counts = dict.fromkeys(AuditStatus, 0)
    errors = 0
    for result in results:
        counts[result.status] += 1
        errors += result.status is AuditStatus.FAILED and result.check.severity is AuditSeverity.ERROR
    warnings = counts[AuditStatus.FAILED] - errors
    text = (
        f"{errors} errors, {warnings} warnings, {counts[AuditStatus.UNKNOWN]} unknown, "
        f"{counts[AuditStatus.PASSED]} passed, {counts[AuditStatus.SKIPPED]} skipped"
    )
    if not counts[AuditStatus.PASSED] and not counts[AuditStatus.FAILED]:
        return NOT_RUN_EXIT, f"nothing could be checked: {text}"
    return (1, f"not fit: {text}") if errors else (0, f"no error found: {text}")


def draw(results: Sequence[Result], host: str, *, everything: bool = False) -> RenderableType:
    """Return the results as a tree for rich: categories with counts, checks that did not pass, remedies."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(f"Audit of {host}", "bold"))
    for category, title in TITLES.items():
        of_category = [result for result in results if result.check.category is category]
        if not of_category:
            continue
        branch = tree.add(Text.assemble((title, "bold"), "  ", _counts(of_category)))
        shown = (AuditStatus.FAILED, AuditStatus.UNKNOWN, *(AuditStatus if everything else ()))
        for group in _with_one_reason([result for result in of_category if result.status in shown]):
            branch.add(_line(group[0]) if len(group) == 1 else _group_line(group))
    return Group(tree, Text(verdict(results)[1], "bold"))


def _with_one_reason(results: Iterable[Result]) -> list[list[Result]]:
    """Return results in groups: skipped checks with one common reason form a group, others stand alone."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        is_made = result.status in (AuditStatus.PASSED, AuditStatus.FAILED)
        key = (result.status, result.check.check_id if is_made else result.text)
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def _group_line(group: Sequence[Result]) -> Any:
    from rich.text import Text

    first, check_ids = group[0], listed([result.check.check_id for result in group])
    text = Text.assemble((f"{first.status} ", STYLES[first.status]), f"{first.text}: {check_ids}")
    if first.status is AuditStatus.UNKNOWN:
        text.append("\n" + ": ".join(advice(first)), "italic")
    return text


def for_root(results: Iterable[Result]) -> str:
    """Return a line that names the checks that only root can run; empty if all were run."""
    checks = [
        result.check.check_id
        for result in results
        if result.status in (AuditStatus.UNKNOWN, AuditStatus.SKIPPED)
        and (ROOT.search(result.text) or any(ROOT.search(finding.text) for finding in result.findings))
    ]
    return f"root could make {len(checks)} more checks: {listed(checks)}" if checks else ""


def _counts(results: Sequence[Result]) -> Any:
    from rich.text import Text

    text = Text()
    for status in STYLES:
        count = sum(result.status is status for result in results)
        if count:
            text.append(f"{count} {status.lower()}  ", STYLES[status])
    return text


def _line(result: Result) -> Any:
    from rich.text import Text

    check = result.check
    label = (
        "WARNING"
        if result.status is AuditStatus.FAILED and check.severity is AuditSeverity.WARNING
        else result.status
    )
    style = "yellow" if label == "WARNING" else STYLES[result.status]
    text = Text.assemble((f"{label} ", style), f"{check.title} ({check.check_id}): {result.text}")
    if result.status in (AuditStatus.FAILED, AuditStatus.UNKNOWN):
        text.append("\n" + ": ".join(advice(result)), "italic")
    return text


def as_json(results: Sequence[Result], host: str) -> str:
    """Return the results as one line of JSON."""
    code, line = verdict(results)
    rows = [
        {
            "check": result.check.check_id,
            "category": result.check.category,
            "title": result.check.title,
            "status": result.status,
            "severity": result.check.severity,
            "text": result.text,
            "action": advice(result)[0],
            "remedy": advice(result)[1],
            "findings": [
                {"subject": finding.subject, "status": finding.status, "text": finding.text}
                for finding in result.findings
            ],
        }
        for result in results
    ]
    return json.dumps({"host": host, "exit_code": code, "verdict": line, "checks": rows})


def show_list() -> None:
    """Print every check with its severity, action and expectation."""
    from rich.console import Console

    titles = ("check", "severity", "action", "expectation")
    rows = [(check.check_id, check.severity, check.action, check.title) for check in CHECKS.values()]
    Console().print(table_of(titles, rows, wrapped=("expectation",)))


def main(
    only: Sequence[str],
    *,
    as_json_line: bool,
    everything: bool,
    host: Host | None = None,
    settings: CheckSettings | None = None,
    bundle: Path | None = None,
) -> int:
    """Run the checks, print the report, and return the exit code. `bundle`: a host's support bundle.

    Raises ValueError for an unknown name, and for a bundle of an unknown format.
    """
    from rich.console import Console

    checks, name = chosen(only), socket.gethostname()
    if bundle:
        host = open_bundle(bundle, settings)
        name = one_line(host.name)
    console, results = Console(), []
    with Console(stderr=True).status(f"0 of {len(checks)} checks") as status:
        for result in run_checks(checks, host or LiveHost(settings=settings)):
            results.append(result)
            status.update(f"{len(results)} of {len(checks)} checks")
    order = list(CHECKS)
    results.sort(key=lambda result: order.index(result.check.check_id))
    if as_json_line:
        print(as_json(results, name))
    else:
        console.print(draw(results, name, everything=everything), highlight=False)
        if os.geteuid() and bundle is None and (line := for_root(results)):
            console.print(line, highlight=False)
    return verdict(results)[0]

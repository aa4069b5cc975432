"""Writes a fleet audit as one HTML page that loads nothing: for a browser, a phone and paper.

Repeated content is merged: hosts with the same outcome of a check share a line. Checks that passed are
collapsed in the tree. Thus the page of a thousand hosts is readable, and small enough to send by mail.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabrictime.audit.connections import TITLES as CONNECTIONS
from fabrictime.audit.groups import (
    LEVELS,
    Cause,
    CheckGroup,
    HostRow,
    Level,
    Spread,
    check_groups,
    host_rows,
    level_of,
    of_category,
    spreads,
    worklist,
    worst_of,
)
from fabrictime.audit.host_names import folded, name_order
from fabrictime.audit.report import ANSWER, ERRORS_EXIT, FIT_EXIT, TITLES, AuditReport, verdict
from schemas.records import AuditCategory
from schemas.units import counted
from streams.audit.results import FLEET

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

HERE: Final = Path(__file__).parent
_CODE: Final = re.compile(r"`([^`]+)`")
MISSING: Final = "missing"
HOST_LEVELS: Final = {
    MISSING: "without an answer",
    Level.ERROR: "not fit",
    Level.WARNING: "with warnings",
    Level.UNKNOWN: "not fully checked",
    Level.PASSED: "without a finding",
    Level.SKIPPED: "with nothing to check",
}
TILE_NOTES: Final = {
    Level.ERROR: "make a host unfit",
    Level.WARNING: "leave a host fit",
    Level.UNKNOWN: "could not be read",
    Level.PASSED: "checks as expected",
}
CELL_WIDTH: Final = 10
MAX_CELL_PX: Final = 34
STRIKING: Final = (Level.ERROR, MISSING)
MIN_SHARE: Final = 350
"""An error is at least 1/MIN_SHARE of the picture wide, two or three pixels."""
TICKS: Final = 120


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest numbers of items of each kind on the page, which states the number of omitted items."""

    causes: int = 30
    """Causes of a check."""
    open: int = 25
    """Failed checks that are expanded at first."""
    open_unknown: int = 10
    spreads: int = 100
    values: int = 6
    """Values of a fact beside the most frequent one."""
    rows: int = 200
    """Hosts in the table."""
    open_of_host: int = 12
    """Findings of a host in the table."""
    names: int = 240
    """Characters of a list of host names; a longer list is expanded by a click."""
    single_hosts: int = 16
    """Hosts in a fleet that is so small that each host has its own row."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Consecutive hosts in the picture of the fleet that have the same level in one category."""

    level: str
    x: int
    width: int
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The row of one category in the picture of the fleet."""

    category: AuditCategory
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that differs among hosts: lowest, median, highest, their hosts; (x, opacity) of its ticks."""

    spread: Spread
    marks: tuple[tuple[str, str], ...]
    ticks: tuple[tuple[int, float], ...]


def page(report: AuditReport, limits: Limits | None = None) -> Iterator[str]:
    """Yield the parts of the page's HTML, in order."""
    limits = limits or Limits()
    missing = {host: report.results[host][ANSWER]["text"] for host in report.missing}
    results = [result for result in report.all_results() if result["host"] not in missing]
    groups, rows = check_groups(results), host_rows(results)
    fleet = [row for row in rows if row.host == FLEET]
    hosts = [row for row in rows if row.host != FLEET]
    return _template().generate(
        run=report.run,
        when=_when(report),
        css=(HERE / "report.css").read_text(encoding="utf-8"),
        limits=limits,
        levels=LEVELS,
        host_levels_text=HOST_LEVELS,
        tile_notes=TILE_NOTES,
        fleet_host=FLEET,
        verdict=_verdict(report, hosts, groups),
        missing=missing,
        missing_by_reason=_by_reason(missing),
        nics=report.nics,
        counts=_total(row.counts for row in rows),
        **_of_hosts(hosts, fleet, missing, limits),
        **_of_checks(groups),
        **_of_values(spreads(results)),
    )


def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "folded": folded,
        "counted": counted,
        "hosts": _hosts_of,
        "worst": worst_of,
        "cell": _cell_text,
        "level": level_of,
        "with_code": with_code,
        "plural": _plural,
    }
    return environment.get_template("report.html")


def _of_hosts(
    rows: Sequence[HostRow], fleet: Sequence[HostRow], missing: Mapping[str, str], limits: Limits
) -> dict[str, object]:
    """Return the template's values for the part about hosts. `fleet` are the rows of fleet-wide results."""
    noted = [(row, [row.host]) for row in fleet if row.open] + _noted(rows, limits)
    listed = {host for _, hosts in noted[: limits.rows] for host in hosts}
    names = sorted({*(row.host for row in rows), *missing}, key=name_order)
    skus = {row.sku for row in rows}
    return {
        "rows": rows,
        "stated": _stated(rows),
        "names": names,
        "noted": noted,
        "unlisted": [row.host for row in rows if row.open and row.host not in listed],
        "quiet": [row.host for row in rows if not row.open and row.host not in listed],
        "skus": skus,
        "has_sku": any(skus),
        "host_levels": _host_levels(rows, missing),
        "work": list(worklist(rows)),
        "picture": list(_picture(rows, missing, names)),
        "width": len(names) * CELL_WIDTH,
        "strip_max_px": len(names) * MAX_CELL_PX,
    }


def _stated(rows: Iterable[HostRow]) -> dict[str, str]:
    """Return the titles of the connection columns in the host table with a value for at least one host."""
    connections = [row.connections for row in rows]
    return {
        name: title for name, title in CONNECTIONS.items() if any(getattr(of, name) for of in connections)
    }


def _of_checks(groups: Sequence[CheckGroup]) -> dict[str, object]:
    return {
        "failed": [group for group in groups if group.failed],
        "unchecked": [group for group in groups if group.counts[Level.UNKNOWN]],
        "skipped": [group for group in groups if group.counts[Level.SKIPPED]],
        "tree": [
            (category, TITLES[category], _total(group.counts for group in of), of)
            for category, of in of_category(groups)
        ],
    }


def _of_values(value_spreads: Sequence[Spread]) -> dict[str, object]:
    return {
        "unlike": [spread for spread in value_spreads if spread.figures is None],
        "figures": [_figure(spread) for spread in value_spreads if spread.figures is not None],
    }


def _total(counts: Iterable[Counter[Level]]) -> Counter[Level]:
    return sum(counts, Counter[Level]())


def _noted(rows: Sequence[HostRow], limits: Limits) -> list[tuple[HostRow, list[str]]]:
    """Return the rows of the host table, the worst first, each as (results of its first host, its hosts).

    A host with an error has its own row. Other hosts share a row if they have the same findings.
    """
    of_row: dict[object, tuple[HostRow, list[str]]] = {}
    for row in rows:
        if row.open or len(rows) <= limits.single_hosts:
            alone = row.level is Level.ERROR or len(rows) <= limits.single_hosts
            key = row.host if alone else tuple((result["check"], result["text"]) for result in row.open)
            of_row.setdefault(key, (row, []))[1].append(row.host)
    return sorted(of_row.values(), key=lambda item: (LEVELS.index(item[0].level), -len(item[0].open)))


def with_code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code elements."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - the text is escaped


def _plural(level: Level, count: int) -> str:
    return f"{level}s" if level in (Level.ERROR, Level.WARNING) and count != 1 else str(level)


def _hosts_of(causes: Iterable[Cause]) -> list[str]:
    return sorted({host for cause in causes for host in cause.hosts}, key=name_order)


def _cell_text(counts: Mapping[Level, int]) -> str:
    """Return as text the numbers of results by level that did not pass, for one host and category."""
    return ", ".join(
        f"{counts[level]} {_plural(level, counts[level])}" for level in LEVELS[:3] if counts.get(level)
    )


def _when(report: AuditReport) -> str:
    started = datetime.fromtimestamp(report.started_ns / 1e9, tz=UTC)
    return f"{started:%Y-%m-%d %H:%M} UTC, took {report.took_s:.1f} s"


def _verdict(report: AuditReport, rows: Sequence[HostRow], groups: Sequence[CheckGroup]) -> dict[str, str]:
    """Return the kind, title and sentence of the verdict, for the template."""
    code, partly = verdict(report)[0], sum(row.counts[Level.UNKNOWN] > 0 for row in rows)
    unfit = sum(row.counts[Level.ERROR] > 0 for row in rows)
    checks = sum(group.counts[Level.ERROR] > 0 for group in groups)
    sentences = []
    if code == ERRORS_EXIT:
        kind, title = "unfit", "Not fit"
        verb = "has" if unfit == 1 else "have"
        of_all = f"{unfit} of {counted(len(rows), 'host')} {verb} errors" if unfit else "The fleet has errors"
        sentences.append(f"{of_all}, in {counted(checks, 'check')}.")
    elif code == FIT_EXIT:
        kind, title = "fit", "Fit"
        sentences.append(f"No error on {counted(len(rows), 'host')}.")
    else:
        kind, title = "nothing", "Not checked everywhere" if rows else "Nothing could be checked"
    if partly:
        sentences.append(f"{counted(partly, 'host')} could not be checked in full.")
    if report.missing:
        sentences.append(f"{counted(len(report.missing), 'host')} did not answer.")
    return {"kind": kind, "title": title, "sentence": " ".join(sentences)}


def _host_levels(rows: Sequence[HostRow], missing: Mapping[str, str]) -> list[tuple[str, int]]:
    counts = Counter[str](row.level for row in rows)
    counts[MISSING] = len(set(missing) - {row.host for row in rows})
    order: tuple[str, ...] = (Level.ERROR, MISSING, *LEVELS[1:])
    return [(level, counts[level]) for level in order if counts[level]]


def _by_reason(missing: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, reason in missing.items():
        hosts[reason].append(host)
    return sorted(hosts.items(), key=lambda item: -len(item[1]))


def _picture(rows: Sequence[HostRow], missing: Mapping[str, str], names: Sequence[str]) -> Iterator[Strip]:
    """Yield a strip per category for the picture, with a column per host in the order of `names`."""
    by_name = {row.host: row for row in rows}
    gap = int(len(names) <= 100)
    smallest = len(names) * CELL_WIDTH // MIN_SHARE
    categories = set(chain.from_iterable(row.by_category for row in rows))
    for category, title in TITLES.items():
        if category not in categories:
            continue
        levels = [_level_in(category, by_name.get(name)) for name in names]
        cells, x = [], 0
        for level, run in groupby(levels):
            length = len(list(run))
            hosts = folded(names[x : x + length])
            width = max(length * CELL_WIDTH - gap, smallest if level in STRIKING else 0)
            cells.append(Cell(level, x * CELL_WIDTH, width, f"{hosts}: {level}"))
            x += length
        yield Strip(category, title, tuple(sorted(cells, key=lambda cell: cell.level in STRIKING)))


def _level_in(category: AuditCategory, row: HostRow | None) -> str:
    if row is None:
        return MISSING
    return worst_of(row.by_category.get(category, {}))


def _figure(spread: Spread) -> Figure:
    assert spread.figures is not None  # noqa: S101 - only such spreads are figures
    low, middle, high = spread.range
    hosts = {value: host for host, value in spread.figures.items()}
    step = (high - low) / TICKS or 1.0
    marks = Counter(round((value - low) / step) for value in spread.figures.values())
    largest = max(marks.values())
    return Figure(
        spread,
        ((f"{low:g}", hosts[low]), (f"{middle:g}", ""), (f"{high:g}", hosts[high])),
        tuple((x, round(0.35 + 0.65 * count / largest, 2)) for x, count in sorted(marks.items())),
    )

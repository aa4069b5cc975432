"""Turns history rows into table rows and HTML for the tab Audit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from fabrictime.audit.groups import LEVELS, Level, worst_of
from fabrictime.audit.host_names import name_order
from fabrictime.audit.report import TITLES
from fabrictime.web.addresses import audit_address
from fabrictime.web.tabs.audit.queries import Cell, CheckRow, ResultRow
from schemas.units import counted
from streams.audit.results import FLEET

MAX_NAMED: Final = 96
"""Largest number of hosts for which the squares show the hosts' names."""
WHOLE_FLEET: Final = "whole fleet"


@dataclass(slots=True)
class HostSquare:
    """A host's square in the grid: number of results by level, and the worst level in each category."""

    host: str
    counts: Counter[Level] = field(default_factory=Counter)
    by_category: dict[str, Level] = field(default_factory=dict)

    def level(self, category: str) -> Level:
        """Return the host's worst level in a category, or in all categories if `category` is empty."""
        return self.by_category.get(category, Level.SKIPPED) if category else worst_of(self.counts)


def squares(cells: Iterable[Cell]) -> list[HostSquare]:
    """Return one square per host, sorted by name. The square of fleet-wide results comes first."""
    square_by_host: dict[str, HostSquare] = {}
    for cell in cells:
        square = square_by_host.setdefault(cell.host, HostSquare(cell.host))
        counts = Counter(dict(zip(LEVELS, cell.counts, strict=True)))
        square.counts.update(counts)
        square.by_category[cell.category] = worst_of(counts)
    return sorted(square_by_host.values(), key=lambda square: (square.host != FLEET, name_order(square.host)))


def grid_markup(hosts: Sequence[HostSquare], category: str, run: str, chosen_host: str | None) -> str:
    """Return HTML with a square per host, coloured by its worst level and linked to the host's results."""
    named = len(hosts) <= MAX_NAMED
    parts = []
    for square in hosts:
        level = square.level(category)
        classes = (
            f"ft-host ft-{level}" + " ft-named" * named + " ft-chosen-host" * (square.host == chosen_host)
        )
        name = shown_host(square.host)
        address = audit_address(run=run, host=square.host)
        parts.append(
            f'<a class="{classes}" href="{escape(address)}" data-host="{escape(square.host)}" '
            f'title="{escape(name)}: {escape(counts_text(square.counts))}">'
            f"{escape(name) if named else ''}</a>"
        )
    return "".join(parts)


def shown_host(host: str) -> str:
    """Return the host's name as shown on the page; an empty `host` stands for the whole fleet."""
    return WHOLE_FLEET if host == FLEET else host


def counts_text(counts: Mapping[Level, int]) -> str:
    """Return the number of results by level as text, the worst level first."""
    texts = []
    for level in LEVELS:
        if counts.get(level):
            countable = level in (Level.ERROR, Level.WARNING)
            texts.append(counted(counts[level], level) if countable else f"{counts[level]:,} {level}")
    return ", ".join(texts) or "nothing checked"


def totals(hosts: Iterable[HostSquare]) -> Counter[Level]:
    """Return the number of results by level, summed over all hosts."""
    return sum((square.counts for square in hosts), Counter[Level]())


def categories(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the titles of the checked categories by category, in the report's order; key '' is for all."""
    present = {cell.category for cell in cells}
    return {"": "all", **{str(category): title for category, title in TITLES.items() if category in present}}


def check_row(row: CheckRow) -> dict[str, Any]:
    """Return a row of the table of failed checks. An UNKNOWN check lacks evidence, so it has no remedy."""
    is_unknown = row.level is Level.UNKNOWN
    return {
        "id": f"{row.check} {row.level}",
        "check": row.check,
        "level": str(row.level),
        "title": row.title,
        "hosts": counted(row.hosts, "host"),
        "action": "" if is_unknown else row.action.lower(),
        "remedy": "Open the check: it says what it lacks." if is_unknown else row.remedy,
    }


def result_row(row: ResultRow, name: str) -> dict[str, Any]:
    """Return a table row for a result. `name`: its host or its check."""
    return {"id": f"{row.host} {row.check}", "name": name, "level": str(row.level), "text": row.text}


def open_results(results: Iterable[ResultRow]) -> list[ResultRow]:
    """Return the results that neither passed nor were skipped."""
    return [row for row in results if row.level not in (Level.PASSED, Level.SKIPPED)]


def hint(hosts: Sequence[HostSquare]) -> str:
    """Return the sentence that is shown while neither a host nor a check is chosen."""
    unfit = sum(square.counts[Level.ERROR] > 0 for square in hosts if square.host != FLEET)
    fleet = sum(square.host != FLEET for square in hosts)
    if not hosts:
        return "No audit yet. Run fabrictime audit --fleet, or wait for the hourly checks of the agents."
    verdict = (
        f"{unfit} of {counted(fleet, 'host')} not fit"
        if unfit
        else f"{counted(fleet, 'host')} without an error"
    )
    return f"{verdict}. Choose a host or a check."

"""Export of the elements that a tab shows: any table as CSV, any picture as PNG or SVG."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui
from nicegui.client import Client
from nicegui.element import Element

from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import link_button
from fabrictime.web.widgets import Chips, LiveTable, LiveText

_TITLES: Final = {"ft-title", "ft-sub-title"}
_FORMULA: Final = re.compile(r"[=@\t\r]|[+-](?![\d.∞])")
"""Start of a text that a spreadsheet would compute."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A table or picture of the page with the title above it."""

    title: str
    element: Any

    @property
    def formats(self) -> tuple[str, ...]:
        """The file formats in which the table or picture can be exported."""
        if not isinstance(self.element, LiveChart):
            return ("CSV",)
        return ("PNG", "SVG") if self.element.is_vector else ("PNG",)


def shown_on(client: Client) -> Iterator[Shown]:
    """Yield the visible pictures and the visible tables with rows on a page, from top to bottom."""
    title = ""
    for element in list(client.elements.values()):
        if isinstance(element, LiveText) and _TITLES & set(element.classes) and element.text:
            title = element.text
        elif (isinstance(element, LiveChart) or _rows_of(element)) and _is_visible(element):
            yield Shown(title or "fabrictime", element)


def _rows_of(element: Element) -> Sequence[Any]:
    if isinstance(element, LiveTable):
        return element.texts()
    return element.rows if isinstance(element, ui.table) else ()


def _is_visible(element: Element) -> bool:
    return element.visible and all(ancestor.visible for ancestor in element.ancestors())


def csv_of(table: LiveTable | ui.table) -> str:
    """Return a table's header and rows as CSV (RFC 4180)."""
    if isinstance(table, LiveTable):
        return csv_text([table.labels, *table.texts()])
    names = [str(column["field"]) for column in table.columns]
    rows = [[row.get(name, "") for name in names] for row in getattr(table, "all_rows", list)() or table.rows]
    return csv_text([[column["label"] for column in table.columns], *rows])


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV. A text that a spreadsheet would run as a formula gets a leading quote."""
    output = io.StringIO()
    csv.writer(output).writerows([_cell(value) for value in row] for row in rows)
    return output.getvalue()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if _FORMULA.match(text) else text


def file_name(tab: str, title: str, ending: str) -> str:
    """Return the file name for an exported table or picture, from its tab and title."""
    name = re.sub(r"[^a-z0-9]+", "-", f"fabrictime {tab} {title}".lower()).strip("-")
    return f"{name[:80]}.{ending.lower()}"


class ExportMenu:
    """A button with a menu of the tab's present tables and pictures. A click on an entry saves its file."""

    def __init__(self, tab: str) -> None:
        """Create the button. `tab` is part of the names of the files."""
        self._tab = tab
        self._choices: dict[str, tuple[Shown, str]] = {}
        self._button = link_button("Export", "export-menu", self._toggle).props("aria-expanded=false")

    def build_list(self) -> None:
        """Create the menu's list, which is empty until a click on the button."""
        self._list = Chips(self._save).classes("ft-exports").props("data-testid=exports")

    def _toggle(self) -> None:
        shown = [] if self._choices else list(shown_on(self._list.client))
        choices = [(one, kind) for one in shown for kind in one.formats]
        self._choices = {f"{one.element.id} {kind}": (one, kind) for one, kind in choices}
        self._list.put([(key, f"{one.title}: {kind}", "") for key, (one, kind) in self._choices.items()])
        self._button.props(f"aria-expanded={'true' if choices else 'false'}")

    def _save(self, key: str) -> None:
        if key not in self._choices:
            return
        shown, kind = self._choices[key]
        name = file_name(self._tab, shown.title, kind)
        with self._list.client:
            if kind == "CSV":
                ui.download.content(csv_of(shown.element), name, "text/csv")
            else:
                shown.element.run_method("picture", name, kind)

"""Small page elements that all tabs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nicegui import ui

from fabrictime.web.first_paint import ID
from fabrictime.web.widgets import Cell, LiveTable, LiveText, Row, Section

READING = "Reading the history …"
"""Stands in place of figures until the history answers."""
CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


HEAD = f"""<style>{CSS}</style><style>#{ID} ~ #esm-fallback {{ display: none; }}</style>
<script>document.documentElement.lang = "en";
try {{
  const scheme = localStorage.getItem("fabrictime-scheme") ?? "system";
  if (scheme !== "system") document.documentElement.style.colorScheme = scheme;
}} catch {{}}
new MutationObserver(() => {{
  if (document.getElementById("app")?.firstChild) document.getElementById("{ID}")?.remove();
  const parts = ".q-table__middle:not([tabindex]), .q-table tbody tr:not([tabindex])";
  for (const part of document.querySelectorAll(parts)) {{
    part.tabIndex = 0;
    part.addEventListener("keydown", (e) => {{ if (e.key === "Enter" && e.target === part) part.click(); }});
  }}
}}).observe(document.documentElement, {{ childList: true, subtree: true }});</script>"""
"""The style, the language, the reader's colour scheme, the end of the first paint's copy, and rows of tables
that the keyboard reaches.
"""


def write_address(address: str, adds: bool = True) -> None:
    """Change the browser's address line without a page load. With `adds`, Back returns to the former
    address.
    """
    ui.run_javascript(f"history.{'pushState' if adds else 'replaceState'}(null, '', {address!r})")


def go_to(address: str) -> None:
    """Open an address of the page without changing the time that the page shows."""
    ui.run_javascript(f"const to = {address!r}; location.href = window.ftKeepMoment?.(to) ?? to")


def card(classes: str) -> Any:
    """Return an empty frame for a part of the page, with these CSS classes."""
    return ui.element("section").classes(f"ft-card {classes}")


def text(content: str, classes: str, test: str | None = None) -> LiveText:
    """Return an element with a line of text. `test` is its test id."""
    element = LiveText(content).classes(classes)
    return element.props(f"data-testid={test}") if test else element


def part(test: str) -> Section:
    """Return an element for a part of a panel that can be hidden. `test` is its test id."""
    return Section().classes("ft-panel-part").props(f"data-testid={test}")


def empty(content: str, test: str) -> LiveText:
    """Return an element with the line of text that replaces an empty table or chart."""
    return text(content, "ft-nothing", test=test)


def link_button(content: str, test: str, on_click: Callable[[], None]) -> Any:
    """Return a button that looks like a link."""
    button = ui.element("button").classes("ft-link").props(f"type=button data-testid={test}")
    with button:
        text(content, "")
    button.on("click", lambda: on_click())
    return button


def toggle(options: dict[Any, str], value: Any, choose: Callable[[Any], None], test: str) -> Any:
    """Return a row of buttons, one of which is pressed. `options` are the values and their labels."""
    element = ui.toggle(options, value=value, on_change=lambda event: choose(event.value))
    # Quasar's own colours are important in a layer of CSS, before which ours do not count.
    element.props("toggle-color=ft-accent toggle-text-color=ft-card")
    return element.classes("ft-toggle").props(f"dense unelevated no-caps data-testid={test}")


def column(name: str, label: str, align: str = "right", sortable: bool = False) -> dict[str, Any]:
    """Return the definition of a column of a NiceGUI table."""
    return {"name": name, "label": label, "field": name, "align": align, "sortable": sortable}


def table(
    columns: Sequence[tuple[str, str, str]],
    test: str,
    on_pick: Callable[[Row], None] | None = None,
    cells: Mapping[str, Callable[[Row], Cell]] | None = None,
) -> LiveTable:
    """Return a live table of (name, label, alignment) columns. The values in a column named `state` have
    colours.
    """
    element = LiveTable(columns, {"state": _state_cell, **(cells or {})}, on_pick)
    return element.classes("ft-table ft-list").props(f"data-testid={test}")


def _state_cell(row: Row) -> Cell:
    return [(f"ft-pill ft-{row['state']}", row["state"], "")]


def name_value_table(test: str) -> LiveTable:
    """Return a table without a header, which `put_values` fills with names and values."""
    return table([("name", "", "left"), ("value", "", "left")], test)


def put_values(element: LiveTable, values: Sequence[tuple[str, str]]) -> None:
    """Show names and values in a `name_value_table`."""
    element.put([{"id": name, "name": name, "value": value} for name, value in values])


def utc_time(ns: int) -> str:
    """Return the UTC time of day of `ns` since the Unix epoch."""
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%H:%M:%S}"

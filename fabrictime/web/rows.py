"""The Python side of `rows.js`: a live table that is sent its rows alone, and only where they differ.

In: rows as dicts with an `id`, and how cells look that are more than text. Out: what a click or Enter picked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from nicegui.events import GenericEventArguments

from fabrictime.web.widgets import LiveList

Row: TypeAlias = dict[str, Any]
Cell: TypeAlias = str | list[tuple[str, str, str]]
"""Its text; or parts one below the other, each as (classes, text, title)."""


class LiveTable(LiveList[Row], component="rows.js"):
    """A table of (name, label, align) columns; hidden while it has no row. Each row has an `id` of its own.

    `cells` gives a column's cell where it is more than `row[name]`; `on_pick` is told of a row that was
    clicked.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, str, str]],
        cells: Mapping[str, Callable[[Row], Cell]] | None = None,
        on_pick: Callable[[Row], None] | None = None,
    ) -> None:
        super().__init__()
        self._columns = [name for name, _, _ in columns]
        self._cells = dict(cells or {})
        self._props["columns"] = [(label, align) for _, label, align in columns]
        self._props["head"] = any(label for _, label, _ in columns)
        self._props["picks"] = on_pick is not None
        if on_pick is not None:

            def picked(event: GenericEventArguments) -> None:
                row = next((row for row in self._shown if str(row["id"]) == event.args), None)
                if row is not None:  # else it has gone while the click was on its way
                    on_pick(row)

            self.on("pick", picked)

    def state(self) -> dict[str, Any]:
        """Return what `put` of the component takes."""
        rows = [[str(row["id"]), [self._cell(row, name) for name in self._columns]] for row in self._shown]
        return {"rows": rows}

    def _cell(self, row: Row, name: str) -> Cell:
        if name in self._cells:
            return self._cells[name](row)
        return "" if row[name] is None else str(row[name])

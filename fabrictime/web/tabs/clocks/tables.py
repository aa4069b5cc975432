"""Tables of the Clocks tab: events, suspect pairs, and all clocks with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.web.elements import card, column, text, utc_time
from fabrictime.web.tabs.clocks import frames
from fabrictime.web.tabs.clocks.queries import ClockRow, EventRow, SuspectRow
from schemas.ids import natural
from schemas.units import delay_text, percent_text, signed_delay_text

ROWS_PER_PAGE: Final = 9
STATE_CELL: Final = (
    """<q-td :props="props"><span :class="'ft-pill ft-' + props.value">{{ props.value }}</span></q-td>"""
)
_SORT_KEYS: Final[dict[str, Callable[[ClockRow], Any]]] = {
    "clock": lambda r: natural(r.clock),
    "state": lambda r: r.state,
    "bound": lambda r: r.bound_ns,
    "offset": lambda r: abs(r.offset_ns),
    "drift": lambda r: abs(r.drift_ppb),
    "sigma": lambda r: r.drift_sigma_ppb,
    "pairs": lambda r: r.pairs,
    "residual": lambda r: r.residual_ns,
    "domain": lambda r: (r.shard, r.domain),
}


def event_table(on_row: Callable[[GenericEventArguments], None]) -> Any:
    """Return an empty table for the events of clocks. A click on a row calls `on_row`."""
    columns = [
        column("at", "window (UTC)", align="left"),
        column("clock", "clock", align="left"),
        column("event", "event", align="left"),
        column("state", "state", align="left"),
    ]
    table = _table(columns, "events", 0)
    table.add_slot("body-cell-state", STATE_CELL)
    table.on("rowClick", on_row, js_handler="(e, row) => emit(row.clock)")
    return table


def event_row(row: EventRow) -> dict[str, Any]:
    """Return the table row of a clock's event."""
    return {
        "id": f"{row.shard} {row.clock} {row.at_ns}",
        "at": utc_time(row.at_ns),
        "clock": row.clock,
        "event": frames.event_text(row.event, row.event_ns),
        "state": row.state,
    }


def suspect_table() -> Any:
    """Return an empty table for the suspect pairs of the mesh."""
    columns = [
        column("pair", "prober → peer", align="left"),
        column("asymmetry", "asymmetry"),
        column("sigma", "± sigma"),
        column("weight", "weight left"),
        column("since", "since (UTC)"),
    ]
    return _table(columns, "suspects", 0)


def suspect_row(row: SuspectRow) -> dict[str, Any]:
    """Return the table row of a suspect pair."""
    return {
        "id": f"{row.shard} {row.prober} {row.peer}",
        "pair": f"{row.prober} → {row.peer}",
        "asymmetry": signed_delay_text(row.asymmetry_ns),
        "sigma": delay_text(row.sigma_ns),
        "weight": percent_text(row.weight),
        "since": utc_time(row.since_ns),
    }


class PagedClocks:
    """A table of clocks with pages that the server sorts: a fleet has too many clocks for a browser.

    With `leaves_space`, a table of several pages shows one row fewer, so that its buttons fit into the same
    height.
    """

    def __init__(
        self, size: int, make_row: Callable[[ClockRow], dict[str, Any]], leaves_space: bool = False
    ) -> None:
        self._rows: Sequence[ClockRow] = []
        self._size = size
        self._make_row = make_row
        self._leaves_space = leaves_space
        self.page: dict[str, Any] = {
            "sortBy": "bound",
            "descending": True,
            "page": 1,
            "rowsPerPage": size,
            "rowsNumber": 0,
        }

    def attach(self, table: Any, on_click: Callable[[GenericEventArguments], None]) -> None:
        """Show the rows in `table`, which was created with `page` as its pagination. A click on a row calls
        `on_click`.
        """
        self.table = table
        table.all_rows = lambda: [self._make_row(row) for row in self._ordered()]
        table.add_slot("body-cell-state", STATE_CELL)
        table.props("hide-no-data")  # a note beside it says so
        table.on_pagination_change(self.on_browser_page)
        table.on("request", self.on_request)
        table.on("rowClick", on_click, js_handler="(e, row) => emit(row.clock)")

    def on_request(self, event: GenericEventArguments) -> None:
        """Apply the sort order and page that the browser requests."""
        request = event.args["pagination"]
        self.page.update({k: request[k] for k in ("sortBy", "descending", "page") if k in request})
        self.show(self._rows)

    def on_browser_page(self, _: object = None) -> None:
        """Send the rows again if the browser's page counts no rows yet, such as `1-0 of 0`."""
        if self.table.pagination.get("rowsNumber") != self.page["rowsNumber"]:
            self.show(self._rows)

    def _ordered(self) -> list[ClockRow]:
        ordered = sorted(self._rows, key=lambda row: natural(row.clock))
        if self.page["sortBy"] in _SORT_KEYS:
            ordered.sort(key=_SORT_KEYS[self.page["sortBy"]], reverse=bool(self.page["descending"]))
        return ordered

    def show(self, rows: Sequence[ClockRow]) -> None:
        """Show the chosen page of these clocks."""
        self._rows, page = rows, self.page
        ordered = self._ordered()
        size = page["rowsPerPage"] = self._size - (self._leaves_space and len(ordered) > self._size)
        page["rowsNumber"] = len(ordered)
        page["page"] = min(int(page["page"]), max(1, -(-len(ordered) // size)))
        first = (page["page"] - 1) * size
        page_rows = [self._make_row(row) for row in ordered[first : first + size]]
        if page_rows != self.table.rows or self.table.pagination != page:
            self.table.pagination = dict(page)
            self.table.rows = page_rows
            self.table.props(f":hide-bottom={'true' if len(ordered) <= size else 'false'}")


class ClockTable:
    """The table of all clocks with a filter."""

    def __init__(self) -> None:
        self._rows: Sequence[ClockRow] = []
        self._filter = ""
        self._pages = PagedClocks(ROWS_PER_PAGE, _clock_row)

    def build(self, on_row: Callable[[GenericEventArguments], None]) -> None:
        """Create the table's elements."""
        with card("ft-clock-list"):
            with ui.element("div").classes("ft-head"):
                text("All clocks", "ft-title")
                text("a click adds a clock to the charts below, or removes it", "ft-note")
                name_filter = ui.element("input").classes("ft-input")
                name_filter.props('data-testid=filter placeholder="name contains" aria-label="name contains"')
                name_filter.on("input", self._on_filter, js_handler="(e) => emit(e.target.value)")
            columns = [
                column("clock", "clock", align="left", sortable=True),
                column("state", "state", align="left", sortable=True),
                column("bound", "± bound", sortable=True),
                column("offset", "offset", sortable=True),
                column("drift", "drift, ppm", sortable=True),
                column("sigma", "± ppm", sortable=True),
                column("pairs", "pairs", sortable=True),
                column("residual", "residual", sortable=True),
                column("domain", "domain", align="left", sortable=True),
            ]
            self._pages.attach(_table(columns, "clock-table", None, self._pages.page), on_row)

    def show(self, rows: Sequence[ClockRow]) -> None:
        """Show the clocks whose names match the filter."""
        self._rows = rows
        self._pages.show([row for row in rows if self._filter.lower() in row.clock.lower()])

    def _on_filter(self, event: GenericEventArguments) -> None:
        self._filter, self._pages.page["page"] = str(event.args).strip(), 1
        self.show(self._rows)


def _clock_row(row: ClockRow) -> dict[str, Any]:
    return {
        "id": f"{row.shard} {row.clock}",
        "clock": row.clock,
        "state": row.state,
        "bound": "—" if row.state == "UNSYNCED" else delay_text(row.bound_ns),
        "offset": signed_delay_text(row.offset_ns),
        "drift": f"{row.drift_ppb / 1e3:+.4f}",
        "sigma": f"{row.drift_sigma_ppb / 1e3:.4f}",
        "pairs": row.pairs,
        "residual": delay_text(row.residual_ns) if row.pairs else "—",
        "domain": row.domain,
    }


def _table(
    columns: list[dict[str, Any]], test: str, rows: int | None, pagination: dict[str, Any] | None = None
) -> Any:
    with ui.element("div").classes("ft-fill ft-list"):
        table = ui.table(
            rows=[], columns=columns, row_key="id", pagination=rows if pagination is None else pagination
        )
        options = "binary-state-sort" if pagination is not None else "hide-bottom"
        table.classes("ft-table").props(
            f'flat dense data-testid={test} {options} :rows-per-page-options="[0]" no-data-label=""'
        )
    return table

"""Tables of the Clocks tab: events, suspect pairs, and all clocks with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.state.units import delay_text, percent_text, signed_delay_text
from fabrictime.web.elements import card, column, text, utc_time
from fabrictime.web.tabs.clocks import frames
from fabrictime.web.tabs.clocks.queries import ClockRow, EventRow, SuspectRow
from schemas.ids import natural

ROWS_PER_PAGE: Final = 9
STATE_CELL: Final = (
    """<q-td :props="props"><span :class="'ft-pill ft-' + props.value">{{ props.value }}</span></q-td>"""
)
_SORT_KEYS: Final[dict[str, Callable[[ClockRow], Any]]] = {
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
    """Return the table of events."""
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
    """Return an event's row."""
    return {
        "id": f"{row.shard} {row.clock} {row.at_ns}",
        "at": utc_time(row.at_ns),
        "clock": row.clock,
        "event": frames.event_text(row.event, row.event_ns),
        "state": row.state,
    }


def suspect_table() -> Any:
    """Return the table of suspect pairs."""
    columns = [
        column("pair", "prober → peer", align="left"),
        column("asymmetry", "asymmetry"),
        column("sigma", "± sigma"),
        column("weight", "weight left"),
        column("since", "since (UTC)"),
    ]
    return _table(columns, "suspects", 0)


def suspect_row(row: SuspectRow) -> dict[str, Any]:
    """Return a suspect pair's row."""
    return {
        "id": f"{row.shard} {row.prober} {row.peer}",
        "pair": f"{row.prober} → {row.peer}",
        "asymmetry": signed_delay_text(row.asymmetry_ns),
        "sigma": delay_text(row.sigma_ns),
        "weight": percent_text(row.weight),
        "since": utc_time(row.since_ns),
    }


class ClockTable:
    """The table of all clocks, sorted and paged by the server."""

    def __init__(self) -> None:
        self._rows: Sequence[ClockRow] = []
        self._filter = ""
        self._page: dict[str, Any] = {
            "sortBy": "bound",
            "descending": True,
            "page": 1,
            "rowsPerPage": ROWS_PER_PAGE,
            "rowsNumber": 0,
        }

    def build(self, on_row: Callable[[GenericEventArguments], None]) -> None:
        """Create the table's elements."""
        with card("ft-clock-list"):
            with ui.element("div").classes("ft-head"):
                text("All clocks", "ft-title")
                text("a click adds a clock to the charts above, or removes it", "ft-note")
                wanted = ui.element("input").classes("ft-input")
                wanted.props('data-testid=filter placeholder="name contains" aria-label="name contains"')
                wanted.on("input", self._on_filter, js_handler="(e) => emit(e.target.value)")
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
            self.table = _table(columns, "clock-table", None, self._page)
            self.table.add_slot("body-cell-state", STATE_CELL)
            self.table.on("request", self._on_request)
            self.table.on("rowClick", on_row, js_handler="(e, row) => emit(row.clock)")

    def show(self, rows: Sequence[ClockRow]) -> None:
        """Show the clocks."""
        self._rows = rows
        self._show_page()

    def _on_filter(self, event: GenericEventArguments) -> None:
        self._filter, self._page["page"] = str(event.args).strip(), 1
        self._show_page()

    def _on_request(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self._page.update({k: wanted[k] for k in ("sortBy", "descending", "page") if k in wanted})
        self._show_page()

    def _show_page(self) -> None:
        page = self._page
        ordered = sorted(
            (row for row in self._rows if self._filter.lower() in row.clock.lower()),
            key=lambda r: natural(r.clock),
            reverse=page["sortBy"] == "clock" and bool(page["descending"]),
        )
        if page["sortBy"] in _SORT_KEYS:
            ordered.sort(key=_SORT_KEYS[page["sortBy"]], reverse=bool(page["descending"]))
        size = page["rowsPerPage"] = ROWS_PER_PAGE
        page["rowsNumber"] = len(ordered)
        page["page"] = min(int(page["page"]), max(1, -(-len(ordered) // size)))
        first = (page["page"] - 1) * size
        rows = [_clock_row(row) for row in ordered[first : first + size]]
        if rows != self.table.rows or self.table.pagination != page:
            self.table.pagination = dict(page)
            self.table.rows = rows
            self.table.props(f":hide-bottom={'true' if len(ordered) <= size else 'false'}")


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

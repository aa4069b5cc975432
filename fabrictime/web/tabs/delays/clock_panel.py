"""The clock panel of the Delays tab: a chart of all clocks and a table of their newest solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.state.units import delay_text, signed_delay_text
from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import card, column, text, toggle
from fabrictime.web.tabs.clocks.queries import MAX_DRAWN_CLOCKS, ClockRow, ClockSeries
from fabrictime.web.tabs.delays import frames
from fabrictime.web.tabs.delays.frames import COLOURS, ClockMetric
from schemas.ids import natural

CLOCK_VIEWS: Final = {"wander": "wander", "offset": "offset", "bound": "bound"}
ROWS_PER_PAGE: Final = 8
STATE_CELL: Final = (
    """<q-td :props="props"><span :class="'ft-pill ft-' + props.value">{{ props.value }}</span></q-td>"""
)
_CLOCK_CELL: Final = """<q-td :props="props"><span v-if="props.row.color >= 0"
 :class="'ft-swatch ft-c' + props.row.color"></span>{{ props.value }}</q-td>"""
_SORT_KEYS: Final[dict[str, Callable[[ClockRow], Any]]] = {
    "clock": lambda r: natural(r.clock),
    "state": lambda r: r.state,
    "offset": lambda r: abs(r.offset_ns),
    "drift": lambda r: abs(r.drift_ppb),
    "bound": lambda r: r.bound_ns,
    "pairs": lambda r: r.pairs,
    "residual": lambda r: r.residual_ns,
}


class ClockPanel:
    """Chart and table of clocks. `choose(name, value)` stores a choice in the page's address."""

    def __init__(self, metric: ClockMetric, chosen: str | None, choose: Callable[[str, Any], None]) -> None:
        self._metric: ClockMetric = metric
        self._chosen = chosen
        self._choose = choose
        self._rows: list[ClockRow] = []
        self._series: ClockSeries | None = None
        self._page: dict[str, Any] = {
            "sortBy": "bound",
            "descending": True,
            "page": 1,
            "rowsPerPage": ROWS_PER_PAGE,
            "rowsNumber": 0,
        }

    def build(self, spans: dict[int, str], span: int, choose_span: Callable[[int], None]) -> None:
        """Create the panel's elements."""
        with card("ft-clocks"):
            with ui.element("div").classes("ft-head"):
                text("Clocks against fabric time", "ft-title")
                self.views = toggle(CLOCK_VIEWS, self._metric, self._choose_metric, "clock-view")
                toggle(spans, span, choose_span, "clock-span")
            self.note = text("", "ft-note", test="clock-note")
            with ui.element("div").classes("ft-clock-body"):
                self.chart = LiveChart("clocks").classes("ft-fill").props("data-testid=clock-chart")
                self._build_table()

    def _build_table(self) -> None:
        columns = [
            column("clock", "clock", align="left", sortable=True),
            column("state", "state", align="left", sortable=True),
            column("offset", "offset", sortable=True),
            column("drift", "drift, ppb", sortable=True),
            column("bound", "± bound", sortable=True),
            column("pairs", "pairs", sortable=True),
            column("residual", "residual", sortable=True),
        ]
        self.table = ui.table(rows=[], columns=columns, row_key="clock", pagination=self._page)
        self.table.classes("ft-table").props(
            'flat dense data-testid=clock-table binary-state-sort :rows-per-page-options="[0]"'
        )
        self.table.add_slot("body-cell-clock", _CLOCK_CELL)
        self.table.add_slot("body-cell-state", STATE_CELL)
        self.table.on("request", self._on_request)
        self.table.on("rowClick", self._on_click, js_handler="(e, row) => emit(row.clock)")

    def show_rows(self, rows: list[ClockRow]) -> None:
        """Show the newest solutions."""
        self._rows = rows
        self._show_table()
        states = {
            state: sum(row.state == state for row in rows) for state in ("SYNCED", "HOLDOVER", "UNSYNCED")
        }
        domains = len({(row.shard, row.domain) for row in rows})
        note = " · ".join(f"{count} {state}" for state, count in states.items() if count)
        note = note or "No clock solved yet."
        if domains > 1:
            note += f" · {domains} domains: clocks of different domains cannot be compared"
        self.note.set_text(note)

    def show_series(self, series: ClockSeries | None) -> None:
        """Draw the clocks over time."""
        if series is not self._series:
            self._series = series
            self._draw()

    def _choose_metric(self, metric: ClockMetric) -> None:
        self._metric = metric
        self._choose("clock_view", metric)
        self._draw()

    def _on_request(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self._page.update({k: wanted[k] for k in ("sortBy", "descending", "page") if k in wanted})
        self._show_table()

    def _on_click(self, event: GenericEventArguments) -> None:
        self._chosen = event.args
        self._choose("clock", event.args)
        self._draw()

    def _draw(self) -> None:
        series = self._series
        if series is None or not (series.points or series.spread):
            return
        self.views.set_visibility(not series.spread)
        chosen = self._chosen
        if chosen is None and self._rows:
            chosen = max(self._rows, key=lambda row: row.bound_ns).clock
        self.chart.show(lambda _whole: frames.clock_frame(series, self._metric, chosen))

    def _show_table(self) -> None:
        page = self._page
        ordered = sorted(self._rows, key=lambda r: natural(r.clock))
        if page["sortBy"] in _SORT_KEYS:
            ordered.sort(key=_SORT_KEYS[page["sortBy"]], reverse=bool(page["descending"]))
        # One row fewer leaves space for the page buttons.
        size = page["rowsPerPage"] = ROWS_PER_PAGE - (len(ordered) > ROWS_PER_PAGE)
        page["rowsNumber"] = len(ordered)
        page["page"] = min(int(page["page"]), max(1, -(-len(ordered) // size)))
        first = (page["page"] - 1) * size
        names = sorted({row.clock for row in ordered}, key=natural)
        coloured = len(names) <= MAX_DRAWN_CLOCKS
        rows = [
            {**_table_row(row), "color": names.index(row.clock) % COLOURS if coloured else -1}
            for row in ordered[first : first + size]
        ]
        if rows != self.table.rows or self.table.pagination != page:
            self.table.pagination = dict(page)
            self.table.rows = rows
            self.table.props(f":hide-bottom={'true' if len(ordered) <= size else 'false'}")


def _table_row(row: ClockRow) -> dict[str, Any]:
    return {
        "clock": row.clock,
        "state": row.state,
        "offset": signed_delay_text(row.offset_ns),
        "drift": f"{row.drift_ppb:+,.0f}",
        "bound": delay_text(row.bound_ns),
        "pairs": row.pairs,
        "residual": delay_text(row.residual_ns),
    }

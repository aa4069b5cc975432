"""The clock panel of the Delays tab: a chart of all clocks and a table of their newest solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.web.chart import NOTHING, LiveChart
from fabrictime.web.elements import READING, card, column, text, toggle
from fabrictime.web.tabs.clocks.queries import MAX_DRAWN_CLOCKS, ClockRow, ClockSeries
from fabrictime.web.tabs.clocks.tables import PagedClocks
from fabrictime.web.tabs.delays import frames
from fabrictime.web.tabs.delays.frames import COLOURS, ClockMetric
from schemas.ids import natural
from schemas.units import delay_text, signed_delay_text

CLOCK_VIEWS: Final = {"wander": "wander", "offset": "offset", "bound": "bound"}
ROWS_PER_PAGE: Final = 8
_CLOCK_CELL: Final = """<q-td :props="props"><span v-if="props.row.color >= 0"
 :class="'ft-swatch ft-c' + props.row.color"></span>{{ props.value }}</q-td>"""


class ClockPanel:
    """Chart and table of clocks. Calls `choose(name, value)` to store a choice in the page's address."""

    def __init__(
        self, metric: ClockMetric, chosen_clock: str | None, choose: Callable[[str, Any], None]
    ) -> None:
        self._metric: ClockMetric = metric
        self._chosen = chosen_clock
        self._choose = choose
        self._rows: list[ClockRow] = []
        self._series: ClockSeries | None = None
        self._colors: dict[str, int] = {}
        self._states_note, self._chart_note = READING, ""
        self._pages = PagedClocks(ROWS_PER_PAGE, self._table_row, leaves_space=True)

    def build(self, spans: dict[int, str], span: int, choose_span: Callable[[int], None]) -> None:
        """Create the panel's elements. `spans` are the selectable spans in s and their labels."""
        with card("ft-clocks"):
            with ui.element("div").classes("ft-head"):
                text("Clocks against fabric time", "ft-title")
                self.views = toggle(CLOCK_VIEWS, self._metric, self._choose_metric, "clock-view")
                toggle(spans, span, choose_span, "clock-span")
            self.note = text(READING, "ft-note", test="clock-note")
            with ui.element("div").classes("ft-clock-body"):
                self.chart = LiveChart("clocks", empty=NOTHING).classes("ft-fill")
                self.chart.props("data-testid=clock-chart")
                self._build_table()

    def _build_table(self) -> None:
        columns = [
            column("clock", "clock", align="left", sortable=True),
            column("state", "state", align="left", sortable=True),
            column("offset", "offset", sortable=True),
            column("drift", "drift, ppm", sortable=True),
            column("bound", "± bound", sortable=True),
            column("pairs", "pairs", sortable=True),
            column("residual", "residual", sortable=True),
        ]
        self.table = ui.table(rows=[], columns=columns, row_key="clock", pagination=self._pages.page)
        self.table.classes("ft-table").props(
            'flat dense data-testid=clock-table binary-state-sort :rows-per-page-options="[0]"'
        )
        self.table.add_slot("body-cell-clock", _CLOCK_CELL)
        self._pages.attach(self.table, self._on_click)

    def show_rows(self, rows: list[ClockRow]) -> None:
        """Show the newest solution of each clock in the table."""
        self._rows = rows
        names = sorted({row.clock for row in rows}, key=natural)
        drawn = names if len(names) <= MAX_DRAWN_CLOCKS else []
        self._colors = {name: at % COLOURS for at, name in enumerate(drawn)}
        self._pages.show(rows)
        states = {
            state: sum(row.state == state for row in rows) for state in ("SYNCED", "HOLDOVER", "UNSYNCED")
        }
        domains = len({(row.shard, row.domain) for row in rows})
        note = " · ".join(f"{count} {state}" for state, count in states.items() if count)
        note = note or "No clock solved yet."
        if domains > 1:
            note += f" · {domains} domains: clocks of different domains cannot be compared"
        self._states_note = note
        self._show_note()

    def show_series(self, series: ClockSeries | None) -> None:
        """Draw the clocks over time."""
        if series is not self._series:
            self._series = series
            self._draw()

    def _choose_metric(self, metric: ClockMetric) -> None:
        self._metric = metric
        self._choose("clock_view", metric)
        self._draw()

    def _on_click(self, event: GenericEventArguments) -> None:
        self._chosen = event.args
        self._choose("clock", event.args)
        self._draw()

    def _draw(self) -> None:
        series = self._series
        if series is None or not (series.points or series.spread):
            return
        self.views.set_visibility(not series.spread)
        bold_clock = self._chosen
        if bold_clock is None and self._rows:
            bold_clock = max(self._rows, key=lambda row: row.bound_ns).clock
        self._chart_note = frames.clock_note(series, self._metric, bold_clock)
        self._show_note()
        self.chart.show(lambda _is_full: frames.clock_frame(series, self._metric, bold_clock))

    def _show_note(self) -> None:
        self.note.set_text(" · ".join(filter(None, (self._states_note, self._chart_note))))

    def _table_row(self, row: ClockRow) -> dict[str, Any]:
        return {
            "clock": row.clock,
            "state": row.state,
            "offset": signed_delay_text(row.offset_ns),
            "drift": f"{row.drift_ppb / 1e3:+.4f}",
            "bound": delay_text(row.bound_ns),
            "pairs": row.pairs,
            "residual": delay_text(row.residual_ns) if row.pairs else "—",
            "color": self._colors.get(row.clock, -1),
        }

"""The Delays tab: heat map of one-way delays, one pair in detail, and clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import READING, card, column, link_button, text, toggle
from fabrictime.web.history_sql import Direction, series_period_s
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import AppContext, Choice, Tab
from fabrictime.web.tabs.clocks.queries import ClockRow, ClockSeries, clock_series, clocks
from fabrictime.web.tabs.delays import frames, queries
from fabrictime.web.tabs.delays.clock_panel import ClockPanel
from fabrictime.web.tabs.delays.frames import ClockMetric
from fabrictime.web.tabs.delays.queries import Fleet, Heat, NicRow, Series, WorstRow
from schemas.units import count_text, delay_text, percent_text, rate_text

SPANS: Final = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h"}
SERIES_SPANS: Final = {60: "1 min", 600: "10 min", 3600: "1 h"}
METRICS: Final = {"p50": "p50", "p99": "p99", "loss": "loss"}
DIRECTIONS: Final = {"forward": "out", "reverse": "back"}
KPIS: Final = (
    ("nics", "NICs probing"),
    ("samples", "samples"),
    ("worst", "worst path now, p99"),
    ("bound", "widest clock bound"),
    ("age", "data age"),
)
CELL_NOTES: Final = {
    "nic": "",
    "host": "worst pair of hosts · ",
    "rack": "worst pair of racks · ",
}
SLOW_QUERY_S: Final = 1.0
"""Duration of the heat map's query, s, above which the page shows it."""


@dataclass(frozen=True, slots=True)
class DelaysChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    metric: frames.Metric = "p99"
    direction: Direction = "forward"
    span: int = 10
    nic: str | None = None
    peer: str | None = None
    series: int = 60
    clock: str | None = None
    clock_view: ClockMetric = "wander"
    clock_span: int = 600

    @staticmethod
    def parse(query: dict[str, str]) -> DelaysChoice:
        """Return the user's choices from the query parameters of an address."""
        choice = DelaysChoice()
        for name, allowed in (
            ("metric", get_args(frames.Metric)),
            ("direction", get_args(Direction)),
            ("clock_view", get_args(ClockMetric)),
        ):
            if query.get(name) in allowed:
                choice = replace(choice, **{name: query[name]})  # type: ignore[arg-type]
        for name, spans in (("span", SPANS), ("series", SERIES_SPANS), ("clock_span", SERIES_SPANS)):
            number = query.get(name, "")
            if number.isdecimal() and int(number) in spans:
                choice = replace(choice, **{name: int(number)})  # type: ignore[arg-type]
        if query.get("nic") and query.get("peer"):
            choice = replace(choice, nic=query["nic"], peer=query["peer"])
        return replace(choice, clock=query.get("clock") or None)


NO_HEAT: Final = Heat([], None)
"""The heat map before the history has answered."""


class DelaysTab(Tab[DelaysChoice]):
    """Shows a heat map, one pair's series, and clocks."""

    address = "/delays"
    past_note = "Delays and clocks are of this moment; the list of NICs is that of now."

    def __init__(self, context: AppContext, choice: DelaysChoice) -> None:
        super().__init__(context, choice)
        self.scope: frames.Scope | None = None
        self._nics: list[NicRow] = []
        self._heat: Heat = NO_HEAT
        self._matrix: frames.HeatMatrix | None = None
        self._sent: frames.HeatMatrix | None = None
        self._series: Series | None = None
        self._worst_rows: list[WorstRow] = []
        self.clocks = ClockPanel(
            choice.clock_view, choice.clock, lambda name, value: self._choose(**{name: value})
        )

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-grid"):
                self._build_heat()
                self._build_pair()
                self.clocks.build(SERIES_SPANS, self.choice.clock_span, self._choose_clock_span)
        ui.timer(0.5, self._show_banner)

    def start(self) -> None:
        """Subscribe to history queries; called again when the browser reconnects. `stop` ends the
        subscriptions.
        """
        history = self.context.history
        self.follow("fleet", queries.fleet, (history,), self._on_fleet)
        self.follow("clocks", clocks, (history,), self._on_clocks, 1.0)
        self._follow_heat()
        self._follow_pair()
        self._follow_clock_series()
        for chart in (self.heat, self.pair, self.clocks.chart):
            chart.resume()

    def _build_heat(self) -> None:
        choice = self.choice
        with card("ft-heat"):
            with ui.element("div").classes("ft-head"):
                text("One-way delay", "ft-title")
                toggle(METRICS, choice.metric, lambda v: self._choose_heat(metric=v), "metric")
                toggle(DIRECTIONS, choice.direction, lambda v: self._choose_heat(direction=v), "direction")
                toggle(SPANS, choice.span, lambda v: self._choose_heat(span=v), "span")
            with ui.element("div").classes("ft-sub"):
                self.heat_note = text("", "ft-note", test="heat-note")
                self.scope_back = (
                    ui.element("button").classes("ft-link").props("data-testid=scope-back type=button")
                )
                with self.scope_back:
                    self.scope_text = text("", "")
                self.scope_back.on("click", lambda: self._set_scope(None))
                self.scope_back.set_visibility(False)
                with ui.element("div").classes("ft-key"):
                    ui.element("i").classes("ft-key-lost")
                    text("lost probes", "")
                    ui.element("i").classes("ft-key-unsynced")
                    text("clock not synced", "")
            self.heat = LiveChart("heat", on_cell=self._on_cell).classes("ft-fill").props("data-testid=heat")
            self.heat_empty = text(READING, "ft-empty", test="heat-empty")

    def _build_pair(self) -> None:
        with card("ft-pair"):
            with ui.element("div").classes("ft-head"):
                self.pair_title = text("Worst paths", "ft-title", test="pair-title")
                self.pair_controls = ui.element("div").classes("ft-controls")
                with self.pair_controls:
                    toggle(SERIES_SPANS, self.choice.series, self._choose_series_span, "series")
                    link_button("close", "pair-close", lambda: self._choose_pair(None, None))
            self.pair_note = text("", "ft-note", test="pair-note")
            self.pair = LiveChart("pair", empty=READING).classes("ft-fill").props("data-testid=pair")
            columns = [
                column("pair", "path", align="left"),
                column("p99", "p99"),
                column("p50", "p50"),
                column("bound", "± bound"),
                column("lost", "lost"),
                column("ce", "CE"),
            ]
            self.worst = ui.table(rows=[], columns=columns, row_key="id").classes("ft-table ft-worst")
            self.worst.props('flat dense hide-bottom data-testid=worst :pagination="{rowsPerPage: 0}"')
            self.worst.on("rowClick", self._on_worst_click, js_handler="(e, row) => emit(row.id)")
            self.worst_empty = text(READING, "ft-empty")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose_heat(self, **changes: Any) -> None:
        self._choose(**changes)
        if {"direction", "span"} & changes.keys():
            self._follow_heat()
        else:
            self._draw_heat()

    def _set_scope(self, scope: frames.Scope | None) -> None:
        self.scope = scope
        self.scope_back.set_visibility(scope is not None)
        if scope is not None:
            self.scope_text.set_text(f"{scope.row} → {scope.col}: back to the fleet")
        self._draw_heat()

    def _choose_pair(self, nic: str | None, peer: str | None) -> None:
        self._choose(nic=nic, peer=peer)
        self._follow_pair()

    def _choose_series_span(self, span: int) -> None:
        self._choose(series=span)
        self._follow_pair()

    def _choose_clock_span(self, span: int) -> None:
        self._choose(clock_span=span)
        self._follow_clock_series()

    def _on_cell(self, x: int, y: int) -> None:
        matrix = self._matrix
        if matrix is None or not (0 <= y < len(matrix.rows) and 0 <= x < len(matrix.cols)):
            return
        row, col = matrix.rows[y]["text"], matrix.cols[x]["text"]
        if matrix.level == "nic":
            self._choose_pair(row, col)
        else:
            self._set_scope(frames.Scope(matrix.level, row, col))

    def _on_worst_click(self, event: GenericEventArguments) -> None:
        for row in self._worst_rows:
            if event.args == _worst_id(row):
                self._choose_pair(row.nic, row.peer)

    # --------------------------------------------------------------------------------------------- following

    def _follow_heat(self) -> None:
        arguments = (self.context.history, self.choice.direction, self.choice.span)
        self.follow("heat", queries.heat, arguments, self._on_heat)

    def _follow_pair(self) -> None:
        nic, peer, span = self.choice.nic, self.choice.peer, self.choice.series
        has_pair = nic is not None and peer is not None
        self.pair.set_visibility(has_pair)
        self.pair_controls.set_visibility(has_pair)
        self.pair_note.set_visibility(has_pair)
        self.worst.set_visibility(not has_pair)
        self.worst_empty.set_visibility(not has_pair and not self._worst_rows)
        self.pair_title.set_text(f"{nic} → {peer}" if has_pair else "Worst paths")
        self._series = None
        if nic is None or peer is None:
            self.unfollow("pair")
            return
        arguments = (self.context.history, nic, peer, span)
        self.follow("pair", queries.series, arguments, self._on_series, series_period_s(span))

    def _follow_clock_series(self) -> None:
        span = self.choice.clock_span
        arguments = (self.context.history, span)
        self.follow("clock series", clock_series, arguments, self._on_clock_series, series_period_s(span))

    # ----------------------------------------------------------------------------------------------- filling

    def _on_fleet(self, snapshot: Snapshot[Fleet]) -> None:
        self._fleet = snapshot
        self._show_banner()
        fleet = snapshot.value
        if fleet is None or snapshot.error is not None:
            return
        if fleet.nics != self._nics:
            self._nics = fleet.nics
            self._draw_heat()
        nic_count = len(fleet.nics)
        self._kpi(
            "nics",
            count_text(fleet.probing),
            f"of {count_text(nic_count)} known" if nic_count else "none known yet",
        )
        self._kpi("samples", rate_text(fleet.samples_per_s), "mean of 10 s")
        if fleet.worst:
            worst = fleet.worst[0]
            near, far = _ends(worst)
            self._kpi("worst", delay_text(worst.p99_ns), f"{near} → {far}, path {worst.path}")
        else:
            self._kpi("worst", "—", "")
        self._worst_rows = fleet.worst
        self.worst.rows = [_worst_row(row) for row in fleet.worst]
        self.worst_empty.set_text("No path has a one-way delay yet.")
        self.worst_empty.set_visibility(self.choice.nic is None and not fleet.worst)

    def _on_heat(self, snapshot: Snapshot[Heat]) -> None:
        if snapshot.error is not None:
            self.heat_note.set_text(f"last {SPANS[self.choice.span]}: {snapshot.error}")
        elif snapshot.value is not None and snapshot.value is not self._heat:
            self._heat = snapshot.value
            self._draw_heat(snapshot.query_s)

    def _draw_heat(self, query_s: float = 0.0) -> None:
        pairs, choice = self._heat.pairs, self.choice
        fleet = frames.places(self._nics, pairs)
        level = frames.level_for(fleet, self.scope)
        self._matrix = frames.heat_matrix(pairs, fleet, choice.metric, choice.direction, level, self.scope)
        if self._heat is not NO_HEAT:
            self.heat_empty.set_text("Waiting for the first window.")
        empty = not self._matrix.rows or self._heat is NO_HEAT  # no answer yet does not mean no probes
        self.heat_empty.set_visibility(empty)
        self.heat.set_visibility(not empty)
        arrow = "row → column" if choice.direction == "forward" else "column → row"
        note = f"rows probe · {arrow} · {CELL_NOTES[level]}last {SPANS[choice.span]}"
        if query_s > SLOW_QUERY_S:
            note += f" · the query takes {query_s:.1f} s"
        self.heat_note.set_text(note)
        if not empty:
            self.heat.show(self._heat_frame)

    def _heat_frame(self, is_full: bool) -> dict[str, Any] | None:
        matrix = self._matrix
        if matrix is None:
            return None
        frame = frames.heat_frame(matrix, None if is_full else self._sent)
        self._sent = matrix
        return frame

    def _on_series(self, snapshot: Snapshot[Series]) -> None:
        if snapshot.value is None or snapshot.error is not None:
            return
        series, before = snapshot.value, self._series
        if before is not None and before.points is series.points:
            return
        self._series = series
        nic, peer = self.choice.nic or "", self.choice.peer or ""
        self.pair_note.set_text(frames.pair_note(series, SERIES_SPANS[self.choice.series]))
        self.pair.set_visibility(bool(series.points))
        self.pair.show(lambda _is_full: frames.pair_frame(series, nic, peer))

    def _on_clocks(self, snapshot: Snapshot[list[ClockRow]]) -> None:
        if snapshot.value is None or snapshot.error is not None:
            return
        rows = snapshot.value
        usable = [row for row in rows if row.state != "UNSYNCED"]
        if usable:
            widest = max(usable, key=lambda row: row.bound_ns)
            self._kpi("bound", f"± {delay_text(widest.bound_ns)}", widest.clock)
        else:
            self._kpi("bound", "—", "")
        self.clocks.show_rows(rows)

    def _on_clock_series(self, snapshot: Snapshot[ClockSeries]) -> None:
        if snapshot.error is None:
            self.clocks.show_series(snapshot.value)


def _ends(row: WorstRow) -> tuple[str, str]:
    """Return the sending and the receiving NIC of a worst path."""
    return (row.nic, row.peer) if row.direction == "forward" else (row.peer, row.nic)


def _worst_id(row: WorstRow) -> str:
    return f"{row.nic} {row.peer} {row.path} {row.dscp} {row.direction}"


def _worst_row(row: WorstRow) -> dict[str, Any]:
    near, far = _ends(row)
    return {
        "id": _worst_id(row),
        "pair": f"{near} → {far} · {row.path}" + f" · DSCP {row.dscp}" * bool(row.dscp),
        "p99": delay_text(row.p99_ns),
        "p50": delay_text(row.p50_ns),
        "bound": delay_text(row.bound_ns),
        "lost": percent_text(row.lost / max(row.lost + row.count, 1)),
        "ce": "—" if row.ce_share is None else percent_text(row.ce_share),
    }

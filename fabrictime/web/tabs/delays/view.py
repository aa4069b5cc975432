"""One tab of the live page: lays it out and fills it from the hub's snapshots. No query, no maths here.

In: the process's `AppContext` and the tab's choices, which stand in its address so that a link shows the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.state.units import count_text, delay_text, percent_text, rate_text, signed_delay_text
from fabrictime.web.chart import LiveChart
from fabrictime.web.history_queries import CLOCK_LINES, ClockLines, Fleet, Heat, Series
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import (
    CSS,
    LINE_SPANS,
    AppContext,
    Tab,
    card,
    column,
    line_every_s,
    replace_address,
)
from fabrictime.web.tabs.base import text as _text
from fabrictime.web.tabs.base import toggle as _toggle
from fabrictime.web.tabs.delays import frames, pipeline_health
from fabrictime.web.tabs.delays.queries import ClockRow, Direction, NicRow, RejectRow
from fabrictime.web.widgets import LiveText
from schemas.ids import natural

ClockView = Literal["wander", "offset", "bound"]

SPANS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h"}
METRICS = {"p50": "p50", "p99": "p99", "loss": "loss"}
WAYS = {"forward": "out", "reverse": "back"}
CLOCK_VIEWS = {"wander": "wander", "offset": "offset", "bound": "bound"}
CLOCKS_A_PAGE = 8
_KPIS = (
    ("nics", "NICs probing"),
    ("samples", "samples"),
    ("worst", "worst path now, p99"),
    ("bound", "widest clock bound"),
    ("age", "data age"),
)
REJECTS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class DelaysChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    metric: frames.Metric = "p99"
    way: Direction = "forward"
    span: int = 10
    nic: str | None = None
    peer: str | None = None
    lines: int = 60
    clock: str | None = None
    clock_view: ClockView = "wander"
    clock_span: int = 600

    @staticmethod
    def parse(query: dict[str, str]) -> DelaysChoice:
        """Return the choice that an address's query stands for."""
        choice = DelaysChoice()
        for name, allowed in (
            ("metric", get_args(frames.Metric)),
            ("way", get_args(Direction)),
            ("clock_view", get_args(ClockView)),
        ):
            if query.get(name) in allowed:
                choice = replace(choice, **{name: query[name]})  # type: ignore[arg-type]
        for name, spans in (("span", SPANS), ("lines", LINE_SPANS), ("clock_span", LINE_SPANS)):
            number = query.get(name, "")
            if number.isdecimal() and int(number) in spans:
                choice = replace(choice, **{name: int(number)})  # type: ignore[arg-type]
        if query.get("nic") and query.get("peer"):
            choice = replace(choice, nic=query["nic"], peer=query["peer"])
        return replace(choice, clock=query.get("clock") or None)

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = asdict(DelaysChoice())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


class DelaysTab(Tab):
    """The page of delays: heat map, a pair's series, clocks, pipeline."""

    def __init__(self, site: AppContext, choice: DelaysChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self.scope: frames.Scope | None = None
        self._nics: list[NicRow] = []
        self._heat: Heat = Heat([], None)
        self._matrix: frames.HeatMatrix | None = None
        self._sent: frames.HeatMatrix | None = None
        self._series: Series | None = None
        self._clock_rows: list[ClockRow] = []
        self._clock_lines: ClockLines | None = None
        self._clock_page: dict[str, Any] = {
            "sortBy": "bound",
            "descending": True,
            "page": 1,
            "rowsPerPage": CLOCKS_A_PAGE,
            "rowsNumber": 0,
        }
        self._worst_rows: list[Any] = []

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"):
            with ui.element("div").classes("ft-screen"):
                self._build_header(_KPIS)
                with ui.element("main").classes("ft-grid"):
                    self._build_heat()
                    self._build_pair()
                    self._build_clocks()
                    self._build_health()
            self._build_rejects()
        ui.timer(0.5, self._show_banner)

    def start(self) -> None:
        """Begin to follow history, or follow it again after the browser was away. Ends with `stop`."""
        questions = self.site.questions
        self._follow("fleet", ("fleet",), questions.fleet, self._on_fleet)
        self._follow("clocks", ("clocks",), questions.clocks, self._on_clocks, 1.0)
        self._follow("pipeline_health", ("pipeline_health",), questions.pipeline, self._on_health, 1.0)
        self._follow("rejects", ("rejects",), questions.rejects, self._on_rejects, 2.0)
        self._follow_heat()
        self._follow_pair()
        self._follow_clock_lines()
        for chart in (self.heat, self.pair, self.clock_chart):
            chart.resume()

    def _build_heat(self) -> None:
        with card("ft-heat"):
            with ui.element("div").classes("ft-head"):
                _text("One-way delay", "ft-title")
                _toggle(METRICS, self.choice.metric, lambda v: self._choose_heat(metric=v), "metric")
                _toggle(WAYS, self.choice.way, lambda v: self._choose_heat(way=v), "way")
                _toggle(SPANS, self.choice.span, lambda v: self._choose_heat(span=v), "span")
            with ui.element("div").classes("ft-sub"):
                self.heat_note = _text("", "ft-note", test="heat-note")
                self.scope_back = (
                    ui.element("button").classes("ft-link").props("data-testid=scope-back type=button")
                )
                with self.scope_back:
                    self.scope_text = _text("", "")
                self.scope_back.on("click", lambda: self._look_into(None))
                self.scope_back.set_visibility(False)
                with ui.element("div").classes("ft-key"):
                    ui.element("i").classes("ft-key-lost")
                    _text("lost probes", "")
                    ui.element("i").classes("ft-key-unsynced")
                    _text("clock not synced", "")
            self.heat = LiveChart("heat", on_cell=self._on_cell).classes("ft-fill").props("data-testid=heat")
            self.heat_empty = _text("Waiting for the first window.", "ft-empty", test="heat-empty")

    def _build_pair(self) -> None:
        with card("ft-pair"):
            with ui.element("div").classes("ft-head"):
                self.pair_title = _text("Worst paths now", "ft-title", test="pair-title")
                self.pair_controls = ui.element("div").classes("ft-controls")
                with self.pair_controls:
                    _toggle(LINE_SPANS, self.choice.lines, self._choose_lines, "lines")
                    close = (
                        ui.element("button").classes("ft-link").props("data-testid=pair-close type=button")
                    )
                    with close:
                        _text("close", "")
                    close.on("click", lambda: self._choose_pair(None, None))
            self.pair_note = _text("", "ft-note", test="pair-note")
            self.pair = LiveChart("pair").classes("ft-fill").props("data-testid=pair")
            columns = [
                column("pair", "path", align="left"),
                column("p99", "p99"),
                column("p50", "p50"),
                column("bound", "± bound"),
                column("lost", "lost"),
            ]
            self.worst = ui.table(rows=[], columns=columns, row_key="id").classes("ft-table ft-worst")
            self.worst.props('flat dense hide-bottom data-testid=worst :pagination="{rowsPerPage: 0}"')
            self.worst.on("rowClick", self._on_worst_click, js_handler="(e, row) => emit(row.id)")
            self.worst_empty = _text("No path has a one-way delay yet.", "ft-empty")

    def _build_clocks(self) -> None:
        with card("ft-clocks"):
            with ui.element("div").classes("ft-head"):
                _text("Clocks against fabric time", "ft-title")
                self.clock_toggle = _toggle(
                    CLOCK_VIEWS, self.choice.clock_view, self._choose_clock_view, "clock-view"
                )
                _toggle(LINE_SPANS, self.choice.clock_span, self._choose_clock_span, "clock-span")
            self.clock_note = _text("", "ft-note", test="clock-note")
            with ui.element("div").classes("ft-clock-body"):
                self.clock_chart = LiveChart("clocks").classes("ft-fill").props("data-testid=clock-chart")
                columns = [
                    column("clock", "clock", align="left", sortable=True),
                    column("state", "state", align="left", sortable=True),
                    column("offset", "offset", sortable=True),
                    column("drift", "drift, ppb", sortable=True),
                    column("bound", "± bound", sortable=True),
                    column("pairs", "pairs", sortable=True),
                    column("residual", "residual", sortable=True),
                ]
                self.clock_table = ui.table(
                    rows=[], columns=columns, row_key="clock", pagination=self._clock_page
                )
                self.clock_table.classes("ft-table").props(
                    'flat dense data-testid=clock-table binary-state-sort :rows-per-page-options="[0]"'
                )
                self.clock_table.add_slot("body-cell-clock", _CLOCK_CELL)
                self.clock_table.add_slot("body-cell-state", _STATE_CELL)
                self.clock_table.on("request", self._on_clock_request)
                self.clock_table.on(
                    "rowClick", self._on_clock_click, js_handler="(e, row) => emit(row.clock)"
                )

    def _build_health(self) -> None:
        with card("ft-health"):
            with ui.element("div").classes("ft-head"):
                _text("Pipeline", "ft-title")
                self.health_word = _text("", "ft-word", test="health-word")
            self.checks: list[tuple[Any, LiveText, LiveText, LiveText]] = []
            self.health_rows = ui.element("div").classes("ft-checks").props("data-testid=health")
            self.health_empty = _text("Waiting for the first window.", "ft-empty")

    def _build_rejects(self) -> None:
        self.rejects_card = card("ft-rejects")
        with self.rejects_card:
            with ui.element("div").classes("ft-head"):
                _text("Recent rejects", "ft-title")
                self.rejects_note = _text("", "ft-note")
            columns = [
                column("at", "time (UTC)", align="left"),
                column("where", "message", align="left"),
                column("reader", "refused by", align="left"),
                column("reason", "reason", align="left"),
                column("detail", "detail", align="left"),
                column("size", "size"),
            ]
            self.rejects = ui.table(rows=[], columns=columns, row_key="id", pagination=REJECTS_SHOWN)
            self.rejects.classes("ft-table").props("flat dense data-testid=rejects")
        self.rejects_card.set_visibility(False)

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)
        address = self.choice.address()
        replace_address("?" + address if address else self.address)

    def _choose_heat(self, **changes: Any) -> None:
        again = {"way", "span"} & changes.keys()
        self._choose(**changes)
        if again:
            self._follow_heat()
        else:
            self._draw_heat()

    def _look_into(self, scope: frames.Scope | None) -> None:
        self.scope = scope
        self.scope_back.set_visibility(scope is not None)
        if scope is not None:
            self.scope_text.set_text(f"{scope.row} → {scope.col}: back to the fleet")
        self._draw_heat()

    def _choose_pair(self, nic: str | None, peer: str | None) -> None:
        self._choose(nic=nic, peer=peer)
        self._follow_pair()

    def _choose_lines(self, span: int) -> None:
        self._choose(lines=span)
        self._follow_pair()

    def _choose_clock_view(self, view: ClockView) -> None:
        self._choose(clock_view=view)
        self._draw_clocks()

    def _choose_clock_span(self, span: int) -> None:
        self._choose(clock_span=span)
        self._follow_clock_lines()

    def _on_cell(self, x: int, y: int) -> None:
        matrix = self._matrix
        if matrix is None or not (0 <= y < len(matrix.rows) and 0 <= x < len(matrix.cols)):
            return
        row, col = matrix.rows[y]["text"], matrix.cols[x]["text"]
        if matrix.level == "nic":
            self._choose_pair(row, col)
        else:
            self._look_into(frames.Scope(matrix.level, row, col))

    def _on_worst_click(self, event: GenericEventArguments) -> None:
        for row in self._worst_rows:
            if event.args == f"{row.nic} {row.peer} {row.path} {row.way}":
                self._choose_pair(row.nic, row.peer)

    def _on_clock_request(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self._clock_page.update({k: wanted[k] for k in ("sortBy", "descending", "page") if k in wanted})
        self._show_clock_table()

    def _on_clock_click(self, event: GenericEventArguments) -> None:
        self._choose(clock=event.args)
        self._draw_clocks()

    # --------------------------------------------------------------------------------------------- following

    def _follow_heat(self) -> None:
        way, span = self.choice.way, self.choice.span
        self._follow("heat", ("heat", way, span), lambda: self.site.questions.heat(way, span), self._on_heat)

    def _follow_pair(self) -> None:
        nic, peer, span = self.choice.nic, self.choice.peer, self.choice.lines
        chosen = nic is not None and peer is not None
        self.pair.set_visibility(chosen)
        self.pair_controls.set_visibility(chosen)
        self.pair_note.set_visibility(chosen)
        self.worst.set_visibility(not chosen)
        self.worst_empty.set_visibility(not chosen and not self._worst_rows)
        self.pair_title.set_text(f"{nic} → {peer}" if chosen else "Worst paths now")
        self._series = None
        if nic is None or peer is None:
            self._unfollow("pair")
            return
        self._follow(
            "pair",
            ("pair", nic, peer, span),
            lambda: self.site.questions.series(nic, peer, span),
            self._on_series,
            line_every_s(span),
        )

    def _follow_clock_lines(self) -> None:
        span = self.choice.clock_span
        self._follow(
            "lines",
            ("lines", span),
            lambda: self.site.questions.clock_lines(span),
            self._on_clock_lines,
            line_every_s(span),
        )

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
        known = len(fleet.nics)
        self._kpi(
            "nics", count_text(fleet.probing), f"of {count_text(known)} known" if known else "none known yet"
        )
        self._kpi("samples", rate_text(fleet.samples_per_s), "mean of 10 s")
        if fleet.worst:
            worst = fleet.worst[0]
            near, far = (worst.nic, worst.peer) if worst.way == "forward" else (worst.peer, worst.nic)
            self._kpi("worst", delay_text(worst.p99_ns), f"{near} → {far}, path {worst.path}")
        else:
            self._kpi("worst", "—", "")
        self._worst_rows = fleet.worst
        self.worst.rows = [
            {
                "id": f"{row.nic} {row.peer} {row.path} {row.way}",
                "pair": f"{row.nic} → {row.peer} · {row.path}"
                if row.way == "forward"
                else f"{row.peer} → {row.nic} · {row.path}",
                "p99": delay_text(row.p99_ns),
                "p50": delay_text(row.p50_ns),
                "bound": delay_text(row.bound_ns),
                "lost": percent_text(row.lost / max(row.lost + row.count, 1)),
            }
            for row in fleet.worst
        ]
        self.worst_empty.set_visibility(self.choice.nic is None and not fleet.worst)

    def _on_heat(self, snapshot: Snapshot[Heat]) -> None:
        if snapshot.error is not None:
            self.heat_note.set_text(f"last {SPANS[self.choice.span]}: {snapshot.error}")
        elif snapshot.value is not None and snapshot.value is not self._heat:
            self._heat = snapshot.value
            self._draw_heat(snapshot.query_s)

    def _draw_heat(self, query_s: float = 0.0) -> None:
        pairs = self._heat.pairs
        fleet = frames.places(self._nics, pairs)
        level = frames.level_for(fleet, self.scope)
        self._matrix = frames.heat_matrix(
            pairs, fleet, self.choice.metric, self.choice.way, level, self.scope
        )
        empty = not self._matrix.rows
        self.heat_empty.set_visibility(empty)
        self.heat.set_visibility(not empty)
        flow = "row → column" if self.choice.way == "forward" else "column → row"
        cells = {
            "nic": "",
            "host": "a cell is its hosts' worst pair · ",
            "rack": "a cell is its racks' worst pair · ",
        }
        note = f"rows probe · {flow} · {cells[level]}last {SPANS[self.choice.span]}"
        if query_s > 1:
            note += f" · history takes {query_s:.1f} s for it"
        self.heat_note.set_text(note)
        if not empty:
            self.heat.show(self._heat_frame)

    def _heat_frame(self, anew: bool) -> dict[str, Any] | None:
        matrix = self._matrix
        if matrix is None:
            return None
        frame = frames.heat_frame(matrix, None if anew else self._sent)
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
        step_s = series.step_ns / 1e9
        point = "a point a window" if step_s <= 1 else f"a point {step_s:.0f} s: median p50, worst p99"
        self.pair_note.set_text(
            f"solid p50, dashed p99, dotted min; grey: bound around the paths' median; {point}"
            if series.points
            else f"No window of this pair in the last {LINE_SPANS[self.choice.lines]}."
        )
        self.pair.show(lambda anew: frames.pair_frame(series, nic, peer))

    def _on_clocks(self, snapshot: Snapshot[list[ClockRow]]) -> None:
        if snapshot.value is None or snapshot.error is not None:
            return
        rows = self._clock_rows = snapshot.value
        if rows:
            widest = max(rows, key=lambda row: row.bound_ns)
            self._kpi("bound", f"± {delay_text(widest.bound_ns)}", widest.clock)
        else:
            self._kpi("bound", "—", "")
        self._show_clock_table()
        states = {
            state: sum(row.state == state for row in rows) for state in ("SYNCED", "HOLDOVER", "UNSYNCED")
        }
        domains = len({(row.shard, row.domain) for row in rows})
        text = (
            " · ".join(f"{count} {state}" for state, count in states.items() if count)
            or "No clock solved yet."
        )
        if domains > 1:
            text += f" · {domains} domains: clocks of different domains cannot be compared"
        self.clock_note.set_text(text)

    def _show_clock_table(self) -> None:
        page = self._clock_page
        keys: dict[str, Callable[[ClockRow], Any]] = {
            "clock": lambda r: natural(r.clock),
            "state": lambda r: r.state,
            "offset": lambda r: abs(r.offset_ns),
            "drift": lambda r: abs(r.drift_ppb),
            "bound": lambda r: r.bound_ns,
            "pairs": lambda r: r.pairs,
            "residual": lambda r: r.residual_ns,
        }
        ordered = sorted(self._clock_rows, key=lambda r: natural(r.clock))
        if page["sortBy"] in keys:
            ordered.sort(key=keys[page["sortBy"]], reverse=bool(page["descending"]))
        size = page["rowsPerPage"] = CLOCKS_A_PAGE - (len(ordered) > CLOCKS_A_PAGE)
        page["rowsNumber"] = len(ordered)
        page["page"] = min(int(page["page"]), max(1, -(-len(ordered) // size)))
        first = (page["page"] - 1) * size
        lines = sorted({row.clock for row in ordered}, key=natural)
        few = len(lines) <= CLOCK_LINES
        rows = [
            {**_clock_row(row), "color": lines.index(row.clock) % 8 if few else -1}
            for row in ordered[first : first + size]
        ]
        if rows != self.clock_table.rows or self.clock_table.pagination != page:
            self.clock_table.pagination = dict(page)
            self.clock_table.rows = rows
            self.clock_table.props(f":hide-bottom={'true' if len(ordered) <= size else 'false'}")

    def _on_clock_lines(self, snapshot: Snapshot[ClockLines]) -> None:
        if snapshot.value is not self._clock_lines and snapshot.error is None:
            self._clock_lines = snapshot.value
            self._draw_clocks()

    def _draw_clocks(self) -> None:
        lines = self._clock_lines
        if lines is None or not (lines.points or lines.spread):
            return
        self.clock_toggle.set_visibility(not lines.spread)
        chosen = self.choice.clock
        if chosen is None and self._clock_rows:
            chosen = max(self._clock_rows, key=lambda row: row.bound_ns).clock
        self.clock_chart.show(lambda anew: frames.clock_frame(lines, self.choice.clock_view, chosen))

    def _on_health(self, snapshot: Snapshot[pipeline_health.PipelineRows | None]) -> None:
        if snapshot.error is not None or snapshot.value is None:
            return
        checks = pipeline_health.judge(snapshot.value)
        self.health_empty.set_visibility(False)
        if not self.checks:
            with self.health_rows:
                for check in checks:
                    self._build_check(check)
        for (light, name, figure, sentence), check in zip(self.checks, checks, strict=True):
            light.classes(remove="ft-ok ft-warn ft-bad", add=f"ft-{check.state.name.lower()}")
            light.props(f'aria-label="{check.state.name}"')
            name.set_text(check.name)
            figure.set_text(check.figure)
            sentence.set_text(check.sentence)
        worst = max(check.state for check in checks)
        self.health_word.set_text(worst.name)
        self.health_word.classes(remove="ft-ok ft-warn ft-bad", add=f"ft-{worst.name.lower()}")

    def _build_check(self, check: pipeline_health.Check) -> None:
        with ui.element("div").classes("ft-check").props(f'data-check="{check.name}"'):
            light = ui.element("span").classes("ft-state").props("role=img")
            self.checks.append(
                (light, _text("", "ft-check-name"), _text("", "ft-figure"), _text("", "ft-sentence"))
            )

    def _on_rejects(self, snapshot: Snapshot[list[RejectRow]]) -> None:
        if snapshot.value is None or snapshot.error is not None:
            return
        rows = snapshot.value
        self.rejects_card.set_visibility(bool(rows))
        self.rejects_note.set_text(f"{count_text(len(rows))} in the last day, newest first")
        shown = [_reject_row(row) for row in rows]
        if shown != self.rejects.rows:
            self.rejects.rows = shown


_CLOCK_CELL = """<q-td :props="props"><span v-if="props.row.color >= 0"
 :class="'ft-swatch ft-c' + props.row.color"></span>{{ props.value }}</q-td>"""
_STATE_CELL = (
    """<q-td :props="props"><span :class="'ft-pill ft-' + props.value">{{ props.value }}</span></q-td>"""
)


def _clock_row(row: ClockRow) -> dict[str, Any]:
    return {
        "clock": row.clock,
        "state": row.state,
        "offset": signed_delay_text(row.offset_ns),
        "drift": f"{row.drift_ppb:+,.0f}",
        "bound": delay_text(row.bound_ns),
        "pairs": row.pairs,
        "residual": delay_text(row.residual_ns),
    }


def _reject_row(row: RejectRow) -> dict[str, Any]:
    at = datetime.fromtimestamp(row.append_ns / 1e9, tz=UTC)
    return {
        "id": f"{row.topic}/{row.partition}/{row.offset}/{row.reader}",
        "at": f"{at:%m-%d %H:%M:%S}",
        "where": f"{row.topic}/{row.partition} @ {row.offset}",
        "reader": row.reader,
        "reason": row.reason,
        "detail": row.detail,
        "size": f"{count_text(row.size_bytes)} B",
    }


__all__: Sequence[str] = ("AppContext", "DelaysChoice", "DelaysTab")

"""The page of clocks: how far each is off, how well that is known, and which pairs contradict the mesh.

In: the process's `AppContext` and the tab's choices, which stand in its address. No query, no maths here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, get_args
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.state.units import count_text, delay_text, percent_text, signed_delay_text
from fabrictime.web.chart import LiveChart
from fabrictime.web.history_queries import DRAWN_ALL, DRAWN_WIDEST, ClockFleet, ClockLines, Fleet, Mesh
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
    text,
    toggle,
)
from fabrictime.web.tabs.clocks import frames as clock_frames
from fabrictime.web.tabs.clocks.frames import OffsetView
from fabrictime.web.tabs.delays.queries import EVENTS_A_KIND, ClockRow, EventRow, SuspectRow
from schemas.ids import natural

VIEWS = {"wander": "wander", "offset": "offset"}
MOST_CHOSEN = 8
CLOCKS_A_PAGE = 9
_KPIS = (
    ("synced", "clocks SYNCED"),
    ("bound", "widest clock bound"),
    ("median", "median bound"),
    ("suspects", "suspect pairs"),
    ("residual", "largest residual"),
    ("age", "data age"),
)
_STATE_CELL = (
    """<q-td :props="props"><span :class="'ft-pill ft-' + props.value">{{ props.value }}</span></q-td>"""
)


@dataclass(frozen=True, slots=True)
class ClocksChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    span: int = 600
    view: OffsetView = "wander"
    clocks: tuple[str, ...] = ()

    @staticmethod
    def parse(query: dict[str, str], clocks: Sequence[str]) -> ClocksChoice:
        """Return the choice that an address's query stands for; `clocks` are its values of `clock`."""
        choice = ClocksChoice(clocks=tuple(dict.fromkeys(filter(None, clocks)))[:MOST_CHOSEN])
        span = query.get("span", "")
        if span.isdecimal() and int(span) in LINE_SPANS:
            choice = replace(choice, span=int(span))
        if query.get("view") in get_args(OffsetView):
            choice = replace(choice, view=query["view"])  # type: ignore[arg-type]
        return choice

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = ClocksChoice()
        pairs: list[tuple[str, Any]] = [
            (name, getattr(self, name))
            for name in ("span", "view")
            if getattr(self, name) != getattr(default, name)
        ]
        return urlencode([*pairs, *(("clock", name) for name in self.clocks)])

    def toggled(self, clock: str) -> ClocksChoice:
        """Return the choice with one clock more or less; the first goes where there are too many."""
        if clock in self.clocks:
            return replace(self, clocks=tuple(name for name in self.clocks if name != clock))
        return replace(self, clocks=(*self.clocks, clock)[-MOST_CHOSEN:])


class ClocksTab(Tab):
    """The page of clocks: bounds, offsets, the mesh, residuals, states and events."""

    address = "/clocks"

    def __init__(self, site: AppContext, choice: ClocksChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self._rows: list[ClockRow] = []
        self._over_time: ClockFleet | None = None
        self._drawn: ClockLines | None = None
        self._mesh: Mesh | None = None
        self._filter = ""
        self._chips_shown: tuple[tuple[str, ...], str] = ((), "")
        self._page: dict[str, Any] = {
            "sortBy": "bound",
            "descending": True,
            "page": 1,
            "rowsPerPage": CLOCKS_A_PAGE,
            "rowsNumber": 0,
        }

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"):
            self._build_header(_KPIS)
            self._build_choice()
            with ui.element("main").classes("ft-clock-grid"):
                self._build_lines()
                self._build_mesh()
                self._build_residuals()
                self._build_strip()
                self._build_events()
                self._build_suspects()
                self._build_clocks()
        ui.timer(0.5, self._show_banner)

    def start(self) -> None:
        """Begin to follow history, or follow it again after the browser was away. Ends with `stop`."""
        questions = self.site.questions
        self._follow("fleet", ("fleet",), questions.fleet, self._on_fleet)
        self._follow("clocks", ("clocks",), questions.clocks, self._on_clocks, 1.0)
        self._follow("mesh", ("mesh",), questions.mesh, self._on_mesh, 1.0)
        self._follow_lines()
        for chart in (self.bounds, self.offsets, self.residuals, self.strip, self.lanes, self.mesh):
            chart.resume()

    def age_s(self, fleet: Fleet) -> float | None:
        """Return the age of the newest window of clocks."""
        return fleet.clocks_age_s

    def _build_choice(self) -> None:
        with card("ft-choice"), ui.element("div").classes("ft-head"):
            self.state_note = text("No clock solved yet.", "ft-title", test="state-note")
            self.chips = ui.element("div").classes("ft-chips").props("data-testid=chosen")
            toggle(LINE_SPANS, self.choice.span, self._choose_span, "span")

    def _build_lines(self) -> None:
        with card("ft-half"):
            _head("Error bound over time")
            self.bounds_note = text("", "ft-note", test="bounds-note")
            self.bounds = _chart("fleet", "bounds")
            self.bounds_empty = text("Waiting for the first window.", "ft-empty")
        with card("ft-half"):
            with ui.element("div").classes("ft-head"):
                text("Offset against fabric time", "ft-title")
                toggle(VIEWS, self.choice.view, self._choose_view, "view")
            self.offsets_note = text("", "ft-note", test="offsets-note")
            self.offsets = _chart("fleet", "offsets")

    def _build_mesh(self) -> None:
        with card("ft-mesh"):
            with ui.element("div").classes("ft-head"):
                text("Probe mesh, newest window", "ft-title")
                with ui.element("div").classes("ft-key"):
                    text("red: suspect pair, its path looks asymmetric", "")
            self.mesh_note = text("", "ft-note", test="mesh-note")
            self.mesh = _chart("mesh", "mesh", self._choose_clock)

    def _build_residuals(self) -> None:
        with card("ft-half"):
            _head("Residuals over time")
            text("rms of what is left of a clock's pairs once the mesh is solved", "ft-note")
            self.residuals = _chart("fleet", "residuals")

    def _build_strip(self) -> None:
        with card("ft-half"):
            _head("Error bound now, clock by clock")
            self.strip_note = text("", "ft-note", test="strip-note")
            self.strip = _chart("strip", "strip", self._choose_clock)

    def _build_events(self) -> None:
        with card("ft-half"):
            _head("States")
            self.lanes_note = text("", "ft-note", test="lanes-note")
            self.lanes = _chart("lanes", "lanes", self._choose_clock)
        with card("ft-half"):
            _head("Events")
            self.events_note = text("", "ft-note", test="events-note")
            columns = [
                column("at", "window (UTC)", align="left"),
                column("clock", "clock", align="left"),
                column("event", "what it showed", align="left"),
                column("state", "state", align="left"),
            ]
            self.events = _table(columns, "events", 0)
            self.events.add_slot("body-cell-state", _STATE_CELL)
            self.events.on("rowClick", self._on_row, js_handler="(e, row) => emit(row.clock)")

    def _build_suspects(self) -> None:
        with card("ft-third ft-suspects"):
            _head("Suspect pairs")
            self.suspects_note = text("", "ft-note", test="suspects-note")
            columns = [
                column("pair", "prober → peer", align="left"),
                column("asymmetry", "asymmetry"),
                column("sigma", "± sigma"),
                column("weight", "weight left"),
                column("since", "since (UTC)"),
            ]
            self.suspects = _table(columns, "suspects", 0)

    def _build_clocks(self) -> None:
        with card("ft-clock-list"):
            with ui.element("div").classes("ft-head"):
                text("All clocks", "ft-title")
                text("a click draws a clock in the charts above, or leaves it out", "ft-note")
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
            self.table.add_slot("body-cell-state", _STATE_CELL)
            self.table.on("request", self._on_request)
            self.table.on("rowClick", self._on_row, js_handler="(e, row) => emit(row.clock)")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, choice: ClocksChoice) -> None:
        self.choice = choice
        address = choice.address()
        replace_address(f"{self.address}?{address}" if address else self.address)

    def _choose_span(self, span: int) -> None:
        self._choose(replace(self.choice, span=span))
        self._follow_lines()

    def _choose_view(self, view: OffsetView) -> None:
        self._choose(replace(self.choice, view=view))
        self._draw_lines()

    def _choose_clock(self, clock: str) -> None:
        if all(row.clock != clock for row in self._rows):
            return
        self._choose(self.choice.toggled(clock))
        self._show_chips()
        self._follow_lines()
        self._draw_strip()

    def _on_row(self, event: GenericEventArguments) -> None:
        self._choose_clock(str(event.args))

    def _on_filter(self, event: GenericEventArguments) -> None:
        self._filter, self._page["page"] = str(event.args).strip(), 1
        self._show_table()

    def _on_request(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self._page.update({k: wanted[k] for k in ("sortBy", "descending", "page") if k in wanted})
        self._show_table()

    # --------------------------------------------------------------------------------------------- following

    def _follow_lines(self) -> None:
        span, clocks, questions = self.choice.span, self.choice.clocks, self.site.questions
        every_s = line_every_s(span)
        self._over_time = self._drawn = None
        self._follow(
            "over time",
            ("clock fleet", span),
            lambda: questions.clock_fleet(span),
            self._on_fleet_lines,
            every_s,
        )
        self._follow(
            "drawn",
            ("drawn clocks", span, clocks),
            lambda: questions.drawn_clocks(clocks, span),
            self._on_drawn,
            every_s,
        )

    # ----------------------------------------------------------------------------------------------- filling

    def _on_fleet(self, snapshot: Snapshot[Fleet]) -> None:
        nics = [] if self._fleet.value is None else self._fleet.value.nics
        self._fleet = snapshot
        self._show_banner()
        if snapshot.value is not None and snapshot.value.nics != nics:
            self._draw_mesh()

    def _on_clocks(self, snapshot: Snapshot[list[ClockRow]]) -> None:
        if snapshot.value is None or snapshot.error is not None or snapshot.value is self._rows:
            return
        rows = self._rows = snapshot.value
        states = {state: sum(row.state == state for row in rows) for state in clock_frames.STATES}
        domains = len({(row.shard, row.domain) for row in rows})
        usable = [row for row in rows if row.state != "UNSYNCED"]
        self._kpi("synced", count_text(states["SYNCED"]), f"of {count_text(len(rows))}" if rows else "")
        if usable:
            widest = max(usable, key=lambda row: row.bound_ns)
            noisiest = max(usable, key=lambda row: row.residual_ns)
            self._kpi("bound", f"± {delay_text(widest.bound_ns)}", widest.clock)
            self._kpi("median", f"± {delay_text(median(row.bound_ns for row in usable))}", "of usable clocks")
            self._kpi("residual", delay_text(noisiest.residual_ns), noisiest.clock)
        else:
            for key in ("bound", "median", "residual"):
                self._kpi(key, "—", "")
        said = " · ".join(f"{count:,} {state}" for state, count in states.items() if count)
        if domains > 1:
            said += f" · {domains} domains: clocks of different domains cannot be compared"
        follows = sorted({row.reference for row in rows} - {"ensemble"})
        if follows:
            said += f" · fabric time follows {', '.join(follows)}"
        self.state_note.set_text(said or "No clock solved yet.")
        self._show_table()
        self._draw_strip()
        self._show_chips()
        self._draw_mesh()

    def _show_chips(self) -> None:
        chosen, hint = self.choice.clocks, ""
        if not chosen and self._rows:
            few = len({row.clock for row in self._rows}) <= DRAWN_ALL
            widest = f"drawn: the {DRAWN_WIDEST} clocks of widest bound; choose others below"
            hint = "all clocks are drawn" if few else widest
        if (chosen, hint) == self._chips_shown:
            return
        self._chips_shown = chosen, hint
        self.chips.clear()
        with self.chips:
            for name in chosen:
                chip = ui.element("button").classes("ft-chip").props("type=button")
                with chip:
                    text(name, "")
                chip.on("click", _calling(self._choose_clock, name))
            text(hint, "ft-note")

    def _on_fleet_lines(self, snapshot: Snapshot[ClockFleet]) -> None:
        if snapshot.error is None and snapshot.value is not None and snapshot.value is not self._over_time:
            self._over_time = snapshot.value
            self._draw_lines()
            self._show_events(snapshot.value)

    def _on_drawn(self, snapshot: Snapshot[ClockLines]) -> None:
        if snapshot.error is None and snapshot.value is not None and snapshot.value is not self._drawn:
            self._drawn = snapshot.value
            self._draw_lines()

    def _draw_lines(self) -> None:
        fleet, drawn, view = self._over_time, self._drawn, self.choice.view
        if fleet is None or drawn is None:
            return
        self.bounds_empty.set_visibility(not fleet.points)
        if not fleet.points:
            return
        self.bounds.show(lambda _anew: clock_frames.bounds_frame(fleet, drawn))
        self.offsets.show(lambda _anew: clock_frames.offsets_frame(fleet, drawn, view))
        self.residuals.show(lambda _anew: clock_frames.residuals_frame(fleet, drawn))
        newest = fleet.points[-1]
        clocks = newest.synced + newest.holdover + newest.unsynced
        self.bounds_note.set_text(
            "the true error is below its bound 99.9% of the time"
            + (f" · grey: all {clocks:,} clocks, median, p90, p99" if clocks > DRAWN_ALL else "")
        )
        many = f" · grey: 80% and 98% of all {clocks:,} clocks" if fleet.wander else ""
        self.offsets_note.set_text(
            f"each clock less its own straight line{many}"
            if view == "wander"
            else "what to add to a clock's reading to get fabric time"
        )

    def _show_events(self, fleet: ClockFleet) -> None:
        lanes = len({point.clock for point in fleet.lanes})
        colours = "green SYNCED, amber HOLDOVER, red UNSYNCED · marks: events"
        if len(self._rows) > lanes:
            colours = f"the {lanes} clocks with most trouble of {len(self._rows):,} · {colours}"
        self.lanes_note.set_text(colours if lanes else "")
        self.lanes.show(lambda _anew: clock_frames.lanes_frame(fleet) if fleet.lanes else None)
        span = LINE_SPANS[self.choice.span]
        count = len(fleet.events)
        self.events_note.set_text(
            f"the last {span}, the newest first, at most {EVENTS_A_KIND} of a kind"
            if count
            else f"none in the last {span}"
        )
        rows = [_event_row(row) for row in fleet.events]
        if rows != self.events.rows:
            self.events.rows = rows

    def _draw_strip(self) -> None:
        rows = self._rows
        lost = sum(row.state == "UNSYNCED" for row in rows)
        self.strip_note.set_text(
            f"{lost:,} UNSYNCED clock{'s' * (lost != 1)} without a bound: crosses at the top"
            if lost
            else "each mark a clock; hover for its name, click to draw it"
            if rows
            else ""
        )
        self.strip.show(lambda _anew: clock_frames.strip_frame(rows, self.choice.clocks) if rows else None)

    def _on_mesh(self, snapshot: Snapshot[Mesh]) -> None:
        if snapshot.value is None or snapshot.error is not None or snapshot.value is self._mesh:
            return
        mesh = self._mesh = snapshot.value
        count = len(mesh.suspects)
        worst = mesh.suspects[0] if count else None
        self._kpi("suspects", count_text(count), "" if worst is None else f"{worst.prober} → {worst.peer}")
        self.suspects_note.set_text(
            "pairs that contradict the loops they are part of; the path out is slower than back by twice the "
            "asymmetry"
            if count
            else "No pair contradicts the loops it is part of."
        )
        rows = [_suspect_row(row) for row in mesh.suspects]
        if rows != self.suspects.rows:
            self.suspects.rows = rows
        self._draw_mesh()

    def _draw_mesh(self) -> None:
        mesh = self._mesh
        if mesh is None:
            return
        nics = self._fleet.value.nics if self._fleet.value is not None else []
        self.mesh_note.set_text(clock_frames.mesh_note(mesh, len(nics)))
        rows = self._rows
        self.mesh.show(lambda _anew: clock_frames.mesh_frame(mesh, nics, rows))

    def _show_table(self) -> None:
        page = self._page
        keys: dict[str, Callable[[ClockRow], Any]] = {
            "state": lambda r: r.state,
            "bound": lambda r: r.bound_ns,
            "offset": lambda r: abs(r.offset_ns),
            "drift": lambda r: abs(r.drift_ppb),
            "sigma": lambda r: r.drift_sigma_ppb,
            "pairs": lambda r: r.pairs,
            "residual": lambda r: r.residual_ns,
            "domain": lambda r: (r.shard, r.domain),
        }
        ordered = sorted(
            (row for row in self._rows if self._filter.lower() in row.clock.lower()),
            key=lambda r: natural(r.clock),
            reverse=page["sortBy"] == "clock" and bool(page["descending"]),
        )
        if page["sortBy"] in keys:
            ordered.sort(key=keys[page["sortBy"]], reverse=bool(page["descending"]))
        size = page["rowsPerPage"] = CLOCKS_A_PAGE
        page["rowsNumber"] = len(ordered)
        page["page"] = min(int(page["page"]), max(1, -(-len(ordered) // size)))
        first = (page["page"] - 1) * size
        rows = [_clock_row(row) for row in ordered[first : first + size]]
        if rows != self.table.rows or self.table.pagination != page:
            self.table.pagination = dict(page)
            self.table.rows = rows
            self.table.props(f":hide-bottom={'true' if len(ordered) <= size else 'false'}")


def _calling(choose: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: choose(name)


def _head(title: str) -> None:
    with ui.element("div").classes("ft-head"):
        text(title, "ft-title")


def _chart(kind: str, test: str, on_pick: Callable[[str], None] | None = None) -> LiveChart:
    chart = LiveChart(kind, on_pick=on_pick).classes("ft-fill")
    chart.props(f"data-testid={test}")
    return chart


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


def _utc(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%H:%M:%S}"


def _event_row(row: EventRow) -> dict[str, Any]:
    return {
        "id": f"{row.shard} {row.clock} {row.at_ns}",
        "at": _utc(row.at_ns),
        "clock": row.clock,
        "event": clock_frames.event_text(row.event, row.event_ns),
        "state": row.state,
    }


def _suspect_row(row: SuspectRow) -> dict[str, Any]:
    return {
        "id": f"{row.shard} {row.prober} {row.peer}",
        "pair": f"{row.prober} → {row.peer}",
        "asymmetry": signed_delay_text(row.asymmetry_ns),
        "sigma": delay_text(row.sigma_ns),
        "weight": percent_text(row.weight),
        "since": _utc(row.since_ns),
    }


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


__all__: Sequence[str] = ("ClocksChoice", "ClocksTab")

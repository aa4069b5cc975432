"""The Clocks tab: offset and error bound of each clock, and the pairs that contradict the mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, get_args
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.web.chart import NOTHING, LiveChart
from fabrictime.web.elements import READING, card, text, toggle
from fabrictime.web.history_sql import series_period_s
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import AppContext, Choice, Tab
from fabrictime.web.tabs.clocks import frames, queries, tables
from fabrictime.web.tabs.clocks.frames import OffsetView
from fabrictime.web.tabs.clocks.queries import (
    DRAW_ALL_CLOCKS,
    EVENTS_PER_KIND,
    WIDEST_CLOCKS,
    ClockFleet,
    ClockRow,
    ClockSeries,
    Mesh,
)
from fabrictime.web.tabs.delays.queries import Fleet, fleet
from schemas.units import count_text, delay_text

VIEWS: Final = {"wander": "wander", "offset": "offset"}
SPANS: Final = {60: "1 min", 600: "10 min", 3600: "1 h"}
MAX_CHOSEN: Final = 8
KPIS: Final = (
    ("synced", "clocks SYNCED"),
    ("bound", "widest clock bound"),
    ("median", "median bound"),
    ("suspects", "suspect pairs"),
    ("residual", "largest residual"),
    ("age", "data age"),
)


@dataclass(frozen=True, slots=True)
class ClocksChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    span: int = 600
    view: OffsetView = "wander"
    clocks: tuple[str, ...] = ()

    @staticmethod
    def parse(query: dict[str, str], clocks: Sequence[str]) -> ClocksChoice:
        """Return the user's choices from an address. `clocks` are all values of its parameter `clock`."""
        choice = ClocksChoice(clocks=tuple(dict.fromkeys(filter(None, clocks)))[:MAX_CHOSEN])
        span = query.get("span", "")
        if span.isdecimal() and int(span) in SPANS:
            choice = replace(choice, span=int(span))
        if query.get("view") in get_args(OffsetView):
            choice = replace(choice, view=query["view"])  # type: ignore[arg-type]
        return choice

    def address(self) -> str:
        """Return the address query of these choices; defaults are left out."""
        default = ClocksChoice()
        pairs: list[tuple[str, Any]] = [
            (name, getattr(self, name))
            for name in ("span", "view")
            if getattr(self, name) != getattr(default, name)
        ]
        return urlencode([*pairs, *(("clock", name) for name in self.clocks)])

    def toggled(self, clock: str) -> ClocksChoice:
        """Return the choices with `clock` added, or removed if it was chosen. The clock chosen first is
        dropped if there are too many.
        """
        if clock in self.clocks:
            return replace(self, clocks=tuple(name for name in self.clocks if name != clock))
        return replace(self, clocks=(*self.clocks, clock)[-MAX_CHOSEN:])


class ClocksTab(Tab[ClocksChoice]):
    """Shows clock bounds, offsets, the mesh, residuals, states and events."""

    address = "/clocks"

    def __init__(self, context: AppContext, choice: ClocksChoice) -> None:
        super().__init__(context, choice)
        self._rows: list[ClockRow] = []
        self._clock_fleet: ClockFleet | None = None
        self._drawn: ClockSeries | None = None
        self._mesh: Mesh | None = None
        self._chips_shown: tuple[tuple[str, ...], str] = ((), "")
        self.clock_table = tables.ClockTable()

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"):
            self._build_header(KPIS)
            self._build_choice()
            with ui.element("div").classes("ft-clock-grid"):
                self.clock_table.build(self._on_row)
                self._build_suspects()
                self._build_series()
                self._build_mesh()
                self._build_residuals()
                self._build_strip()
                self._build_events()
        ui.timer(0.5, self._show_banner)

    def start(self) -> None:
        """Subscribe to history queries; called again when the browser reconnects. `stop` ends the
        subscriptions.
        """
        history = self.context.history
        self.follow("fleet", fleet, (history,), self._on_fleet)
        self.follow("clocks", queries.clocks, (history,), self._on_clocks, 1.0)
        self.follow("mesh", queries.mesh, (history,), self._on_mesh, 1.0)
        self._follow_series()
        for chart in (self.bounds, self.offsets, self.residuals, self.strip, self.timeline, self.mesh):
            chart.resume()

    def age_s(self, fleet: Fleet) -> float | None:
        """Return the age of the newest window of clocks, s."""
        return fleet.clocks_age_s

    def _build_choice(self) -> None:
        with card("ft-choice"), ui.element("div").classes("ft-head"):
            self.state_note = text(READING, "ft-title", test="state-note")
            self.chips = ui.element("div").classes("ft-chips").props("data-testid=chosen")
            toggle(SPANS, self.choice.span, self._choose_span, "span")

    def _build_series(self) -> None:
        with card("ft-half"):
            _head("Error bound over time")
            self.bounds_note = text("", "ft-note", test="bounds-note")
            self.bounds = _chart("fleet", "bounds")
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
            text("rms of a clock's pairs after the solution", "ft-note")
            self.residuals = _chart("fleet", "residuals")

    def _build_strip(self) -> None:
        with card("ft-half"):
            _head("Error bound now, clock by clock")
            self.strip_note = text("", "ft-note", test="strip-note")
            self.strip = _chart("strip", "strip", self._choose_clock)

    def _build_events(self) -> None:
        with card("ft-half"):
            _head("States")
            self.timeline_note = text("", "ft-note", test="timeline-note")
            self.timeline = _chart("timeline", "timeline", self._choose_clock)
        with card("ft-half"):
            _head("Events")
            self.events_note = text("", "ft-note", test="events-note")
            self.events = tables.event_table(self._on_row)

    def _build_suspects(self) -> None:
        with card("ft-third ft-suspects"):
            _head("Suspect pairs")
            self.suspects_note = text("", "ft-note", test="suspects-note")
            self.suspects = tables.suspect_table()

    # ----------------------------------------------------------------------------------------------- choices

    def _choose_span(self, span: int) -> None:
        self._choose(span=span)
        self._follow_series()

    def _choose_view(self, view: OffsetView) -> None:
        self._choose(view=view)
        self._draw_series()

    def _choose_clock(self, clock: str) -> None:
        if all(row.clock != clock for row in self._rows):
            return
        self._set_choice(self.choice.toggled(clock))
        self._show_chips()
        self._follow_series()
        self._draw_strip()

    def _on_row(self, event: GenericEventArguments) -> None:
        self._choose_clock(str(event.args))

    # --------------------------------------------------------------------------------------------- following

    def _follow_series(self) -> None:
        span, clocks, history = self.choice.span, self.choice.clocks, self.context.history
        period_s = series_period_s(span)
        self._clock_fleet = self._drawn = None
        self.follow("clock fleet", queries.clock_fleet, (history, span), self._on_clock_fleet, period_s)
        self.follow("drawn", queries.drawn_clocks, (history, clocks, span), self._on_drawn, period_s)

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
        states = {state: sum(row.state == state for row in rows) for state in frames.STATES}
        self._kpi("synced", count_text(states["SYNCED"]), f"of {count_text(len(rows))}" if rows else "")
        usable = [row for row in rows if row.state != "UNSYNCED"]
        if usable:
            widest = max(usable, key=lambda row: row.bound_ns)
            noisiest = max(usable, key=lambda row: row.residual_ns)
            self._kpi("bound", f"± {delay_text(widest.bound_ns)}", widest.clock)
            self._kpi("median", f"± {delay_text(median(row.bound_ns for row in usable))}", "of usable clocks")
            self._kpi("residual", delay_text(noisiest.residual_ns), noisiest.clock)
        else:
            for key in ("bound", "median", "residual"):
                self._kpi(key, "—", "")
        self.state_note.set_text(_state_note(rows, states))
        self.clock_table.show(rows)
        self._draw_strip()
        self._show_chips()
        self._draw_mesh()

    def _show_chips(self) -> None:
        clocks, hint = self.choice.clocks, ""
        if not clocks and self._rows:
            few = len({row.clock for row in self._rows}) <= DRAW_ALL_CLOCKS
            widest = (
                f"drawn: the {WIDEST_CLOCKS} clocks with the widest bounds of this span; choose others below"
            )
            hint = "all clocks are drawn" if few else widest
        if (clocks, hint) == self._chips_shown:
            return
        self._chips_shown = clocks, hint
        self.chips.clear()
        with self.chips:
            for name in clocks:
                chip = ui.element("button").classes("ft-chip").props("type=button")
                with chip:
                    text(name, "")
                chip.on("click", _calling(self._choose_clock, name))
            text(hint, "ft-note")

    def _on_clock_fleet(self, snapshot: Snapshot[ClockFleet]) -> None:
        if snapshot.error is None and snapshot.value is not None and snapshot.value is not self._clock_fleet:
            self._clock_fleet = snapshot.value
            self._draw_series()
            self._show_events(snapshot.value)

    def _on_drawn(self, snapshot: Snapshot[ClockSeries]) -> None:
        if snapshot.error is None and snapshot.value is not None and snapshot.value is not self._drawn:
            self._drawn = snapshot.value
            self._draw_series()

    def _draw_series(self) -> None:
        fleet, drawn, view = self._clock_fleet, self._drawn, self.choice.view
        if fleet is None or drawn is None:
            return
        if not fleet.points:
            return
        self.bounds.show(lambda _is_full: frames.bounds_frame(fleet, drawn))
        self.offsets.show(lambda _is_full: frames.offsets_frame(fleet, drawn, view))
        self.residuals.show(lambda _is_full: frames.residuals_frame(fleet, drawn))
        newest = fleet.points[-1]
        clocks = newest.synced + newest.holdover + newest.unsynced
        bounds_note = "the true error is below its bound 99.9% of the time"
        if clocks > DRAW_ALL_CLOCKS:
            bounds_note += f" · grey: all {clocks:,} clocks, median, p90, p99"
        self.bounds_note.set_text(bounds_note)
        self.offsets_note.set_text(frames.offsets_note(fleet, drawn, view, clocks))

    def _show_events(self, fleet: ClockFleet) -> None:
        count = len({point.clock for point in fleet.states})
        note = "green SYNCED, amber HOLDOVER, red UNSYNCED · marks: events"
        if len(self._rows) > count:
            note = f"the {count} clocks with most trouble of {len(self._rows):,} · {note}"
        self.timeline_note.set_text(note if count else "")
        self.timeline.show(lambda _is_full: frames.timeline_frame(fleet) if fleet.states else None)
        span = SPANS[self.choice.span]
        self.events_note.set_text(
            f"the last {span}, the newest first, at most {EVENTS_PER_KIND} of a kind"
            if fleet.events
            else f"none in the last {span}"
        )
        rows = [tables.event_row(row) for row in fleet.events]
        if rows != self.events.rows:
            self.events.rows = rows

    def _draw_strip(self) -> None:
        rows = self._rows
        unsynced = sum(row.state == "UNSYNCED" for row in rows)
        note = "one mark per clock; hover for its name, click to draw it" if rows else ""
        if unsynced:
            plural = "s" * (unsynced != 1)
            note = f"{unsynced:,} UNSYNCED clock{plural} without a bound: crosses at the top"
        self.strip_note.set_text(note)
        self.strip.show(lambda _is_full: frames.strip_frame(rows, self.choice.clocks) if rows else None)

    def _on_mesh(self, snapshot: Snapshot[Mesh]) -> None:
        if snapshot.value is None or snapshot.error is not None or snapshot.value is self._mesh:
            return
        mesh = self._mesh = snapshot.value
        count = len(mesh.suspects)
        worst = mesh.suspects[0] if count else None
        self._kpi("suspects", count_text(count), "" if worst is None else f"{worst.prober} → {worst.peer}")
        self.suspects_note.set_text(
            "these pairs contradict the loops through them; the path out is slower than the path back by "
            "twice the asymmetry"
            if count
            else "No pair contradicts the loops through it."
        )
        self.suspects.set_visibility(bool(count))
        rows = [tables.suspect_row(row) for row in mesh.suspects]
        if rows != self.suspects.rows:
            self.suspects.rows = rows
        self._draw_mesh()

    def _draw_mesh(self) -> None:
        mesh = self._mesh
        if mesh is None:
            return
        nics = self._fleet.value.nics if self._fleet.value is not None else []
        self.mesh_note.set_text(frames.mesh_note(mesh, len(nics)))
        rows = self._rows
        self.mesh.set_visibility(len(nics) <= queries.MAX_MESH_NICS or bool(mesh.suspects))
        self.mesh.show(lambda _is_full: frames.mesh_frame(mesh, nics, rows))


def _state_note(rows: Sequence[ClockRow], states: dict[str, int]) -> str:
    """Return the number of clocks by state as text, with a note on several domains or a reference."""
    note = " · ".join(f"{count:,} {state}" for state, count in states.items() if count)
    domains = len({(row.shard, row.domain) for row in rows})
    if domains > 1:
        note += f" · {domains} domains: clocks of different domains cannot be compared"
    references = sorted({row.reference for row in rows} - {"ensemble"})
    if references:
        note += f" · fabric time follows {', '.join(references)}"
    return note or "No clock solved yet."


def _calling(choose: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: choose(name)


def _head(title: str) -> None:
    with ui.element("div").classes("ft-head"):
        text(title, "ft-title")


def _chart(kind: str, test: str, on_pick: Callable[[str], None] | None = None) -> LiveChart:
    chart = LiveChart(kind, on_pick=on_pick, empty=NOTHING).classes("ft-fill")
    chart.props(f"data-testid={test}")
    return chart

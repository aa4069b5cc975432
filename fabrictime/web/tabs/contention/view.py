"""The Contention tab: present and past queues as bars over time, and one contention window in detail."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from nicegui import ui

from fabrictime.state.fabric_state import Part, is_active
from fabrictime.state.labels import arrow, readable
from fabrictime.web.addresses import fabric_address
from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import (
    card,
    empty,
    go_to,
    name_value_table,
    part,
    put_values,
    table,
    text,
    toggle,
    utc_time,
)
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.contention import frames
from fabrictime.web.tabs.live_tab import KPIS, LiveTab
from fabrictime.web.widgets import Cell, Chips, Row
from schemas.records import ContentionState, ContentionWindow
from schemas.units import bps_text, bytes_text, count_text, counted, delay_text, percent_text

SPANS: Final = {300: "5 min", 900: "15 min", 3600: "1 h"}
WINDOWS_SHOWN: Final = 60
FLOWS_SHOWN: Final = 24
LINKS_SHOWN: Final = 8
REDRAWS_PER_SPAN: Final = 300
"""Largest number of redraws while the chart moves by one span and no window changes: drawing takes a browser
long.
"""
HINT: Final = "A click on a bar or a row opens its flows and jobs."


@dataclass(frozen=True, slots=True)
class ContentionChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    span: int = 900
    window: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> ContentionChoice:
        """Return the user's choices from the query parameters of an address."""
        choice = ContentionChoice(window=query.get("window") or None)
        span = query.get("span", "")
        return replace(choice, span=int(span)) if span.isdecimal() and int(span) in SPANS else choice


class ContentionTab(LiveTab[ContentionChoice]):
    """Shows contention windows over time by link, and one window in detail."""

    address = "/contention"

    def __init__(self, context: AppContext, choice: ContentionChoice) -> None:
        super().__init__(context, choice)
        self._drawn: tuple[int, list[tuple[Any, ...]]] = 0, []

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-fabric-grid"):
                with ui.element("div").classes("ft-column"):
                    self._build_bars()
                    self._build_list()
                with card("ft-panel"):
                    self._build_window()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_bars(self) -> None:
        with card("ft-gantt-card"):
            with ui.element("div").classes("ft-head"):
                text("Contention", "ft-title")
                toggle(SPANS, self.choice.span, lambda span: self._choose(span=span), "span")
            self.bars_note = text("", "ft-note", test="bars-note")
            self.bars_empty = empty("", "bars-empty")
            self.bars = LiveChart("gantt", on_pick=lambda window: self._choose(window=window))
            self.bars.classes("ft-fill").props("data-testid=bars")

    def _build_list(self) -> None:
        columns = [
            ("since", "since (UTC)", "left"),
            ("for", "for", "right"),
            ("link", "link", "left"),
            ("kind", "kind", "left"),
            ("deepest", "deepest", "right"),
            ("wait", "longest wait", "right"),
            ("jobs", "jobs", "left"),
        ]
        with card("ft-window-list"):
            self.windows = table(columns, "windows", self._on_row, {"kind": _kind_cell})
            with part("deepest-part") as self.deepest_part:
                text("Deepest queues now", "ft-title")
                self.deepest_empty = empty("", "deepest-empty")
                columns = [
                    ("link", "link", "left"),
                    ("depth", "mean depth", "right"),
                    ("delay", "a packet waits", "right"),
                ]
                self.deepest = table(columns, "deepest", _open_link)

    def _build_window(self) -> None:
        self.nothing = empty(HINT, "window-nothing")
        self.part = part("window")
        with self.part:
            self.title = text("", "ft-title", test="window-title")
            self.kind = text("", "ft-sub-title", test="window-kind")
            self.detail = text("", "ft-detail", test="window-text")
            self.figures = name_value_table("window-figures")
            self.to_link = Chips().props("data-testid=window-link")
            self.flows_title = text("", "ft-sub-title", test="window-flows-title")
            columns = [
                ("flow", "from → to", "left"),
                ("rate", "rate", "right"),
                ("share", "share", "right"),
                ("job", "job", "left"),
            ]
            self.flows = table(columns, "window-flows")
            self.flows_empty = empty("No reported flow crosses it.", "window-flows-empty")
            self.jobs = Chips().props("data-testid=window-jobs")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        super()._choose(**changes)
        self._drawn = 0, []
        self._show()

    def _on_row(self, row: Row) -> None:
        self._choose(window=row["id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Subscribe to the live state. Called again when the browser reconnects."""
        super().start_live()
        self.bars.resume()
        if self.context.live is None:
            self.part.set_visibility(False)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""
        if "contention" in parts:
            self._show()

    def _show(self) -> None:
        if self.context.live is None:
            return
        now_ns, span_ns = self.live.now_ns(), self.choice.span * 1_000_000_000
        with self.state.lock:
            windows = frames.within(self.state.contention.values(), now_ns, span_ns)
            has_records = bool(self.state.versions["contention"])
            window = self.state.contention.get(self.choice.window or "")
            deepest = [] if windows else self.live.deepest_rows("queue")
            has_queues = bool(self.state.queues.version)
        if self.choice.window is None and windows and is_active(windows[0], now_ns):
            window = windows[0]
        self._show_bars(windows, has_records, now_ns, span_ns)
        self.windows.put([_window_row(item, now_ns) for item in windows[:WINDOWS_SHOWN]])
        self.deepest_part.set_visibility(not windows)
        self.deepest.put(deepest)
        self.deepest_empty.set_text("All queues are empty." if has_queues else "No queue inferred yet.")
        self.deepest_empty.set_visibility(not deepest)
        self._show_window(window, now_ns)

    def _show_bars(
        self, windows: list[ContentionWindow], has_records: bool, now_ns: int, span_ns: int
    ) -> None:
        frame = frames.bars_frame(windows, now_ns, span_ns, self.choice.window)
        self.bars_empty.set_text(
            self.live.verdict().claim(f"No persistent queue in the last {SPANS[self.choice.span]}.")
            if has_records
            else "No contention window yet: this needs inferred queues, and flow reports for the cause."
        )
        self.bars_empty.set_visibility(not windows)
        bars = [(bar[5], bar[3], bar[6]) for bar in frame["bars"]]
        if bars != self._drawn[1] or now_ns - self._drawn[0] > span_ns // REDRAWS_PER_SPAN:
            self._drawn = now_ns, bars
            self.bars.show(lambda _is_full: frame)
        active = sum(is_active(window, now_ns) for window in windows)
        note = f"{counted(len(windows), 'window')} on {counted(frame['links'], 'link')}, {active} active"
        if frame["links"] > len(frame["rows"]):
            note += f"; the {len(frame['rows'])} heaviest links are drawn"
        note += "; a bar's height: bytes times the time that they waited"
        self.bars_note.set_text(note if windows else "")

    def _show_window(self, window: ContentionWindow | None, now_ns: int) -> None:
        self.part.set_visibility(window is not None)
        self.nothing.set_visibility(window is None)
        if window is None:
            expired = "This window is no longer in memory; the history has it."
            self.nothing.set_text(HINT if self.choice.window is None else expired)
            return
        self.title.set_text(arrow(window["link"]))
        kind = frames.KINDS.get(window["kind"], frames.KINDS["UNKNOWN"])
        self.kind.set_text(f"{kind}, confidence {percent_text(window['confidence'])}")
        self.detail.set_text(readable(window["text"]))
        put_values(self.figures, _figures(window, now_ns))
        address = fabric_address(link=window["link"], metric="queue")
        self.to_link.put([("link", "show the link in the fabric", address)])
        total = window["flows_total"]
        self.flows_title.set_text(f"Flows: {count_text(total)}" if total else "Flows")
        self.flows_empty.set_visibility(not window["flows"])
        self.flows.put(
            [
                {
                    "id": flow["flow_id"],
                    "flow": f"{flow['nic']} → {flow['peer']}",
                    "rate": bps_text(flow["rate_bps"]),
                    "share": percent_text(flow["share"]),
                    "job": flow["job"] or "",
                }
                for flow in window["flows"][:FLOWS_SHOWN]
            ]
        )
        self.jobs.put(
            [
                (job, job, fabric_address(link=window["link"], job=job, metric="queue"))
                for job in window["jobs"][:FLOWS_SHOWN]
            ]
        )


def wait_text(depth_bytes: float, rate_bps: int) -> str:
    """Return as text how long a packet waits behind `depth_bytes`; a dash without a queue or a known rate."""
    return delay_text(depth_bytes * 8e9 / rate_bps) if depth_bytes > 0 and rate_bps else "—"


def _queue_text(depth_bytes: float, rate_bps: int) -> str:
    if depth_bytes <= 0:
        return "no queue measured"
    wait = wait_text(depth_bytes, rate_bps)
    return f"{bytes_text(depth_bytes)}, " + ("unknown wait" if wait == "—" else f"a packet waits {wait}")


def _window_row(window: ContentionWindow, now_ns: int) -> dict[str, Any]:
    begin_ns, end_ns = frames.span_of(window, now_ns)
    active = is_active(window, now_ns)
    return {
        "id": window["window_id"],
        "since": utc_time(begin_ns),
        "for": (delay_text(end_ns - begin_ns) if end_ns > begin_ns else "new")
        + (", active" if active else ""),
        "link": arrow(window["link"]),
        "kind": frames.KINDS.get(window["kind"], frames.KINDS["UNKNOWN"]),
        "deepest": bytes_text(window["depth_peak_bytes"]) if window["depth_peak_bytes"] > 0 else "—",
        "wait": wait_text(window["depth_peak_bytes"], window["rate_bps"]),
        "jobs": ", ".join(window["jobs"][:3]) or "—",
        "active": active,
    }


def _figures(window: ContentionWindow, now_ns: int) -> list[tuple[str, str]]:
    begin_ns, end_ns = frames.span_of(window, now_ns)
    age = delay_text(end_ns - begin_ns)
    if is_active(window, now_ns):
        end = ("active for", age)
    else:
        name = "closed" if window["state"] == ContentionState.CLOSED else "last update"
        end = (name, f"{utc_time(end_ns)} UTC, after {age}")
    busy = window["utilisation"]
    rows = [
        ("opened", f"{utc_time(begin_ns)} UTC"),
        end,
        ("queue, last update", _queue_text(window["depth_bytes"], window["rate_bps"])),
        ("deepest queue", _queue_text(window["depth_peak_bytes"], window["rate_bps"])),
        ("time busy", "—" if busy is None else percent_text(busy)),
        ("over the threshold", delay_text(window["over_ns"])),
        ("detected by", frames.EVIDENCE.get(window["detected_by"], "not known")),
        ("marked with CE", percent_text(window["ce_share"])),
        ("class", f"DSCP {window['dscp']}"),
        ("severity", f"{bytes_text(window['over_byte_s'])}·s over the threshold"),
        ("link's rate", bps_text(window["rate_bps"]) if window["rate_bps"] else "unknown"),
    ]
    for name, links in (("candidates", window["candidates"]), ("paused links", window["links"])):
        if links:
            rows.append((name, ", ".join(arrow(link) for link in links[:LINKS_SHOWN])))
    return rows


def _open_link(row: Row) -> None:
    go_to(fabric_address(link=row["id"], metric="queue"))


def _kind_cell(row: Row) -> Cell:
    return [("ft-active" if row["active"] else "", row["kind"], "")]

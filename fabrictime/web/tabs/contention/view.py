"""The tab Contention: where queues stand and stood, as bars over time, and one such window in depth.

In: the process's `AppContext` and the tab's choices, which stand in its address. No query, no maths here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from fabrictime.state.fabric_state import Part, Record, stands
from fabrictime.state.labels import arrow
from fabrictime.state.units import bps_text, bytes_text, count_text, counted, delay_text, percent_text
from fabrictime.web.addresses import fabric_address
from fabrictime.web.chart import LiveChart
from fabrictime.web.rows import Cell, Row
from fabrictime.web.tabs.base import CSS, AppContext, card, part, replace_address, text, toggle
from fabrictime.web.tabs.contention import frames
from fabrictime.web.tabs.live_tab import KPIS, LiveTab, empty, table
from fabrictime.web.widgets import Chips

SPANS = {300: "5 min", 900: "15 min", 3600: "1 h"}
LISTED = 60
FLOWS_SHOWN = 24
TURNS = 300
"""Steps in which a span moves on, where no window came, went or closed: a picture takes a browser long."""


@dataclass(frozen=True, slots=True)
class ContentionChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    span: int = 900
    window: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> ContentionChoice:
        """Return the choice that an address's query stands for."""
        choice = ContentionChoice(window=query.get("window") or None)
        span = query.get("span", "")
        return replace(choice, span=int(span)) if span.isdecimal() and int(span) in SPANS else choice

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = asdict(ContentionChoice())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


class ContentionTab(LiveTab):
    """Contention over time, link by link."""

    address = "/contention"

    def __init__(self, site: AppContext, choice: ContentionChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self._drawn: tuple[int, list[tuple[Any, ...]]] = 0, []

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("main").classes("ft-fabric-grid"):
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
                toggle(SPANS, self.choice.span, self._choose_span, "span")
            self.bars_note = text("", "ft-note", test="bars-note")
            self.bars_empty = empty("", "bars-empty")
            self.bars = LiveChart("gantt", on_pick=self._choose_window)
            self.bars.classes("ft-fill").props("data-testid=bars")

    def _build_list(self) -> None:
        with card("ft-window-list"):
            self.windows = table(
                [
                    ("since", "since (UTC)", "left"),
                    ("for", "for", "right"),
                    ("link", "link", "left"),
                    ("kind", "kind", "left"),
                    ("deepest", "deepest", "right"),
                    ("wait", "wait", "right"),
                    ("jobs", "jobs", "left"),
                ],
                "windows",
                self._on_row,
                {"kind": _kind_cell},
            )

    def _build_window(self) -> None:
        self.nothing = empty("A click on a bar or a row opens it: its flows, its jobs.", "window-nothing")
        self.part = part("window")
        with self.part:
            self.title = text("", "ft-title", test="window-title")
            self.kind = text("", "ft-sub-title", test="window-kind")
            self.said = text("", "ft-said", test="window-text")
            self.figures = table([("name", "", "left"), ("value", "", "left")], "window-figures")
            self.to_link = Chips().props("data-testid=window-link")
            self.flows_title = text("", "ft-sub-title", test="window-flows-title")
            self.flows = table(
                [
                    ("flow", "from → to", "left"),
                    ("rate", "rate", "right"),
                    ("share", "share", "right"),
                    ("job", "job", "left"),
                ],
                "window-flows",
            )
            self.flows_empty = empty("No reported flow crosses it.", "window-flows-empty")
            self.jobs = Chips().props("data-testid=window-jobs")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)
        self._drawn = 0, []
        address = self.choice.address()
        replace_address(f"{self.address}?{address}" if address else self.address)
        self._show()

    def _choose_span(self, span: int) -> None:
        self._choose(span=span)

    def _choose_window(self, window: str) -> None:
        self._choose(window=window)

    def _on_row(self, row: Row) -> None:
        self._choose(window=row["id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Begin to follow the topics, or follow them again after the browser was away."""
        super().start_live()
        self.bars.resume()
        if self.site.live is None:
            self.part.set_visibility(False)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Take that these parts of the fabric's state changed."""
        if "contention" in parts:
            self._show()

    def _show(self) -> None:
        if self.site.live is None:
            return
        now_ns, span_ns = self.live.now_ns(), self.choice.span * 1_000_000_000
        with self.state.lock:
            windows = frames.within(self.state.contention.values(), now_ns, span_ns)
            known = bool(self.state.versions["contention"])
            chosen = self.state.contention.get(self.choice.window or "")
        if self.choice.window is None and windows and stands(windows[0], now_ns):
            chosen = windows[0]
        frame = frames.bars(windows, now_ns, span_ns, self.choice.window)
        self.bars_empty.set_text(
            f"No queue stood in the last {SPANS[self.choice.span]}."
            if known
            else "No contention told yet: it takes inferred queues, and flow reports to say whose they are."
        )
        self.bars_empty.set_visibility(not windows)
        bars = [(bar[5], bar[3], bar[6]) for bar in frame["bars"]]
        if bars != self._drawn[1] or now_ns - self._drawn[0] > span_ns // TURNS:
            self._drawn = now_ns, bars
            self.bars.show(lambda whole: frame)
        standing = sum(stands(each, now_ns) for each in windows)
        note = f"{counted(len(windows), 'window')} on {counted(frame['links'], 'link')}, {standing} standing"
        if frame["links"] > len(frame["lanes"]):
            note += f"; drawn are the {len(frame['lanes'])} heaviest links"
        self.bars_note.set_text(
            f"{note}; a bar's height is bytes over the threshold times seconds" if windows else ""
        )
        self.windows.put([_row(each, now_ns) for each in windows[:LISTED]])
        self._show_window(chosen, now_ns)

    def _show_window(self, window: Record | None, now_ns: int) -> None:
        self.part.set_visibility(window is not None)
        self.nothing.set_visibility(window is None)
        if window is None:
            gone = self.choice.window is not None
            self.nothing.set_text(
                "That window is no longer kept here; history has it."
                if gone
                else "A click on a bar or a row opens it: its flows, its jobs."
            )
            return
        self.title.set_text(arrow(window["link"]))
        kind = frames.KINDS.get(window["kind"], "kind not told")
        self.kind.set_text(f"{kind}, confidence {percent_text(window['confidence'])}")
        self.said.set_text(window["text"])
        self.figures.put(_figures(window, now_ns))
        address = fabric_address(link=window["link"], metric="queue")
        self.to_link.put([("link", "show the link in the fabric", address)])
        self.flows_title.set_text(
            f"Flows: {count_text(window['flows_total'])}" if window["flows_total"] else "Flows"
        )
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
            ],
        )
        self.jobs.put(
            [
                (job, job, fabric_address(link=window["link"], job=job, metric="queue"))
                for job in window["jobs"][:FLOWS_SHOWN]
            ]
        )


def _row(window: Record, now_ns: int) -> dict[str, Any]:
    begin, end = frames.span_of(window, now_ns)
    return {
        "id": window["window_id"],
        "since": frames.clock_text(begin),
        "for": delay_text(end - begin) + (", stands" if stands(window, now_ns) else ""),
        "link": arrow(window["link"]),
        "kind": frames.KINDS.get(window["kind"], "not told"),
        "deepest": bytes_text(window["depth_peak_bytes"]),
        "wait": delay_text(window["delay_ns"]),
        "jobs": ", ".join(window["jobs"][:3]),
        "stands": stands(window, now_ns),
    }


def _figures(window: Record, now_ns: int) -> list[dict[str, Any]]:
    begin, end = frames.span_of(window, now_ns)
    standing, closed = stands(window, now_ns), window["state"] == "CLOSED"
    busy = window["utilisation"]
    rows = [
        ("opened", f"{frames.clock_text(begin)} UTC"),
        (
            "stands" if standing else "closed" if closed else "last told",
            delay_text(end - begin)
            if standing
            else f"{frames.clock_text(end)} UTC, after {delay_text(end - begin)}",
        ),
        ("depth", f"{bytes_text(window['depth_bytes'])}, a packet waits {delay_text(window['delay_ns'])}"),
        ("deepest", bytes_text(window["depth_peak_bytes"])),
        ("time busy", "—" if busy is None else percent_text(busy)),
        ("over the threshold", delay_text(window["over_ns"])),
        ("severity", f"{bytes_text(window['over_byte_s'])}·s over the threshold"),
        ("link's rate", bps_text(window["rate_bps"]) if window["rate_bps"] else "not known"),
    ]
    if window["candidates"]:
        rows.append(("or as well", ", ".join(arrow(link) for link in window["candidates"][:8])))
    if window["links"]:
        rows.append(("standing still", ", ".join(arrow(link) for link in window["links"][:8])))
    return [{"id": name, "name": name, "value": value} for name, value in rows]


def _kind_cell(row: Row) -> Cell:
    return [("ft-stands" if row["stands"] else "", row["kind"], "")]

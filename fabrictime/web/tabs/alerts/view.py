"""The tab Alerts: what stands and what was cleared, and one alert with the evidence that it stands on.

In: the process's `AppContext` and the tab's choices, which stand in its address. No query, no maths here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from urllib.parse import urlencode

from nicegui import ui

from fabrictime.state.fabric_state import Part, Record, cleared
from fabrictime.state.labels import arrow
from fabrictime.state.units import count_text
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.rows import Cell, Row
from fabrictime.web.tabs.alerts import frames
from fabrictime.web.tabs.alerts.frames import Shown
from fabrictime.web.tabs.base import CSS, AppContext, card, part, replace_address, text, toggle
from fabrictime.web.tabs.live_tab import KPIS, LiveTab, empty, table
from fabrictime.web.widgets import Chips

Listed = Literal["standing", "all"]

LISTS = {"standing": "standing", "all": "with cleared"}
ROWS = 200


@dataclass(frozen=True, slots=True)
class AlertsChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    listed: Listed = "all"
    alert: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> AlertsChoice:
        """Return the choice that an address's query stands for."""
        choice = AlertsChoice(alert=query.get("alert") or None)
        if query.get("listed") in get_args(Listed):
            choice = replace(choice, listed=query["listed"])  # type: ignore[arg-type]
        return choice

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = asdict(AlertsChoice())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


class AlertsTab(LiveTab):
    """All alerts, and one of them in depth."""

    address = "/alerts"

    def __init__(self, site: AppContext, choice: AlertsChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self._evidence_shown: tuple[str, int] = ("", -1)
        self._opened: set[int] = set()

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("main").classes("ft-alert-grid"):
                with card("ft-alert-list"):
                    with ui.element("div").classes("ft-head"):
                        text("Alerts", "ft-title")
                        toggle(LISTS, self.choice.listed, self._choose_list, "listed")
                    self.note = text("", "ft-note", test="alerts-note")
                    self.empty = empty("", "alerts-empty")
                    self.table = table(
                        [
                            ("severity", "severity", "left"),
                            ("text", "what", "left"),
                            ("raised", "raised (UTC)", "left"),
                            ("for", "stands", "right"),
                        ],
                        "alerts",
                        self._on_row,
                        {"severity": _severity_cell, "text": _text_cell},
                    )
                with card("ft-panel"):
                    self._build_alert()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_alert(self) -> None:
        self.nothing = empty("A click on an alert opens what it stands on.", "alert-nothing")
        self.part = part("alert")
        with self.part:
            self.title = text("", "ft-title", test="alert-title")
            self.figures = table([("name", "", "left"), ("value", "", "left")], "alert-figures")
            self.links = Chips().props("data-testid=alert-links")
            text("Evidence", "ft-sub-title")
            self.evidence = ui.element("div").classes("ft-evidence").props("data-testid=evidence")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)
        address = self.choice.address()
        replace_address(f"{self.address}?{address}" if address else self.address)
        self._show()

    def _choose_list(self, listed: Listed) -> None:
        self._choose(listed=listed)

    def _on_row(self, row: Row) -> None:
        self._choose(alert=row["id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Begin to follow the topics, or follow them again after the browser was away."""
        super().start_live()
        if self.site.live is None:
            self.part.set_visibility(False)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Take that these parts of the fabric's state changed."""
        if "alerts" in parts:
            self._show()

    def _show(self) -> None:
        if self.site.live is None:
            return
        now_ns = self.live.now_ns()
        with self.state.lock:
            alerts = frames.ordered(self.state.alerts.values())
            chosen = self.state.alerts.get(self.choice.alert or "")
        if self.choice.alert is None and alerts and not cleared(alerts[0]):
            chosen = alerts[0]
        listed = alerts if self.choice.listed == "all" else [a for a in alerts if not cleared(a)]
        standing = sum(not cleared(alert) for alert in alerts)
        self.note.set_text(f"{count_text(standing)} stand, {count_text(len(alerts) - standing)} cleared")
        self.empty.set_text(
            "No alert stands."
            if alerts
            else "No alert yet: they are raised once links, queues or clocks are judged to be in trouble."
        )
        self.empty.set_visibility(not listed)
        self.table.put([_row(alert, now_ns) for alert in listed[:ROWS]])
        self._show_alert(chosen, now_ns)

    def _show_alert(self, alert: Record | None, now_ns: int) -> None:
        self.part.set_visibility(alert is not None)
        self.nothing.set_visibility(alert is None)
        if alert is None:
            return
        self.title.set_text(alert["text"])
        self.figures.put(
            [{"id": name, "name": name, "value": value} for name, value in frames.figures(alert, now_ns)],
        )
        self.links.put([(label, label, address) for label, address in frames.ways_on(alert)])
        if self._evidence_shown != (alert["alert_id"], alert["update"]):
            if self._evidence_shown[0] != alert["alert_id"]:
                self._opened = set()
            self._evidence_shown = (alert["alert_id"], alert["update"])
            self._build_evidence(alert)

    def _build_evidence(self, alert: Record) -> None:
        self.evidence.clear()
        for slot in [slot for slot in self._ends if slot.startswith("evidence")]:
            self._unfollow(slot)
        with self.evidence:
            if not alert["evidence"]:
                empty("The alert names no record.", "evidence-empty")
            for k, each in enumerate(alert["evidence"]):
                with ui.element("div").classes("ft-evidence-row"):
                    with ui.element("button").classes("ft-link ft-evidence-head") as head:
                        head.props(f"type=button data-testid=evidence-{k}")
                        text(each["text"], "ft-what")
                        text(f"{each['topic']} · {each['key']} · {_clock(each['at_ns'])}", "ft-said")
                    body = ui.element("div").classes("ft-record").props(f"data-testid=record-{k}")
                    body.set_visibility(k in self._opened)
                    head.on("click", self._opening(k, each, body))
                    if k in self._opened:
                        self._follow_record(k, each, body)

    def _opening(self, k: int, each: Record, body: Any) -> Callable[[], None]:
        def toggled() -> None:
            if k in self._opened:
                self._opened.discard(k)
                self._unfollow(f"evidence {k}")
                body.set_visibility(False)
                return
            self._opened.add(k)
            body.set_visibility(True)
            self._follow_record(k, each, body)

        return toggled

    def _follow_record(self, k: int, each: Record, body: Any) -> None:
        evidence = self.site.evidence
        if evidence is None:
            return
        body.clear()
        with body:
            text("Asking the log …", "ft-said")

        def show(snapshot: Snapshot[Shown]) -> None:
            if snapshot.value is None and snapshot.error is None:
                return
            body.clear()
            with body:
                if snapshot.value is None:
                    text(str(snapshot.error), "ft-said")
                    return
                text(snapshot.value.where, "ft-said")
                for name, value in snapshot.value.fields:
                    with ui.element("div").classes("ft-field"):
                        text(name, "ft-field-name")
                        text(value, "ft-field-value")
            self._unfollow(f"evidence {k}")  # what stands in the log does not change

        named = (each["topic"], each["key"], each["at_ns"], each["text"])
        self._follow(f"evidence {k}", ("evidence", *named), lambda: evidence(*named), show, 60.0)


def _clock(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%m-%d %H:%M:%S.%f}"[:-3]


def _row(alert: Record, now_ns: int) -> dict[str, Any]:
    return {
        "id": alert["alert_id"],
        "severity": alert["severity"],
        "stands": not cleared(alert),
        "text": alert["text"],
        "raised": _clock(alert["raised_ns"])[:-4],
        "for": frames.standing_text(alert, now_ns),
        "more": ", ".join(arrow(each) for each in alert["grouped"][:4]),
    }


def _severity_cell(row: Row) -> Cell:
    said = row["severity"] if row["stands"] else "cleared"
    return [(f"ft-severity ft-{said}", said, "")]


def _text_cell(row: Row) -> Cell:
    parts = [("ft-what" if row["stands"] else "ft-said", row["text"], "")]
    return parts + ([("ft-said", f"with it: {row['more']}", "")] if row["more"] else [])

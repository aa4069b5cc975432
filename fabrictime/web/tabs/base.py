"""What both pages of a tab share: its header and banner, how it follows the hub, and small elements.

In: the process's `AppContext`. Out: `Tab`, which `view.DelaysTab` and `clock_view.ClocksTab` fill.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nicegui import ui

from fabrictime.state.fabric_state import Part
from fabrictime.state.units import count_text, seconds_text
from fabrictime.web.history_client import HistoryEmpty
from fabrictime.web.history_queries import Fleet, HistoryQueries, step_ns_of
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.query_poller import QueryPoller, Snapshot
from fabrictime.web.settings import WebSettings
from fabrictime.web.tabs.alerts.evidence import Evidence
from fabrictime.web.tabs.fabric.queries import LinkQueries
from fabrictime.web.widgets import LiveText, Section

LINE_SPANS = {60: "1 min", 600: "10 min", 3600: "1 h"}
PAGES = {
    "/": "Delays",
    "/clocks": "Clocks",
    "/fabric": "Fabric",
    "/contention": "Contention",
    "/actions": "Actions",
    "/alerts": "Alerts",
}

CSS = (Path(__file__).parent.parent / "page.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class AppContext:
    """What all tabs share."""

    settings: WebSettings
    hub: QueryPoller
    questions: HistoryQueries
    live: LiveFabric | None = None
    fabric: LinkQueries | None = None
    evidence: Evidence | None = None
    tabs: set[int] = field(default_factory=set)


class Tab(ABC):
    """One tab: a page's address, its header with figures, its banner, and the views it follows."""

    address = "/"

    def __init__(self, site: AppContext) -> None:
        self.site = site
        self._ends: dict[str, Callable[[], None]] = {}
        self._fleet: Snapshot[Fleet] = Snapshot()

    @abstractmethod
    def build(self) -> None:
        """Lay the page out inside the current client."""

    @abstractmethod
    def start(self) -> None:
        """Begin to follow history, or follow it again after the browser was away. Ends with `stop`."""

    def start_live(self) -> None:
        """Begin to follow the topics. Ends with `stop`."""
        if self.site.live is not None:
            self._ends["live"] = self.site.live.subscribe(self._on_live)

    def stop(self) -> None:
        """Follow nothing more."""
        for end in self._ends.values():
            end()
        self._ends.clear()

    def age_s(self, fleet: Fleet) -> float | None:
        """Return the age of what this page shows; None where there is nothing yet."""
        return fleet.delays_age_s

    def _build_header(self, kpis: Sequence[tuple[str, str]]) -> None:
        with ui.element("header").classes("ft-top"):
            with ui.element("div").classes("ft-brand"):
                self.light = text("", "ft-light", test="light")
                text("fabrictime", "ft-name")
                with ui.element("nav").classes("ft-nav"):
                    for address, name in PAGES.items():
                        link = ui.link(name, address).classes("ft-page-link")
                        if address == self.address:
                            link.props("aria-current=page")
                        if address == "/alerts":
                            with link:
                                self.badge = text("", "ft-badge", test="badge")
                                self.badge.set_visibility(False)
            self.kpis: dict[str, tuple[LiveText, LiveText]] = {}
            for key, title in kpis:
                with ui.element("div").classes("ft-kpi").props(f"data-testid=kpi-{key}"):
                    text(title, "ft-kpi-title")
                    self.kpis[key] = (text("—", "ft-kpi-value"), text("", "ft-kpi-note"))
        self.banner = text("", "ft-banner", test="banner")
        self.banner.set_visibility(False)

    def _on_live(self, parts: frozenset[Part]) -> None:
        live = self.site.live
        if live is not None and "alerts" in parts:
            standing = live.summary().standing
            critical = any(alert["severity"] == "CRITICAL" for alert in standing)
            self.badge.set_text(count_text(len(standing)))
            self.badge.set_visibility(bool(standing))
            self.badge.classes(remove="ft-bad", add="ft-bad" if critical else "")

    def _kpi(self, key: str, value: str, note: str) -> None:
        shown, small = self.kpis[key]
        shown.set_text(value)
        small.set_text(note, title=note)  # which may not fit

    def _show_banner(self) -> None:
        snapshot, now_s = self._fleet, time.monotonic()
        said, kind = "", "ok"
        age_s: float | None = None
        if snapshot.value is not None and snapshot.answered_s is not None:
            age_s = self.age_s(snapshot.value)
            if age_s is not None:
                age_s += now_s - snapshot.answered_s
        if isinstance(snapshot.error, HistoryEmpty):
            said, kind = "No probes yet: history is up, waiting for the first window.", "wait"
        elif snapshot.error is not None:
            since = now_s - (snapshot.failing_s if snapshot.failing_s is not None else now_s)
            said, kind = f"{snapshot.error} since {since:.0f} s", "bad"
            if age_s is not None:
                said += f". What you see is {seconds_text(age_s)} old."
        elif snapshot.value is None:
            said, kind = "Asking history …", "wait"
        elif age_s is None:
            said, kind = "No probes yet: waiting for the first window.", "wait"
        elif age_s > self.site.settings.stale_after_s:
            said = (
                f"The newest window is {seconds_text(age_s)} old: probers, log or workers have stopped or "
                "are late. What you see is the last state."
            )
            kind = "bad"
        self._kpi("age", "—" if age_s is None else seconds_text(age_s), "newest window")
        self.banner.set_text(said)
        self.banner.set_visibility(bool(said))
        self.banner.classes(remove="ft-wait ft-bad", add=f"ft-{kind}")
        self.light.classes(remove="ft-wait ft-bad ft-ok", add=f"ft-{kind}")

    def _follow(
        self,
        slot: str,
        key: tuple[Any, ...],
        fetch: Callable[[], Any],
        callback: Callable[[Any], None],
        every_s: float = 0.0,
    ) -> None:
        self._unfollow(slot)
        self._ends[slot] = self.site.hub.subscribe(key, fetch, callback, every_s)

    def _unfollow(self, slot: str) -> None:
        if slot in self._ends:
            self._ends.pop(slot)()


def replace_address(address: str) -> None:
    """Put a choice into the browser's address line, without a new page."""
    ui.run_javascript(f"history.replaceState(null, '', {address!r})")


def line_every_s(span_s: int) -> float:
    """Return how seldom a series is asked for: one with a wide step need not be asked each time."""
    return min(step_ns_of(span_s) / 1e9, 2.0) / 2


def card(classes: str) -> Any:
    """Return a framed part of the page."""
    return ui.element("section").classes(f"ft-card {classes}")


def text(content: str, classes: str, test: str | None = None) -> LiveText:
    """Return a line of text; `test` is the name by which tests find it."""
    made = LiveText(content).classes(classes)
    return made.props(f"data-testid={test}") if test else made


def part(test: str) -> Section:
    """Return a part of a panel that comes and goes."""
    return Section().classes("ft-panel-part").props(f"data-testid={test}")


def toggle(options: dict[Any, str], value: Any, choose: Callable[[Any], None], test: str) -> Any:
    """Return a row of buttons of which one is pressed."""
    made = ui.toggle(options, value=value, on_change=lambda event: choose(event.value))
    return made.classes("ft-toggle").props(f"dense unelevated no-caps data-testid={test}")


def column(name: str, label: str, align: str = "right", sortable: bool = False) -> dict[str, Any]:
    """Return a table's column."""
    return {"name": name, "label": label, "field": name, "align": align, "sortable": sortable}

"""Base class of all tabs: header, banner, and subscriptions to history queries and to the live state."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Generic, TypeVar, TypeVarTuple
from urllib.parse import urlencode

from nicegui import ui

from fabrictime.state.fabric_state import Part
from fabrictime.web.elements import text, write_address
from fabrictime.web.export import ExportMenu
from fabrictime.web.history_client import HistoryEmpty
from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.past_fabric import Moment, PastFabric
from fabrictime.web.query_poller import QueryPoller, Snapshot
from fabrictime.web.search_box import SearchBox
from fabrictime.web.service_faults import ServiceFaults, banner_text
from fabrictime.web.settings import WebSettings
from fabrictime.web.tabs.alerts.evidence import EvidenceReader
from fabrictime.web.tabs.delays.queries import Fleet
from fabrictime.web.tabs.fabric.queries import LinkQueries
from fabrictime.web.tabs.jobs.queries import JobQueries
from fabrictime.web.time_bar import TimeBar, TimeChoice
from fabrictime.web.time_marks import Mark, marks
from fabrictime.web.users import User
from fabrictime.web.widgets import LiveText
from schemas.units import count_text, seconds_text

MARKS_PERIOD_S: Final = 5.0
PAST_PERIOD_S: Final = 10.0
"""Shortest period of queries about the past, s: only late windows change their answers."""

LIGHTS: Final = ("ok", "wait", "bad")
"""Kinds of the header's light, the worst last."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

PAGES = {
    "/now": "Now",
    "/delays": "Delays",
    "/clocks": "Clocks",
    "/fabric": "Fabric",
    "/contention": "Contention",
    "/jobs": "Jobs",
    "/actions": "Actions",
    "/alerts": "Alerts",
    "/audit": "Audit",
    "/pipeline": "Pipeline",
}


@dataclass(frozen=True, slots=True)
class AppContext:
    """The settings, history and live state of all tabs. Without the log's address, the fields that need the
    log are None.
    """

    settings: WebSettings
    poller: QueryPoller
    history: HistoryReader
    live: LiveFabric | None = None
    links: LinkQueries | None = None
    evidence: EvidenceReader | None = None
    jobs: JobQueries | None = None
    services: ServiceFaults = field(default_factory=lambda: ServiceFaults(None))
    tabs: set[int] = field(default_factory=set)
    past: PastFabric | None = None

    def at(self, moment: Moment) -> AppContext:
        """Return a copy of this context with the history and state of a past moment."""
        live, history = moment.fabric, self.history.at(moment.at_ns)
        jobs = None
        if self.settings.kafka is not None:
            jobs = JobQueries(live.state, history, self.settings.kafka, live.now_ns)
        return replace(
            self,
            history=history,
            live=live,
            links=LinkQueries(live.state, history),
            jobs=jobs,
            services=ServiceFaults(None),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choices on a tab, which are the query parameters of its address."""

    def address(self) -> str:
        """Return the query string with these choices; defaults are left out."""
        default = asdict(type(self)())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


TabChoice = TypeVar("TabChoice", bound=Choice)


def stale_text(history_s: float, log_s: float | None, stale_after_s: float) -> str:
    """Return the banner for a history whose newest window is old. Its text names the late part: log or
    history.
    """
    if log_s is None:
        return (
            f"The newest window in the history is {seconds_text(history_s)} old: probers, log, workers or "
            "history are late or have stopped. The page shows the last state."
        )
    if log_s <= stale_after_s:
        return (
            f"Delays and clocks are {seconds_text(history_s)} old; links and alerts are current, and so are "
            "the tabs Now, Fabric, Contention, Jobs, Actions and Alerts."
        )
    return (
        f"The newest record in the log is {seconds_text(log_s)} old: probers, log or workers are late or "
        "have stopped. The page shows the last state."
    )


def marks_before_now(history: HistoryReader, range_s: int) -> list[Mark]:
    """Return the marks of alerts and decisions within the last `range_s` seconds."""
    now_ns = history.now_ns()
    return marks(history, now_ns - range_s * 1_000_000_000, now_ns + 1_000_000_000)


def with_pace(message: str, kind: str, slow: str) -> tuple[str, str]:
    """Add the note `slow` about a slow simulation to a banner, and return its text and kind. `slow` is empty
    at full pace.
    """
    if not slow:
        return message, kind
    sentence = f"{slow[0].upper()}{slow[1:]}."
    return (f"{message} {sentence}", kind) if message else (sentence, "wait")


class Tab(ABC, Generic[TabChoice]):
    """One tab of the page in one browser."""

    address = "/now"
    past_note = ""
    """Words about the parts that do not show the past."""

    def __init__(self, context: AppContext, choice: TabChoice) -> None:
        self._now_context = context
        self.context = context
        self.choice = choice
        self.time = TimeChoice()
        self.user: User | None = None
        self._unsubscribe: dict[str, Callable[[], None]] = {}
        self._fleet: Snapshot[Fleet] = Snapshot()
        self._alert_level = "ok"
        """The header's light for the active alerts that no operator has acknowledged or silenced."""

    @abstractmethod
    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""

    @abstractmethod
    def start(self) -> None:
        """Subscribe to history queries; called again when the browser reconnects. `stop` ends the
        subscriptions.
        """

    def start_live(self) -> None:
        """Subscribe to the live state. `stop` ends the subscription."""
        if self.context.live is not None:
            self._unsubscribe["live"] = self.context.live.subscribe(self._on_live)
        if self._now_context.past is not None:
            self._follow_marks()

    def show_first(self) -> None:
        """Show the present state once before the browser connects, so that its first paint has figures."""
        self.start()
        self.start_live()
        self.stop()

    def resume(self) -> None:
        """Send the state again that `start_live` sends only once; called when the browser reconnects."""

    def at_time(self, choice: TimeChoice) -> None:
        """Set the time before the tab is built. For a past moment, `show_time` later reads its state."""
        self.time = choice
        past = self._now_context.past
        if past is not None and choice.at_ns is not None:
            self.context = self._now_context.at(past.pending(choice.at_ns))

    async def show_time(self) -> None:
        """Show the chosen time: now, or a past moment after its state has been read."""
        past, at_ns = self._now_context.past, self.time.at_ns
        context = self._now_context
        if past is not None and at_ns is not None:
            context = context.at(await asyncio.to_thread(past.at, at_ns))
        if at_ns == self.time.at_ns:  # otherwise the reader chose another time meanwhile
            self.stop()
            self.context = context
            self.start()
            self.start_live()
            if past is not None:
                self.time_bar.end_loading(at_ns)

    async def _on_time(self, choice: TimeChoice, adds: bool) -> None:
        moved, self.time = choice.at_ns != self.time.at_ns, choice
        with self.time_bar.client:
            self._write_address(adds)
            self._follow_marks()
            if moved:
                await self.show_time()

    def _follow_marks(self) -> None:
        history, (since_ns, until_ns) = self._now_context.history, self.time.span_ns(time.time_ns())
        if self.time.end_ns is None:
            self.follow(
                "marks", marks_before_now, (history, self.time.range_s), self._on_marks, MARKS_PERIOD_S
            )
        else:
            self.follow("marks", marks, (history, since_ns, until_ns), self._on_marks, MARKS_PERIOD_S)

    def _on_marks(self, snapshot: Snapshot[list[Mark]]) -> None:
        if snapshot.value is not None:
            self.time_bar.put_marks(snapshot.value)

    def stop(self) -> None:
        """End all subscriptions."""
        for unsubscribe in self._unsubscribe.values():
            unsubscribe()
        self._unsubscribe.clear()

    def age_s(self, fleet: Fleet) -> float | None:
        """Return the age of the data that the tab shows, s; None without data."""
        return fleet.delays_age_s

    def _choose(self, **changes: Any) -> None:
        self._set_choice(replace(self.choice, **changes))

    def _set_choice(self, choice: TabChoice) -> None:
        before, self.choice = self.choice, choice
        if choice != before:
            self._write_address()

    def _write_address(self, adds: bool = True) -> None:
        query = "&".join(filter(None, (self.choice.address(), urlencode(self.time.parameters()))))
        write_address(f"{self.address}?{query}" if query else self.address, adds)

    def _build_header(self, kpis: Sequence[tuple[str, str]]) -> None:
        with ui.element("header").classes("ft-top"):
            with ui.element("div").classes("ft-brand"):
                self.light = text("", "ft-light", test="light")
                text("fabrictime", "ft-name").props("role=heading aria-level=1")
                with ui.element("nav").classes("ft-nav"):
                    for address, name in PAGES.items():
                        link = ui.link(name, address).classes("ft-page-link")
                        if address == self.address:
                            link.props("aria-current=page")
                        if address == "/alerts":
                            with link:
                                self.badge = text("", "ft-badge", test="badge")
                                self.badge.set_visibility(False)
                if self.context.live is not None:
                    SearchBox(lambda: self.context.live)
                exports = ExportMenu(PAGES[self.address])
            self.kpis: dict[str, tuple[LiveText, LiveText]] = {}
            for key, title in kpis:
                with ui.element("div").classes("ft-kpi").props(f"data-testid=kpi-{key}"):
                    text(title, "ft-kpi-title")
                    self.kpis[key] = (text("—", "ft-kpi-value"), text("", "ft-kpi-note"))
        if self._now_context.past is not None:
            self.time_bar = TimeBar(self.time, self.past_note, self._on_time).classes("ft-time")
        exports.build_list()
        self.banner = text("", "ft-banner", test="banner")
        self.banner.set_visibility(False)

    def _on_live(self, parts: frozenset[Part]) -> None:
        live = self.context.live
        if live is not None and "alerts" in parts:
            active, now_ns = live.summary().active_alerts, live.now_ns()
            critical = any(alert["severity"] == "CRITICAL" for alert in active)
            loud = [alert for alert in active if not live.state.notes.is_quiet(alert, now_ns)]
            self._alert_level = "bad" if critical and loud else "wait" if loud else "ok"
            self.badge.set_text(count_text(len(active)))
            self.badge.set_visibility(bool(active))
            self.badge.classes(remove="ft-bad", add="ft-bad" if critical else "")

    def _kpi(self, key: str, value: str, note: str) -> None:
        value_text, note_text = self.kpis[key]
        value_text.set_text(value)
        note_text.set_text(note, title=note)  # the note may not fit

    def _show_banner(self) -> None:
        snapshot, now_s = self._fleet, time.monotonic()
        age_s = None if snapshot.value is None else self._aged_s(self.age_s(snapshot.value), now_s)
        self._kpi("age", "—" if age_s is None else seconds_text(age_s), "newest window")
        self._set_banner(*self._history_banner(age_s, now_s))

    def _aged_s(self, age_s: float | None, now_s: float) -> float | None:
        """Return an age that the newest answer of the history states as of now, s."""
        answered_s = self._fleet.answered_s
        if age_s is None or answered_s is None or self.time.at_ns is not None:
            return age_s
        return age_s + now_s - answered_s

    def _history_banner(self, age_s: float | None, now_s: float) -> tuple[str, str]:
        """Return the banner's text and kind: ok, wait or bad."""
        snapshot = self._fleet
        if isinstance(snapshot.error, HistoryEmpty):
            return "No probes yet: the history is up, waiting for the first window.", "wait"
        if snapshot.error is not None:
            failing_s = now_s - (snapshot.failing_s if snapshot.failing_s is not None else now_s)
            message = f"{snapshot.error} since {failing_s:.0f} s"
            if age_s is not None:
                message += f". The data shown is {seconds_text(age_s)} old."
            return message, "bad"
        if snapshot.value is None:
            return "Querying the history …", "wait"
        if age_s is None:
            return "No probes yet: waiting for the first window.", "wait"
        if age_s > self.context.settings.stale_after_s:
            return stale_text(age_s, self._log_age_s(), self.context.settings.stale_after_s), "bad"
        return "", "ok"

    def _log_age_s(self) -> float | None:
        """Return the age of the newest record from the log, s; None before the first record."""
        live = self.context.live
        return None if live is None else live.state.age_s(live.log_now_ns())

    def _set_banner(self, message: str, kind: str) -> None:
        faults = self.context.services.faults()
        slow = "" if self.context.live is None else self.context.live.slow_text()
        message, kind = with_pace(message, kind, slow)
        message, kind = banner_text(message, faults), "bad" if faults else kind
        self.banner.set_text(message)
        self.banner.set_visibility(bool(message))
        self.banner.classes(remove="ft-wait ft-bad", add=f"ft-{kind}")
        light = max(kind, self._alert_level, key=LIGHTS.index)
        self.light.classes(remove="ft-wait ft-bad ft-ok", add=f"ft-{light}")

    def follow(
        self,
        slot: str,
        query: Callable[[*Arguments], T],
        arguments: tuple[*Arguments],
        callback: Callable[[Snapshot[T]], None],
        period_s: float = 0.0,
    ) -> None:
        """Subscribe to `query(*arguments)` in place of the former subscription under the name `slot`. Tabs
        with the same query and arguments share one poll.
        """
        self.unfollow(slot)
        if self.time.at_ns is not None:
            period_s = max(period_s, PAST_PERIOD_S)
        self._unsubscribe[slot] = self.context.poller.subscribe(
            (query, *arguments), lambda: query(*arguments), callback, period_s
        )

    def unfollow(self, slot: str) -> None:
        """End the subscription under the name `slot`."""
        if slot in self._unsubscribe:
            self._unsubscribe.pop(slot)()

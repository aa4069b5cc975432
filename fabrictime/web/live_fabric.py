"""Passes changes of the fabric's state from the consumer thread to the tabs.

Subscribers are called in the event loop, at most once per `PERIOD_S`. A change of a part in `VERDICTS` is
passed on at once unless another one preceded it within `PERIOD_S`. Frames that all tabs draw are computed
once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.state.fleet_metrics import FleetMetrics
from fabrictime.state.freshness import HistoryAge
from fabrictime.state.health import Overview, overview
from fabrictime.state.search_index import SearchIndex
from fabrictime.web.tabs.fabric import frames
from fabrictime.web.tabs.fabric.frames import DrawnPlan, LinkMetric, Summary

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.1
"""Shortest interval between two notifications of verdicts, s."""
FIGURES_PERIOD_S: Final = 0.5
"""Shortest interval from a notification to one of figures alone, s: faster ones cannot be read."""
VERDICTS: Final[frozenset[Part]] = frozenset({"health", "alerts"})
"""Parts whose change is passed on at once, unless one of them changed within the last `PERIOD_S`. Queues,
contention and paths change many times a second: passing on each change would keep the tabs busy.
"""
PLAN_SHARE: Final = 20
"""After computing a plan, wait this many times the computing time before the next one. While a fleet of
thousands announces itself, each NIC changes the plan.
"""
PLAN_WAIT_S: Final = 10.0
"""Longest such wait, s: on a busy machine the computing time is long, and the map must not stay old."""
OVERVIEW_SHARE: Final = 5
"""After computing the first page's content, wait this many times the computing time: a flood of alerts
changes it many times a second.
"""

ALL_PARTS: Final[frozenset[Part]] = frozenset(get_args(Part))
Subscriber = Callable[[frozenset[Part]], None]


class LiveFabric:
    """The fabric's state and its subscribers. All methods but `changed` run in one event loop."""

    def __init__(
        self,
        state: FabricState,
        status: Callable[[], ConsumerStatus],
        now: Callable[[], int],
        verdict: Callable[[], Verdict],
    ) -> None:
        self.state = state
        self.log_now_ns = now
        """Returns the present time of the log's clock, ns since the Unix epoch."""
        self.verdict = verdict
        self.metrics: FleetMetrics | None = None
        """Exports the state for as long as this object exists."""
        self.search = SearchIndex(state)
        self.drawn: DrawnPlan = frames.draw_plan(state.plan())
        self.is_past = False
        """Whether this is the state of a past moment."""
        self._status = status
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: list[Subscriber] = []
        self._parts: set[Part] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._notified_s = self._verdicts_s = float("-inf")
        self._next_plan_s = 0.0
        self._links_frame: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._deepest: dict[LinkMetric, tuple[tuple[Any, ...], list[dict[str, Any]]]] = {}
        self._summary: tuple[tuple[Any, ...], Summary] | None = None
        self._next_overview_s = 0.0
        self._overview: tuple[tuple[Any, ...], Overview] | None = None

    @property
    def status(self) -> ConsumerStatus:
        """Status of the thread that reads the topics."""
        return self._status()

    @property
    def plan_number(self) -> int:
        """The number of the drawn plan. Plans of the live state and of past moments share one sequence."""
        return self.drawn.plan.number

    def now_ns(self) -> int:
        """Return the present fabric time, ns. The time of simulated hosts may be behind the log's clock."""
        now_ns = self.log_now_ns()
        with self.state.lock:
            return now_ns - self.state.simulated.lag_ns(now_ns)

    def slow_text(self) -> str:
        """Return a text with advice if a simulation is slower than real time now; empty otherwise."""
        with self.state.lock:
            return "" if self.is_past else self.state.simulated.slow_text

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop in which subscribers are called."""
        self._loop = loop

    def changed(self, parts: frozenset[Part]) -> None:
        """Schedule a notification of the subscribers about these parts. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule, parts)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` now with all parts, and later with the parts of each change. Return the function
        that unsubscribes it.
        """
        self._refresh_plan()
        self._subscribers.append(subscriber)
        _notify(subscriber, ALL_PARTS)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def links_frame(self) -> dict[str, Any]:
        """Return the frame with states and queues of the plan's links, one dict for all tabs."""
        versions = self.state.versions
        key = (self.plan_number, versions["health"], versions["queues"])
        if self._links_frame is None or self._links_frame[0] != key:
            with self.state.lock:
                frame = frames.links_frame(self.state, self.drawn, self.plan_number)
            self._links_frame = (key, frame)
        return self._links_frame[1]

    def deepest_rows(self, metric: LinkMetric) -> list[dict[str, Any]]:
        """Return the table rows of the deepest queues or busiest links, one list for all tabs."""
        key = (self.plan_number, self.state.versions["queues"])
        if metric not in self._deepest or self._deepest[metric][0] != key:
            with self.state.lock:
                self._deepest[metric] = key, frames.deepest_rows(self.state, self.drawn, metric)
        return self._deepest[metric][1]

    def summary(self) -> Summary:
        """Return the figures in the header of live tabs, computed once for all tabs."""
        versions = self.state.versions
        key = (self.plan_number, *(versions[part] for part in ("health", "queues", "contention", "alerts")))
        if self._summary is None or self._summary[0] != key:
            with self.state.lock:
                self._summary = (key, frames.summary(self.state, self.now_ns()))
        return self._summary[1]

    def overview(self, history: HistoryAge) -> Overview:
        """Return the content of the first page, one for all tabs.

        It is computed once a second, and after a change of health or alerts; less often if its computation is
        slow.
        """
        now_ns, log_now_ns, verdict = self.now_ns(), self.log_now_ns(), self.verdict()
        versions = self.state.versions
        key = (versions["health"], versions["alerts"], log_now_ns // 1_000_000_000, history, verdict)
        begin_s = time.monotonic()
        if self._overview is None or (self._overview[0] != key and begin_s >= self._next_overview_s):
            with self.state.lock:
                log_age_s = self.state.age_s(log_now_ns)
                self._overview = (key, overview(self.state, verdict, now_ns, history, log_age_s))
            self._next_overview_s = begin_s + OVERVIEW_SHARE * (time.monotonic() - begin_s)
        return self._overview[1]

    def _schedule(self, parts: Iterable[Part]) -> None:
        self._parts.update(parts)
        loop = self._loop
        if loop is None:
            return
        next_s = (
            self._verdicts_s + PERIOD_S if self._parts & VERDICTS else self._notified_s + FIGURES_PERIOD_S
        )
        due_s = max(loop.time(), next_s)
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._notify_all)

    def _notify_all(self) -> None:
        self._timer = None
        parts, self._parts = frozenset(self._parts), set()
        if self._loop is not None:
            self._notified_s = self._loop.time()
            self._verdicts_s = self._notified_s if parts & VERDICTS else self._verdicts_s
        if not self._subscribers:
            return
        plan_is_due = self._refresh_plan()
        for subscriber in tuple(self._subscribers):
            _notify(subscriber, parts)
        if plan_is_due:
            self._schedule(("plan",))

    def _refresh_plan(self) -> bool:
        """Recompute the plan if it changed. Return whether the computation was postponed."""
        begin_s = time.monotonic()
        early = begin_s < self._next_plan_s
        with self.state.lock:
            plan = self.state.current_plan() if early else self.state.plan()
        if plan is None:
            return True
        if plan is not self.drawn.plan:
            self.drawn = frames.draw_plan(plan)
            took_s = time.monotonic() - begin_s
            self._next_plan_s = begin_s + min(PLAN_SHARE * took_s, PLAN_WAIT_S)
        return False


def _notify(subscriber: Subscriber, parts: frozenset[Part]) -> None:
    try:
        subscriber(parts)
    except Exception:
        log.exception("a tab failed to show a change")

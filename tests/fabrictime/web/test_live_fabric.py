"""Notification of tabs: verdicts at once after a pause, everything else at most ten times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.freshness import CURRENT
from fabrictime.web import live_fabric
from fabrictime.web.live_fabric import FIGURES_PERIOD_S, LiveFabric
from fabrictime.web.tabs.fabric import frames
from schemas import codec
from tests.fabrictime.fill import fill


class Timer:
    def __init__(self, when: float, act: Callable[[], None]) -> None:
        self.at, self.act, self.gone = when, act, False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.gone = True


class Loop:
    """An event loop with simulated time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, act: Callable[..., None], *args: Any) -> None:
        act(*args)

    def call_at(self, when: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, act))
        return self.timers[-1]

    def go(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if not timer.gone]
            due = min(self.timers, key=Timer.when, default=None)
            if due is None or due.at > end:
                break
            self.timers.remove(due)
            self.now = max(self.now, due.at)
            due.act()
        self.now = end


def made() -> LiveFabric:
    state = FabricState(lambda value: codec.decode(value, "FlowReports"))
    return LiveFabric(state, lambda: ConsumerStatus(caught_up=True), time.time_ns, Verdict)


class Watched:
    """A live state with one subscriber that records its notifications."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.live = made()
        self.live.run_in(self.loop)  # type: ignore[arg-type]  # the methods that it uses
        self.notified: list[tuple[float, frozenset[str]]] = []
        self.live.subscribe(lambda parts: self.notified.append((round(self.loop.now - 100.0, 6), parts)))
        self.notified.clear()

    def change(self, *parts: str) -> None:
        self.live.changed(frozenset(parts))  # type: ignore[arg-type]


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.parametrize("part", ["queues", "contention"])
def test_the_first_change_after_a_pause_is_passed_on_at_once(watched: Watched, part: str) -> None:
    watched.change(part)
    watched.loop.go(0)
    assert watched.notified == [(0.0, {part})]


def test_queues_are_passed_on_twice_a_second(watched: Watched) -> None:
    for _ in range(1000):
        watched.change("queues")
        watched.loop.go(0.005)
    gaps = [b - a for (a, _), (b, _) in zip(watched.notified, watched.notified[1:], strict=False)]
    assert 9 <= len(watched.notified) <= 11
    assert min(gaps) >= FIGURES_PERIOD_S - 1e-6


@pytest.mark.parametrize("part", ["health", "alerts"])
def test_a_verdict_does_not_wait_for_the_queues_period(watched: Watched, part: str) -> None:
    watched.change("queues")
    watched.loop.go(0.01)
    watched.change("queues")
    watched.loop.go(0.01)
    watched.change(part)
    watched.loop.go(0)
    assert watched.notified[-1] == (0.02, {"queues", part})
    watched.change("queues")
    watched.loop.go(1)
    assert [at for at, _ in watched.notified] == [0.0, 0.02, 0.52]


def test_hundreds_of_verdicts_are_passed_on_ten_times_a_second(watched: Watched) -> None:
    for _ in range(400):
        watched.change("alerts", "queues")
        watched.loop.go(0.0025)
    assert 9 <= len(watched.notified) <= 11


def test_no_change_is_lost_between_two_notifications(watched: Watched) -> None:
    watched.change("alerts")
    watched.loop.go(0.03)
    watched.change("paths")
    watched.change("flows")
    watched.loop.go(1)
    assert watched.notified == [(0.0, {"alerts"}), (FIGURES_PERIOD_S, {"paths", "flows"})]


async def test_changes_come_from_any_thread() -> None:
    live = made()
    live.run_in(asyncio.get_running_loop())
    notified = asyncio.Event()
    live.subscribe(lambda parts: notified.set() if parts == {"health"} else None)
    await asyncio.to_thread(live.changed, frozenset({"health"}))
    await asyncio.wait_for(notified.wait(), 10)


def test_a_map_that_is_slow_to_compute_is_new_again_after_ten_seconds(
    fabric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, draw_plan = [100.0], frames.draw_plan

    def slow(plan: Any) -> Any:
        now_s[0] += 5.0
        return draw_plan(plan)

    monkeypatch.setattr(live_fabric, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(frames, "draw_plan", slow)
    live, fleet = made(), list(fabric.fleet())
    nics = [record for record in fleet if record[0] == "fabric.inventory"]
    fill(live.state, *nics[:7])
    drawn_nics = []
    for at_s in (105.0, 114.0, 116.0):
        now_s[0] = max(now_s[0], at_s)
        live.subscribe(lambda parts: None)
        drawn_nics.append(len(live.drawn.plan.nics))
        fill(live.state, *fleet)
    assert drawn_nics == [7, 7, 8]


def test_tabs_share_the_deepest_queues_until_one_changes(fabric: Any) -> None:
    live, link = made(), fabric.up("leaf1", 1)
    fill(live.state, *fabric.fleet())
    live.subscribe(lambda parts: None)
    fill(live.state, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 9.0}})))
    rows = live.deepest_rows("queue")
    assert [row["id"] for row in rows] == [link]
    assert live.deepest_rows("queue") is rows
    fill(live.state, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 0.0}})))
    assert live.deepest_rows("queue") == []


@pytest.mark.parametrize(("share", "is_shared"), [(0, False), (10**9, True)])
def test_tabs_share_one_overview_until_health_changes(
    fabric: Any, monkeypatch: pytest.MonkeyPatch, share: int, is_shared: bool
) -> None:
    """After a change, it is computed anew, unless computing took a large share of the time so far."""
    monkeypatch.setattr(live_fabric, "OVERVIEW_SHARE", share)
    live = made()
    live.log_now_ns = lambda: 5 * 10**9
    first = live.overview(CURRENT)
    assert live.overview(CURRENT) is first
    alert = fabric.alert("h1", "h1 is down", kind="HOST_DOWN")
    live.state.take("fabric.alerts", alert["alert_id"], alert, fabric.now_ns)
    assert (live.overview(CURRENT) is first) == is_shared

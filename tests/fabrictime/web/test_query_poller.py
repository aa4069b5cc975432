"""How often history is asked: once per view, never twice at once, not at all when nobody watches."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fabrictime.web import query_poller as hub_module
from fabrictime.web.history_client import HistoryDown
from fabrictime.web.query_poller import QueryPoller, Snapshot


@pytest.fixture
async def hub() -> AsyncIterator[QueryPoller]:
    made = QueryPoller(refresh_s=0.02)
    yield made
    await made.close()


async def reached(condition: Any, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "deadline"
        await asyncio.sleep(0.005)


async def test_ten_viewers_cost_one_query_loop(hub: QueryPoller) -> None:
    calls = 0

    def fetch() -> int:
        nonlocal calls
        calls += 1
        return calls

    seen: list[list[int | None]] = [[] for _ in range(10)]
    for mine in seen:
        hub.subscribe("view", fetch, lambda snapshot, mine=mine: mine.append(snapshot.value))
    await reached(lambda: len(seen[0]) >= 5)
    assert seen[0] == list(range(1, len(seen[0]) + 1))
    assert all(mine == seen[0] for mine in seen)
    assert calls - len(seen[0]) <= 1
    assert hub.views == 1


async def test_a_late_viewer_gets_the_last_answer_at_once(hub: QueryPoller) -> None:
    first: list[Any] = []
    hub.subscribe("view", lambda: "answer", lambda s: first.append(s.value))
    await reached(lambda: first)
    late: list[Any] = []
    hub.subscribe("view", lambda: "never asked", lambda s: late.append(s.value))
    assert late == ["answer"]


async def test_slow_queries_do_not_pile_up_and_leave_history_time(hub: QueryPoller) -> None:
    running, most, spans = 0, 0, []
    lock = threading.Lock()

    def fetch() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        start = time.monotonic()
        time.sleep(0.05)
        spans.append((start, time.monotonic()))
        with lock:
            running -= 1

    hub.subscribe("slow", fetch, lambda s: None)
    await reached(lambda: len(spans) >= 3)
    assert most == 1
    pauses = [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    assert min(pauses) >= 0.05 * (1 / hub_module.BUSY_SHARE - 1) * 0.9


async def test_a_view_nobody_watches_is_dropped(hub: QueryPoller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LINGER_S", 0.05)
    seen: list[Any] = []
    end = hub.subscribe("view", lambda: 1, seen.append)
    await reached(lambda: seen)
    end()
    end()  # twice does no harm
    await reached(lambda: hub.views == 0)
    polls = hub.polls
    hub.subscribe("other", lambda: 1, seen.append)
    await reached(lambda: hub.polls > polls)
    assert hub.views == 1


async def test_a_failure_keeps_the_last_value_and_says_since_when(hub: QueryPoller) -> None:
    up = True

    def fetch() -> str:
        if not up:
            raise HistoryDown("history at x does not answer")
        return "value"

    seen: list[Snapshot[str]] = []
    hub.subscribe("view", fetch, seen.append)
    await reached(lambda: seen)
    up = False
    await reached(lambda: seen[-1].error and sum(s.error is not None for s in seen) >= 2)
    failing = [s for s in seen if s.error]
    assert failing[-1].value == "value"
    assert failing[0].failing_s == failing[-1].failing_s
    up = True
    await reached(lambda: seen[-1].error is None)
    assert seen[-1].failing_s is None


async def test_a_broken_view_or_viewer_stops_nobody_else(
    hub: QueryPoller, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    def bad_viewer(snapshot: Any) -> None:
        raise RuntimeError("a closed tab")

    seen: list[Any] = []
    hub.subscribe("view", lambda: 1, bad_viewer)
    hub.subscribe("view", lambda: 1, seen.append)
    failures: list[Any] = []
    hub.subscribe("broken", broken, failures.append)
    await reached(lambda: len(seen) >= 3 and len(failures) >= 2)
    assert "ZeroDivisionError: a bug" in str(failures[-1].error)
    assert "a closed tab" in caplog.text

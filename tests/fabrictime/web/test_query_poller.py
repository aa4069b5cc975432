"""Polling of history queries: one loop per query, never two at once, none without subscribers."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fabrictime.web import query_poller
from fabrictime.web.history_client import HistoryDown, HistoryError
from fabrictime.web.query_poller import QueryPoller, Snapshot


@pytest.fixture
async def poller() -> AsyncIterator[QueryPoller]:
    made = QueryPoller(refresh_s=0.02)
    yield made
    await made.close()


async def reached(condition: Any, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "deadline"
        await asyncio.sleep(0.005)


async def test_ten_subscribers_cost_one_query_loop(poller: QueryPoller) -> None:
    calls = 0

    def fetch() -> int:
        nonlocal calls
        calls += 1
        return calls

    seen: list[list[int | None]] = [[] for _ in range(10)]
    for mine in seen:
        poller.subscribe("query", fetch, lambda snapshot, mine=mine: mine.append(snapshot.value))
    await reached(lambda: len(seen[0]) >= 5)
    assert seen[0] == list(range(1, len(seen[0]) + 1))
    assert all(mine == seen[0] for mine in seen)
    assert calls - len(seen[0]) <= 1
    assert poller.queries == 1


async def test_a_late_subscriber_gets_the_last_answer_at_once(poller: QueryPoller) -> None:
    first: list[Any] = []
    poller.subscribe("query", lambda: "answer", lambda s: first.append(s.value))
    await reached(lambda: first)
    late: list[Any] = []
    poller.subscribe("query", lambda: "never queried", lambda s: late.append(s.value))
    assert late == ["answer"]


async def test_a_subscriber_that_leaves_and_comes_back_waits_for_no_period(
    poller: QueryPoller,
) -> None:
    """A page subscribes for its first paint, and again when its browser has connected."""
    poller.subscribe("query", lambda: "answer", lambda _: None, period_s=3600.0)()
    await asyncio.sleep(0)
    answers: list[Any] = []
    poller.subscribe("query", lambda: "another", lambda snapshot: answers.append(snapshot.value))
    await reached(lambda: answers)
    assert answers == ["answer"]


async def test_slow_queries_neither_pile_up_nor_occupy_the_history(poller: QueryPoller) -> None:
    running, peak, spans = 0, 0, []
    lock = threading.Lock()

    def fetch() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        start = time.monotonic()
        time.sleep(0.05)
        spans.append((start, time.monotonic()))
        with lock:
            running -= 1

    poller.subscribe("slow", fetch, lambda s: None)
    await reached(lambda: len(spans) >= 3)
    assert peak == 1
    pauses = [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    assert min(pauses) >= 0.05 * (1 / query_poller.BUSY_SHARE - 1) * 0.9


async def test_a_query_without_subscribers_is_dropped(
    poller: QueryPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_poller, "LINGER_S", 0.05)
    seen: list[Any] = []
    unsubscribe = poller.subscribe("query", lambda: 1, seen.append)
    await reached(lambda: seen)
    unsubscribe()
    unsubscribe()  # a second call has no effect
    await reached(lambda: poller.queries == 0)
    polls = poller.polls
    poller.subscribe("other", lambda: 1, seen.append)
    await reached(lambda: poller.polls > polls)
    assert poller.queries == 1


async def test_a_failure_keeps_the_last_value_and_its_start(poller: QueryPoller) -> None:
    up = True

    def fetch() -> str:
        if not up:
            raise HistoryDown("history at x does not answer")
        return "value"

    seen: list[Snapshot[str]] = []
    poller.subscribe("query", fetch, seen.append)
    await reached(lambda: seen)
    up = False
    await reached(lambda: seen[-1].error and sum(s.error is not None for s in seen) >= 2)
    failing = [s for s in seen if s.error]
    assert failing[-1].value == "value"
    assert failing[0].failing_s == failing[-1].failing_s
    up = True
    await reached(lambda: seen[-1].error is None)
    assert seen[-1].failing_s is None


async def test_a_broken_query_or_subscriber_stops_no_other(
    poller: QueryPoller, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    def bad_subscriber(snapshot: Any) -> None:
        raise RuntimeError("a closed tab")

    seen: list[Any] = []
    poller.subscribe("query", lambda: 1, bad_subscriber)
    poller.subscribe("query", lambda: 1, seen.append)
    failures: list[Any] = []
    poller.subscribe("broken", broken, failures.append)
    await reached(lambda: len(seen) >= 3 and len(failures) >= 2)
    assert "ZeroDivisionError: a bug" in str(failures[-1].error)
    assert "a closed tab" in caplog.text


async def test_a_log_that_did_not_answer_in_time_is_asked_again_before_the_period_ends(
    poller: QueryPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_poller, "RETRY_S", 0.02)
    answers: list[Any] = [HistoryDown("too slow"), HistoryDown("too slow"), "answer"]

    def fetch() -> str:
        answer = answers.pop(0)
        if isinstance(answer, HistoryDown):
            raise answer
        return str(answer)

    seen: list[Snapshot[str]] = []
    poller.subscribe("evidence", fetch, seen.append, 60.0)
    await reached(lambda: seen and seen[-1].value == "answer")
    assert [snapshot.error is not None for snapshot in seen] == [True, True, False]


async def test_an_answer_that_there_is_nothing_is_kept_for_the_period(
    poller: QueryPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_poller, "RETRY_S", 0.02)

    def fetch() -> None:
        raise HistoryError("no record")

    seen: list[Snapshot[None]] = []
    poller.subscribe("evidence", fetch, seen.append, 60.0)
    await reached(lambda: seen)
    await asyncio.sleep(0.2)
    assert len(seen) == 1

"""Polls history once per distinct view, however many tabs watch it.

In: views (a name, a function of history) that tabs subscribe to. Out: a Snapshot per view, pushed to its
subscribers when it changes. A view's next poll starts only after its last one ended, and later when that
one was slow, so slow queries neither pile up nor fill history's time. Runs in one event loop; the queries
run in a small thread pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fabrictime.web.history_client import HistoryError, QueryFailed

T = TypeVar("T")

log = logging.getLogger(__name__)

THREADS = 4
LINGER_S = 3.0
"""A view without subscribers is kept this long: a reload finds its data at once."""

BUSY_SHARE = 0.25
"""A view queries history for at most this share of the time."""


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """What a view last saw. `value` is None before the first answer and outlives later failures.

    `version` counts answers; `answered_s` and `failing_s` are monotonic seconds, None: never, not failing.
    """

    value: T | None = None
    version: int = 0
    error: HistoryError | None = None
    answered_s: float | None = None
    failing_s: float | None = None
    query_s: float = 0.0


@dataclass(eq=False, slots=True)
class View(Generic[T]):
    """One question that is asked again and again while somebody watches."""

    fetch: Callable[[], T]
    every_s: float
    snapshot: Snapshot[T] = field(default_factory=Snapshot)
    subscribers: list[Callable[[Snapshot[T]], None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class QueryPoller:
    """The views of this process."""

    def __init__(self, refresh_s: float) -> None:
        self.polls = 0
        self._refresh_s = refresh_s
        self._views: dict[Hashable, View[Any]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._closed = False

    def subscribe(
        self,
        key: Hashable,
        fetch: Callable[[], T],
        callback: Callable[[Snapshot[T]], None],
        every_s: float = 0.0,
    ) -> Callable[[], None]:
        """Call `callback` with the view's snapshot now and at each poll; return how to end it.

        `fetch` asks history and may block. It and `every_s`, the least time from poll to poll where that is
        above the hub's, are used where `key` has no view yet.
        """
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(fetch, max(every_s, self._refresh_s))
        view.subscribers.append(callback)
        if view.task is None or view.task.done():
            view.task = asyncio.get_running_loop().create_task(self._poll(key, view))
        if view.snapshot.version or view.snapshot.error:
            _tell(callback, view.snapshot)

        def end() -> None:
            with contextlib.suppress(ValueError):
                view.subscribers.remove(callback)

        return end

    @property
    def views(self) -> int:
        """Number of distinct views that are being polled."""
        return len(self._views)

    async def close(self) -> None:
        """End all polls; queries that run are left to their own time-out."""
        self._closed = True
        tasks = [view.task for view in self._views.values() if view.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _poll(self, key: Hashable, view: View[Any]) -> None:
        loop = asyncio.get_running_loop()
        idle_since: float | None = None
        while not self._closed:
            now = time.monotonic()
            if view.subscribers:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now - idle_since > LINGER_S:
                break
            if view.subscribers:
                self.polls += 1
                view.snapshot = await loop.run_in_executor(self._pool, _ask, view.fetch, view.snapshot)
                for callback in tuple(view.subscribers):
                    _tell(callback, view.snapshot)
            took_s = time.monotonic() - now
            pause_s = max(view.every_s - took_s, view.snapshot.query_s * (1 / BUSY_SHARE - 1), 0.02)
            await asyncio.sleep(min(pause_s, 60.0))
        del self._views[key]


def _tell(callback: Callable[[Snapshot[Any]], None], snapshot: Snapshot[Any]) -> None:
    try:
        callback(snapshot)
    except Exception:
        log.exception("a tab could not take %s", type(snapshot.value).__name__)


def _ask(fetch: Callable[[], Any], before: Snapshot[Any]) -> Snapshot[Any]:
    start = time.monotonic()
    try:
        value = fetch()
    except Exception as failure:
        error = (
            failure
            if isinstance(failure, HistoryError)
            else QueryFailed(f"{type(failure).__name__}: {failure}")
        )
        if error is not failure:
            log.exception("a view failed")
        return Snapshot(
            before.value,
            before.version,
            error,
            before.answered_s,
            start if before.failing_s is None else before.failing_s,
        )
    end = time.monotonic()
    return Snapshot(value, before.version + 1, None, end, None, end - start)

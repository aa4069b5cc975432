"""Polls the history once per distinct query, however many tabs watch it.

Tabs subscribe to a query by a key and a function. A query is polled again only after its previous poll ended,
and later if that poll was slow. So slow queries neither pile up nor occupy the history. The poller runs in
one event loop; the queries run in a small thread pool.
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

from fabrictime.web.history_client import HistoryDown, HistoryError, QueryFailed

T = TypeVar("T")

log = logging.getLogger(__name__)

THREADS = 4
LINGER_S = 3.0
"""How long a query without subscribers is kept, so that a reload finds its data at once."""
BUSY_SHARE = 0.25
"""Largest share of the time for which one query may run."""
MAX_PAUSE_S = 60.0
RETRY_S = 2.0
"""Pause before the next query after a history or log did not answer in time, s, whatever the period."""


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """The newest result of a query. `value` is None before the first result, and a failed query keeps it.

    `version` counts results. `answered_s` is the monotonic time of the newest result, None before the first.
    `failing_s` is the monotonic time since which the query fails, None while it works.
    """

    value: T | None = None
    version: int = 0
    error: HistoryError | None = None
    answered_s: float | None = None
    failing_s: float | None = None
    query_s: float = 0.0


@dataclass(eq=False, slots=True)
class PolledQuery(Generic[T]):
    """A query that runs repeatedly while it has subscribers."""

    fetch: Callable[[], T]
    period_s: float
    snapshot: Snapshot[T] = field(default_factory=Snapshot)
    subscribers: list[Callable[[Snapshot[T]], None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class QueryPoller:
    """Polls the queries to which tabs of this process subscribe."""

    def __init__(self, refresh_s: float) -> None:
        self.polls = 0
        self._refresh_s = refresh_s
        self._queries: dict[Hashable, PolledQuery[Any]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._closed = False

    def subscribe(
        self,
        key: Hashable,
        fetch: Callable[[], T],
        callback: Callable[[Snapshot[T]], None],
        period_s: float = 0.0,
    ) -> Callable[[], None]:
        """Call `callback` with the query's snapshot after each poll, and at once if there already is a
        snapshot. Return the function that unsubscribes it.

        `fetch` runs the query and may block. `period_s` lengthens the poller's own period. Both arguments are
        used only if `key` is new.
        """
        query = self._queries.get(key)
        if query is None:
            query = self._queries[key] = PolledQuery(fetch, max(period_s, self._refresh_s))
        query.subscribers.append(callback)
        if query.task is None or query.task.done():
            query.task = asyncio.get_running_loop().create_task(self._poll(key, query))
        if query.snapshot.version or query.snapshot.error:
            _notify(callback, query.snapshot)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                query.subscribers.remove(callback)

        return unsubscribe

    @property
    def queries(self) -> int:
        """Number of distinct queries that are polled."""
        return len(self._queries)

    async def close(self) -> None:
        """End all polls. A query that is running ends by its own time-out."""
        self._closed = True
        tasks = [query.task for query in self._queries.values() if query.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _poll(self, key: Hashable, query: PolledQuery[Any]) -> None:
        loop = asyncio.get_running_loop()
        idle_since: float | None = None
        is_new = True  # a page subscribes for its first paint, and again when its browser has connected
        while not self._closed:
            now = time.monotonic()
            if query.subscribers:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now - idle_since > LINGER_S:
                break
            if query.subscribers or is_new:
                is_new = False
                self.polls += 1
                query.snapshot = await loop.run_in_executor(self._pool, _run, query.fetch, query.snapshot)
                for callback in tuple(query.subscribers):
                    _notify(callback, query.snapshot)
            took_s = time.monotonic() - now
            failed = isinstance(query.snapshot.error, HistoryDown)
            period_s = min(query.period_s, RETRY_S) if failed else query.period_s
            pause_s = max(period_s - took_s, query.snapshot.query_s * (1 / BUSY_SHARE - 1), 0.02)
            await asyncio.sleep(min(pause_s, MAX_PAUSE_S))
        del self._queries[key]


def _notify(callback: Callable[[Snapshot[Any]], None], snapshot: Snapshot[Any]) -> None:
    try:
        callback(snapshot)
    except Exception:
        log.exception("a tab failed to show %s", type(snapshot.value).__name__)


def _run(fetch: Callable[[], Any], before: Snapshot[Any]) -> Snapshot[Any]:
    start = time.monotonic()
    try:
        value = fetch()
    except Exception as failure:
        if isinstance(failure, HistoryError):
            error: HistoryError = failure
        else:
            error = QueryFailed(f"{type(failure).__name__}: {failure}")
            log.exception("a query failed")
        failing_s = start if before.failing_s is None else before.failing_s
        return Snapshot(before.value, before.version, error, before.answered_s, failing_s)
    end = time.monotonic()
    return Snapshot(value, before.version + 1, None, end, None, end - start)

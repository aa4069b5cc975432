"""Runs the history queries of all tabs, with a cache of their results.

Every query ends at the newest window of the history and not at the current time. Thus the page shows the last
state of a stopped pipeline, and its age.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

from fabrictime.web.history_client import History
from fabrictime.web.history_sql import END, SECOND_NS, SINCE, START, rows
from schemas import tables
from schemas.validation import MAX_NS

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

ENDS_KEPT_S = 0.15
"""How long the ends of the tables are reused, s."""
PAST_ENDS_KEPT_S = 5.0
"""The same for a past moment, s."""
PAST_BACK_NS = 60 * SECOND_NS
"""How far before a past moment its newest window is searched, ns."""
WINDOW_KEPT_S = 30.0
"""How long a table's window length is reused, s."""
MAX_RESULTS = 48
"""Largest number of results in the cache."""
MOMENTS_KEPT = 6
"""Number of past moments whose readers are kept, so that tabs and reloads share their results."""


@dataclass(frozen=True, slots=True)
class TableEnd:
    """A table's number of rows before merging, and the end of its newest window in ns; None for an empty
    table.

    A cached result is valid until the `TableEnd` of one of the query's tables changes.
    """

    rows: int
    end_ns: int | None


Ends = Mapping[str, TableEnd]
"""`TableEnd` by table. The ends of `delays_1s` and `clocks` are in fabric time, that of `pipeline` in log
append time.
"""


class HistoryReader:
    """A history with a cache of results. Thread-safe."""

    def __init__(
        self, history: History, now_ns: Callable[[], int] = time.time_ns, until_ns: int = MAX_NS
    ) -> None:
        """Read `history`. Queries ignore windows from `until_ns` on, to show the history as it was then."""
        self.until_ns = until_ns
        self._history = history
        self.database = history.database
        self.columns = history.columns
        self.now_ns = now_ns
        self._lock, self._moments_lock = threading.Lock(), threading.Lock()
        self._ends: tuple[float, Ends] = -1e9, {}
        self._windows: dict[str, tuple[float, int]] = {}
        self._results: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._moments: OrderedDict[int, HistoryReader] = OrderedDict()

    def at(self, moment_ns: int) -> HistoryReader:
        """Return a reader of the history as it was at `moment_ns`."""
        with self._moments_lock:  # `_lock` is held during queries
            reader = self._moments.pop(moment_ns, None)
            reader = reader or HistoryReader(self._history, lambda: moment_ns, moment_ns)
            self._moments[moment_ns] = reader
            if len(self._moments) > MOMENTS_KEPT:
                self._moments.popitem(last=False)
            return reader

    def ends(self) -> Ends:
        """Return the `TableEnd` of each table, from a short-lived cache."""
        with self._lock:
            queried_s, ends = self._ends
            kept_s = ENDS_KEPT_S if self.until_ns == MAX_NS else PAST_ENDS_KEPT_S
            if time.monotonic() - queried_s > kept_s:
                starts = table_starts(self, self.until_ns)
                ends = {table: TableEnd(count, self._end_ns(table, at)) for table, count, at in starts}
                self._ends = time.monotonic(), ends
            return ends

    def age_s(self, end: TableEnd) -> float | None:
        """Return the age of a table's newest window by this machine's clock, s; None for an empty table."""
        return None if end.end_ns is None else max(0.0, (self.now_ns() - end.end_ns) / 1e9)

    def cached(self, key: Hashable, state: Hashable, query: Callable[[], T]) -> T:
        """Return the cached result for `key` if it was stored with this `state`, else run the query and store
        its result.
        """
        with self._lock:
            cached_result = self._results.get(key)
        if cached_result is not None and cached_result[0] == state:
            result: T = cached_result[1]
            return result
        result = query()
        with self._lock:
            self._results[key] = (state, result)
            self._results.move_to_end(key)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)
        return result

    def _end_ns(self, table: str, start_ns: int | None) -> int | None:
        if start_ns is None:
            return None
        queried_s, length_ns = self._windows.get(table, (-1e9, 0))
        if time.monotonic() - queried_s > WINDOW_KEPT_S:
            length_ns = window_ns(self, table, start_ns)
            self._windows[table] = (time.monotonic(), length_ns)
        return start_ns + length_ns


def until_changed(
    *names: str,
) -> Callable[[Callable[[HistoryReader, Ends, *Arguments], T]], Callable[[HistoryReader, *Arguments], T]]:
    """Return a decorator that caches a query's result until a table in `names` has new rows. The query
    receives the ends of all tables.
    """

    def decorate(
        query: Callable[[HistoryReader, Ends, *Arguments], T],
    ) -> Callable[[HistoryReader, *Arguments], T]:
        @wraps(query)
        def run(history: HistoryReader, *arguments: *Arguments) -> T:
            ends = history.ends()
            state = tuple(ends[name] for name in names)
            return history.cached((query, *arguments), state, lambda: query(history, ends, *arguments))

        return run

    return decorate


def kept_for(
    kept_s: float,
) -> Callable[[Callable[[HistoryReader, *Arguments], T]], Callable[[HistoryReader, *Arguments], T]]:
    """Return a decorator that caches a query's result for `kept_s` seconds."""

    def decorate(query: Callable[[HistoryReader, *Arguments], T]) -> Callable[[HistoryReader, *Arguments], T]:
        @wraps(query)
        def run(history: HistoryReader, *arguments: *Arguments) -> T:
            period = int(time.monotonic() / kept_s)
            return history.cached((query, *arguments), period, lambda: query(history, *arguments))

        return run

    return decorate


def table_starts(history: History, until_ns: int = MAX_NS) -> list[tuple[str, int, int | None]]:
    """Return (table, number of rows, start of the newest window in ns) for each table. The query reads only
    part metadata, so its cost does not depend on the size. With `until_ns`, it reads the rows of the minute
    before.
    """
    select = "SELECT '{0}', count(), toUnixTimestamp64Nano(max(window_start)) FROM {1}.{0}"
    select += "" if until_ns == MAX_NS else " WHERE {2}"
    names = (tables.DELAYS_1S, tables.CLOCKS, tables.PIPELINE)
    sql = " UNION ALL ".join(select.format(table, history.database, SINCE) for table in names)
    return [
        (table, int(count), int(start_ns) if count else None)
        for table, count, start_ns in rows(history, sql, since_ns=until_ns - PAST_BACK_NS, until_ns=until_ns)
    ]


def window_ns(history: History, table: str, start_ns: int) -> int:
    """Return the length of the longest window from `start_ns` on, ns. Raises ValueError if the table has no
    such window.
    """
    sql = f"SELECT count(), max({END} - {START}) FROM {history.database}.{table} WHERE {SINCE}"
    windows, length = next(rows(history, sql, since_ns=start_ns))
    if not windows:
        raise ValueError(f"{table}: no window from {start_ns} ns on, expected the newest one")
    return int(length)

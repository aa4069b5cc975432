"""SQL queries on the history tables that the live page and Grafana's dashboards share.

A `Dialect` holds the differences between the two: the page binds parameters, Grafana expands macros. Page and
dashboards select their own columns and order from the queries built here.

A window that was computed again overwrites its rows only at the next merge. So rows are read with FINAL, or
with an aggregate that ignores repeated rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas import tables


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL with which the page or Grafana expresses a query's time range and the time step of a series."""

    database: str
    in_range: str
    """Condition that `window_start` is in the time range."""
    step: str
    """Expression for the start of the step that contains a window."""

    def rows(self, table: str, *conditions: str, time: str = "window_start", final: str = " FINAL") -> str:
        """Return FROM and WHERE clauses for a table's rows in the time range. `time`: the column to limit."""
        source = f"{self.database}.{table}{final}"
        if time != "window_start":
            source = f"(SELECT *, {time} AS window_start FROM {source})"
        return f"FROM {source} WHERE {' AND '.join((self.in_range, *conditions))}"


MAX_BOUND_RTTS: Final = 20
"""A one-way delay counts as unknown if its error bound exceeds this many round-trip times. That is normal
while clocks start from the hosts' system clocks."""
USABLE: Final = "state != 'UNSYNCED'"
"""Condition that a clock's solution has a meaningful offset and bound."""
RESULT_LEVEL: Final = "if(status = 'FAILED', severity, status)"
"""Expression for the level of an audit's result: ERROR or WARNING if failed, else its status."""


def unknown_delay(rtt: str) -> str:
    """Return the SQL condition for an unknown one-way delay. `rtt`: SQL of the round-trip time's column."""
    return f"ifNull(bound_ns > {MAX_BOUND_RTTS} * {rtt}, 0)"


def known_delays(rows: str, direction: str) -> str:
    """Return a query of `delays_1s` without unknown one-way delays. `rows`: its FROM and WHERE clauses."""
    empty = {f"{direction}_bucket": "[]", f"{direction}_bucket_count": "[]", f"{direction}_min_ns": "NULL"}
    replacements = ", ".join(
        f"if({unknown_delay('rtt_min_ns')}, {none}, {column}) AS {column}" for column, none in empty.items()
    )
    return f"SELECT * REPLACE ({replacements}) {rows}"


def pairs(rows: str, direction: str) -> str:
    """Return a query of the delays of each pair of NICs, with its paths merged, sorted by name.

    `rows`: a FROM clause on `known_delays`.

    p50 and p99 come from merged histograms, so they are exact to a bucket: 25% at worst, 10% typically.
    """
    merged, low = tables.merged_sql(direction), f"{direction}_min_ns"
    p50, p99 = tables.quantile_sql(0.5, "merged"), tables.quantile_sql(0.99, "merged")
    return (
        f"SELECT nic, peer, samples, all_lost, loss, low_ns, greatest({p50}, low_ns) AS p50_ns, "
        f"greatest({p99}, low_ns) AS p99_ns, rtt_ns, error_ns, end_ns FROM ("
        "SELECT nic, peer, sum(count) AS samples, sum(lost) AS all_lost, "
        f"max(lost / greatest(lost + count, 1)) AS loss, min({low}) AS low_ns, {merged} AS merged, "
        f"min(rtt_min_ns) AS rtt_ns, maxIf(bound_ns, NOT {unknown_delay('rtt_min_ns')}) AS error_ns, "
        f"max(toUnixTimestamp64Nano(window_end)) AS end_ns {rows} GROUP BY nic, peer) ORDER BY nic, peer"
    )


def newest_clocks(dialect: Dialect) -> str:
    """Return a query of each clock's newest solution in the range, with its number of events."""
    names = ("offset_ns", "bound_ns", "drift_ppb", "drift_sigma_ppb", "residual_ns", "pairs")
    figures = ", ".join(f"argMax({name}, window) AS {name}" for name in names)
    return (
        "SELECT clock, shard, argMax(domain, window) AS domain, toString(argMax(state, window)) AS state, "
        f"{figures}, countIf(event != 'NONE') AS events, argMax(reference, window) AS follows, "
        f"max(window_end) AS updated {dialect.rows(tables.CLOCKS)} GROUP BY shard, clock"
    )


def clock_fleet(dialect: Dialect) -> str:
    """Return a query of the states, bounds and residuals of all clocks, a row per step, the oldest first.

    In each step a clock counts with its worst state, widest bound and largest residual. UNSYNCED clocks have
    neither bound nor residual; if all clocks are UNSYNCED, these are NULL.
    """
    usable = "worst != 'UNSYNCED'"
    figures = {
        kind: ", ".join(
            f"if(synced + holdover > 0, {kind}_ns[{at}], NULL) AS {kind}_{name}_ns"
            for at, name in enumerate(names, start=1)
        )
        for kind, names in (("bound", ("p50", "p90", "p99", "max")), ("residual", ("p50", "p99", "max")))
    }
    return (
        f"SELECT time, synced, holdover, unsynced, {figures['bound']}, bound_clock, {figures['residual']}, "
        "residual_clock FROM (SELECT time, countIf(worst = 'SYNCED') AS synced, "
        "countIf(worst = 'HOLDOVER') AS holdover, countIf(worst = 'UNSYNCED') AS unsynced, "
        f"quantilesExactIf(0.5, 0.9, 0.99, 1)(bound, {usable}) AS bound_ns, "
        f"argMaxIf(clock, bound, {usable}) AS bound_clock, "
        f"quantilesExactIf(0.5, 0.99, 1)(residual, {usable}) AS residual_ns, "
        f"argMaxIf(clock, residual, {usable}) AS residual_clock "
        f"FROM (SELECT {dialect.step} AS time, shard, clock, min(state) AS worst, max(bound_ns) AS bound, "
        f"max(residual_ns) AS residual {dialect.rows(tables.CLOCKS)} GROUP BY time, shard, clock) "
        "GROUP BY time) ORDER BY time"
    )


def clock_states(dialect: Dialect, limit: int, *conditions: str) -> str:
    """Return a query of the worst state per step, for at most `limit` clocks.

    The query selects the clocks that were out of SYNCED for longest, then those with most events.
    """
    rows = dialect.rows(tables.CLOCKS, *conditions)
    return (
        f"SELECT {dialect.step} AS time, clock, min(state) AS worst {rows} AND clock IN (SELECT clock {rows} "
        "GROUP BY clock ORDER BY countIf(state != 'SYNCED') DESC, countIf(event != 'NONE') DESC, clock "
        f"LIMIT {limit}) GROUP BY time, clock"
    )


def clock_events(dialect: Dialect, per_kind: int, limit: int, *conditions: str) -> str:
    """Return a query of the events of clocks, the newest first, with at most `per_kind` events of each kind.

    At a worker's start every clock is NEW; the limit per kind keeps these events from hiding others.
    """
    return (
        "SELECT window_start, clock, shard, toString(event) AS event, event_ns, toString(state) AS state "
        f"{dialect.rows(tables.CLOCKS, *conditions)} AND event != 'NONE' "
        f"ORDER BY window_start DESC, shard, clock LIMIT {per_kind} BY event LIMIT {limit}"
    )


def suspects(dialect: Dialect, newest: bool = False) -> str:
    """Return a query of the suspect pairs in the time range, the most asymmetric first.

    With `newest`, the query selects only the pairs in each shard's newest window.
    """
    windows = f"SELECT shard, max(window) {dialect.rows(tables.CLOCKS, final='')} GROUP BY shard"
    return (
        "SELECT prober, peer, argMax(asymmetry_ns, window) AS asymmetry_ns, "
        "argMax(sigma_ns, window) AS sigma_ns, argMax(weight, window) AS weight, "
        "uniqExact(window) AS windows, min(window_start) AS since, max(window_end) AS until, shard "
        f"{dialect.rows(tables.SUSPECTS)} GROUP BY prober, peer, shard "
        + f"HAVING (shard, max(window)) IN ({windows}) " * newest
        + "ORDER BY abs(asymmetry_ns) DESC, prober, peer"
    )


def nic_windows(dialect: Dialect) -> str:
    """Return a query of each NIC's sums over its windows in the time range."""
    return (
        "SELECT nic, sum(samples) AS samples, sum(lost) AS lost, sum(batches) AS batches, "
        "sum(lost_batches) AS lost_batches, sum(restarts) AS restarts, "
        "countIf(clock_jump_ns != 0) AS clock_jumps, max(abs(clock_jump_ns)) AS largest_jump_ns, "
        f"max(window_end) AS last_window {dialect.rows(tables.NIC_WINDOWS)} GROUP BY nic"
    )


def rejects(database: str, in_range: str, limit: int) -> str:
    """Return a query of rejected messages, the newest first. `in_range`: SQL condition on `append_ns`."""
    return (
        "SELECT append_ns, topic, partition, offset, reader, reason, detail, size_bytes "
        f"FROM {database}.{tables.REJECTS} FINAL WHERE {in_range} "
        f"ORDER BY append_ns DESC, topic, partition, offset DESC LIMIT {limit}"
    )


def newest_results(rows: str, columns: Sequence[str]) -> str:
    """Return a query of the newest audit result of each host and check: host, check, level, `columns`, time.

    `rows`: FROM and WHERE clauses. FINAL is not needed, because repeated rows have the same result.
    """
    names = ", ".join(f"newest.{at} AS {name}" for at, name in enumerate(columns, start=2))
    return (
        f"SELECT host, check, newest.1 AS level, {names}, at FROM (SELECT host, check, "
        f"argMax(({RESULT_LEVEL}, {', '.join(columns)}), (checked, recorded_ns)) AS newest, "
        f"max(checked) AS at {rows} GROUP BY host, check)"
    )

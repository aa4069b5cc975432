"""The SQL behind the panels, with the ClickHouse plugin's macros; the tests run each on a filled chdb.

In: nothing. Out: query texts. Delays and clocks carry fabric time, pipeline rows the log's append time.
Tables are read with FINAL, since a window that was computed again overwrites its rows only at the next
merge.
"""

from __future__ import annotations

from typing import Final

from schemas import tables

_DB: Final = tables.DATABASE
_IN_RANGE: Final = "$__timeFilter(window_start)"
_TIME: Final = "$__timeInterval(window_start) AS time"
_NICS: Final = "nic IN (${nic:singlequote})"
_PEERS: Final = "peer IN (${peer:singlequote})"
_CLOCKS: Final = "clock IN (${clock:singlequote})"
_MOST_PAIRS: Final = 4096
_MOST_SERIES: Final = 20
_P99: Final = tables.quantile_sql(0.99, "merged")
_P50: Final = tables.quantile_sql(0.5, "merged")
_MERGED: Final = f"{tables.merged_sql('forward')} AS merged"


def _from(table: str, *conditions: str) -> str:
    where = " AND ".join((_IN_RANGE, *conditions))
    return f"FROM {_DB}.{table} FINAL WHERE {where}"


_ROLLUP: Final = _from(tables.DELAYS_1S)
_CHOSEN: Final = _from(tables.DELAYS_1S, _NICS, _PEERS)

NIC_VALUES: Final = f"SELECT DISTINCT nic {_ROLLUP} ORDER BY nic"
PEER_VALUES: Final = f"SELECT DISTINCT peer {_from(tables.DELAYS_1S, _NICS)} ORDER BY peer"
CLOCK_VALUES: Final = f"SELECT DISTINCT clock {_from(tables.CLOCKS)} ORDER BY clock"

PAIRS: Final = f"SELECT uniqExact(nic, peer) AS pairs {_ROLLUP}"
SAMPLES: Final = (
    "SELECT sum(count) / greatest(1, dateDiff('second', min(window_start), max(window_end))) AS samples "
    f"{_ROLLUP}"
)
LOSS: Final = f"SELECT sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss {_ROLLUP}"
FLEET_P99: Final = f"SELECT {_P99} AS p99_ns FROM (SELECT {_MERGED} {_ROLLUP})"

DELAY_SPREAD: Final = (
    f"SELECT time, toString(round({tables.bucket_edge_sql('bucket + 1')})) AS le, sum(samples) AS samples "
    f"FROM (SELECT {_TIME}, arrayJoin(arrayZip(forward_bucket, forward_bucket_count)) AS z, "
    f"z.1 AS bucket, z.2 AS samples {_CHOSEN}) GROUP BY time, bucket ORDER BY time, bucket"
)
PAIR_MATRIX: Final = (
    f"SELECT nic, peer, round({_P99}) AS p99_ns FROM (SELECT nic, peer, {_MERGED} {_CHOSEN} "
    f"GROUP BY nic, peer) ORDER BY nic, peer LIMIT {_MOST_PAIRS}"
)
PAIR_SERIES: Final = (
    f"SELECT time, concat(nic, ' > ', peer) AS pair, {_P99} AS p99_ns "
    f"FROM (SELECT {_TIME}, nic, peer, {_MERGED} "
    f"{_CHOSEN} AND (nic, peer) IN (SELECT nic, peer FROM (SELECT nic, peer, {_MERGED} {_CHOSEN} "
    f"GROUP BY nic, peer) ORDER BY {_P99} DESC LIMIT {_MOST_SERIES}) GROUP BY time, nic, peer) "
    "ORDER BY time, pair"
)
LOSS_SERIES: Final = (
    f"SELECT {_TIME}, sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss {_CHOSEN} "
    "GROUP BY time ORDER BY time"
)
WORST_PATHS: Final = (
    "SELECT nic, peer, path, max(forward_p99_ns) AS worst_p99_ns, avg(forward_p50_ns) AS mean_p50_ns, "
    "min(forward_min_ns) AS min_ns, max(bound_ns) AS bound_ns, "
    "sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY nic, peer, path "
    f"ORDER BY worst_p99_ns DESC NULLS LAST LIMIT 50"
)
PATH_SERIES: Final = (
    f"SELECT {_TIME}, concat(nic, ' > ', peer, ' ', toString(path)) AS way, max(forward_p99_ns) AS p99_ns "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} AND (nic, peer, path) IN (SELECT nic, peer, path "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY nic, peer, path "
    f"ORDER BY max(forward_p99_ns) DESC NULLS LAST "
    f"LIMIT {_MOST_SERIES}) GROUP BY time, way ORDER BY time, way"
)

CLOCK_COUNT: Final = (
    "SELECT countIf(newest = 'SYNCED') AS synced, countIf(newest = 'HOLDOVER') AS holdover, "
    "countIf(newest = 'UNSYNCED') AS unsynced FROM (SELECT clock, argMax(state, window) AS newest "
    f"{_from(tables.CLOCKS)} GROUP BY clock)"
)
WORST_BOUND: Final = (
    "SELECT max(newest) AS bound_ns FROM (SELECT clock, argMax(bound_ns, window) AS newest "
    f"{_from(tables.CLOCKS)} AND state != 'UNSYNCED' GROUP BY clock)"
)
CLOCK_OFFSETS: Final = (
    "SELECT time, clock, moved - any_first AS offset_change_ns FROM ("
    f"SELECT {_TIME}, clock, avg(offset_ns) AS moved, "
    f"first_value(moved) OVER (PARTITION BY clock ORDER BY time) "
    f"AS any_first {_from(tables.CLOCKS, _CLOCKS)} GROUP BY time, clock) ORDER BY time, clock"
)
CLOCK_BOUNDS: Final = (
    f"SELECT {_TIME}, clock, max(bound_ns) AS bound_ns {_from(tables.CLOCKS, _CLOCKS)} "
    "GROUP BY time, clock ORDER BY time, clock"
)
CLOCK_BAND: Final = (
    f"SELECT {_TIME}, avg(residual_ns) AS residual_ns, quantile(0.5)(bound_ns) AS bound_p50_ns, "
    f"max(bound_ns) AS bound_max_ns {_from(tables.CLOCKS, _CLOCKS)} GROUP BY time ORDER BY time"
)
CLOCK_DRIFT: Final = (
    f"SELECT {_TIME}, clock, avg(drift_ppb) AS drift_ppb {_from(tables.CLOCKS, _CLOCKS)} "
    "GROUP BY time, clock ORDER BY time, clock"
)
CLOCK_TABLE: Final = (
    "SELECT clock, shard, argMax(domain, window) AS domain, toString(argMax(state, window)) AS state, "
    "argMax(offset_ns, window) AS offset_ns, argMax(bound_ns, window) AS bound_ns, "
    "argMax(drift_ppb, window) AS drift_ppb, argMax(residual_ns, window) AS residual_ns, "
    f"argMax(pairs, window) AS pairs, max(window_end) AS updated {_from(tables.CLOCKS)} "
    "GROUP BY shard, clock ORDER BY bound_ns DESC"
)

MESSAGES: Final = (
    f"SELECT {_TIME}, sum(messages) / $__interval_s AS messages, sum(samples) / $__interval_s AS samples "
    f"{_from(tables.PIPELINE)} AND part = 0 GROUP BY time ORDER BY time"
)
LAG: Final = (
    f"SELECT {_TIME}, source, max(lag_messages) AS lag_messages {_from(tables.PIPELINE)} AND part = 0 "
    "GROUP BY time, source ORDER BY time, source"
)
LATENESS: Final = (
    f"SELECT {_TIME}, quantile(0.5)(late_ms) AS p50_ms, quantile(0.99)(late_ms) AS p99_ms FROM ("
    "SELECT window_start, (recorded_ns - toUnixTimestamp64Nano(window_end)) / 1e6 AS late_ms "
    f"{_from(tables.PIPELINE)} AND part = 0) GROUP BY time ORDER BY time"
)
FAULTS: Final = (
    f"SELECT {_TIME}, sum(late) AS late, sum(rejected) AS rejected {_from(tables.PIPELINE)} AND part = 0 "
    "GROUP BY time ORDER BY time"
)
NIC_TABLE: Final = (
    "SELECT nic, sum(samples) AS samples, sum(lost) AS lost, sum(batches) AS batches, "
    "sum(lost_batches) AS lost_batches, sum(restarts) AS restarts, max(abs(clock_jump_ns)) AS clock_jump_ns, "
    f"max(window_end) AS last_window {_from(tables.NIC_WINDOWS)} GROUP BY nic "
    "ORDER BY lost_batches + restarts DESC, nic LIMIT 500"
)
REJECTS: Final = (
    "SELECT fromUnixTimestamp64Nano(append_ns, 'UTC') AS time, topic, "
    "partition, offset, reader, reason, detail "
    f"FROM {_DB}.{tables.REJECTS} FINAL WHERE append_ns >= toUnixTimestamp64Milli($__fromTime_ms) * 1000000 "
    "AND append_ns <= toUnixTimestamp64Milli($__toTime_ms) * 1000000 ORDER BY append_ns DESC LIMIT 200"
)

"""The SQL behind the panels, with the ClickHouse plugin's macros; the tests run each on a filled chdb.

In: nothing. Out: query texts. Delays and clocks carry fabric time, pipeline rows the log's append time.
Tables are read with FINAL, since a window that was computed again overwrites its rows only at the next
merge.
"""

from __future__ import annotations

from typing import Final

from schemas import tables

_DB: Final = tables.DATABASE
IN_RANGE: Final = "$__timeFilter(window_start)"
TIME: Final = "$__timeInterval(window_start) AS time"
_NICS: Final = "nic IN (${nic:singlequote})"
_PEERS: Final = "peer IN (${peer:singlequote})"
_CLOCKS: Final = "clock IN (${clock:singlequote})"
_MAX_PAIRS: Final = 4096
_MAX_SERIES: Final = 20
_P99: Final = tables.quantile_sql(0.99, "merged")
_P50: Final = tables.quantile_sql(0.5, "merged")
_MERGED: Final = f"{tables.merged_sql('forward')} AS merged"


def _from(table: str, *conditions: str) -> str:
    where = " AND ".join((IN_RANGE, *conditions))
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
    f"FROM (SELECT {TIME}, arrayJoin(arrayZip(forward_bucket, forward_bucket_count)) AS z, "
    f"z.1 AS bucket, z.2 AS samples {_CHOSEN}) GROUP BY time, bucket ORDER BY time, bucket"
)
PAIR_MATRIX: Final = (
    f"SELECT nic, peer, round({_P99}) AS p99_ns FROM (SELECT nic, peer, {_MERGED} {_CHOSEN} "
    f"GROUP BY nic, peer) ORDER BY nic, peer LIMIT {_MAX_PAIRS}"
)
PAIR_SERIES: Final = (
    f"SELECT time, concat(nic, ' > ', peer) AS pair, {_P99} AS p99_ns "
    f"FROM (SELECT {TIME}, nic, peer, {_MERGED} "
    f"{_CHOSEN} AND (nic, peer) IN (SELECT nic, peer FROM (SELECT nic, peer, {_MERGED} {_CHOSEN} "
    f"GROUP BY nic, peer) ORDER BY {_P99} DESC LIMIT {_MAX_SERIES}) GROUP BY time, nic, peer) "
    "ORDER BY time, pair"
)
LOSS_SERIES: Final = (
    f"SELECT {TIME}, sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss {_CHOSEN} "
    "GROUP BY time ORDER BY time"
)
WORST_PATHS: Final = (
    "SELECT nic, peer, path, dscp, max(forward_p99_ns) AS worst_p99_ns, avg(forward_p50_ns) AS mean_p50_ns, "
    "min(forward_min_ns) AS min_ns, max(bound_ns) AS bound_ns, "
    "sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss, sum(forward_ce) / sum(ecn) AS forward_ce, "
    "sum(reverse_ce) / sum(ecn) AS reverse_ce "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY nic, peer, path, dscp "
    f"ORDER BY worst_p99_ns DESC NULLS LAST LIMIT 50"
)
CE_SERIES: Final = (
    f"SELECT {TIME}, concat('DSCP ', toString(dscp)) AS class, "
    "(sum(forward_ce) + sum(reverse_ce)) / greatest(1, 2 * sum(ecn)) AS ce "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY time, class ORDER BY time, class"
)
CLASS_SERIES: Final = (
    f"SELECT {TIME}, concat('DSCP ', toString(dscp)) AS class, max(forward_p99_ns) AS p99_ns "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY time, class ORDER BY time, class"
)
PATH_SERIES: Final = (
    f"SELECT {TIME}, concat(nic, ' > ', peer, ' ', toString(path)) AS way, max(forward_p99_ns) AS p99_ns "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} AND (nic, peer, path) IN (SELECT nic, peer, path "
    f"{_from(tables.DELAYS, _NICS, _PEERS)} GROUP BY nic, peer, path "
    f"ORDER BY max(forward_p99_ns) DESC NULLS LAST "
    f"LIMIT {_MAX_SERIES}) GROUP BY time, way ORDER BY time, way"
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
    f"SELECT {TIME}, clock, avg(beyond + offset_fraction_ns) AS moved, "
    "first_value(moved) OVER (PARTITION BY clock ORDER BY time) AS any_first FROM ("
    "SELECT *, offset_ns - first_value(offset_ns) OVER (PARTITION BY clock ORDER BY window) AS beyond "
    f"{_from(tables.CLOCKS, _CLOCKS)}) GROUP BY time, clock) ORDER BY time, clock"
)
CLOCK_BOUNDS: Final = (
    f"SELECT {TIME}, clock, max(bound_ns) AS bound_ns {_from(tables.CLOCKS, _CLOCKS)} "
    "GROUP BY time, clock ORDER BY time, clock"
)
CLOCK_BAND: Final = (
    f"SELECT {TIME}, avg(residual_ns) AS residual_ns, quantile(0.5)(bound_ns) AS bound_p50_ns, "
    f"max(bound_ns) AS bound_max_ns {_from(tables.CLOCKS, _CLOCKS)} GROUP BY time ORDER BY time"
)
CLOCK_DRIFT: Final = (
    f"SELECT {TIME}, clock, avg(drift_ppb) AS drift_ppb {_from(tables.CLOCKS, _CLOCKS)} "
    "GROUP BY time, clock ORDER BY time, clock"
)
CLOCK_TABLE: Final = (
    "SELECT clock, shard, argMax(domain, window) AS domain, toString(argMax(state, window)) AS state, "
    "argMax(offset_ns, window) AS offset_ns, argMax(bound_ns, window) AS bound_ns, "
    "argMax(drift_ppb, window) AS drift_ppb, argMax(drift_sigma_ppb, window) AS drift_sigma_ppb, "
    "argMax(residual_ns, window) AS residual_ns, argMax(pairs, window) AS pairs, "
    "countIf(event != 'NONE') AS events, argMax(reference, window) AS follows, max(window_end) AS updated "
    f"{_from(tables.CLOCKS)} GROUP BY shard, clock ORDER BY bound_ns DESC"
)
_USABLE: Final = "state != 'UNSYNCED'"
BOUND_SPREAD: Final = (
    f"SELECT {TIME}, quantile(0.5)(bound_ns) AS p50_ns, quantile(0.99)(bound_ns) AS p99_ns, "
    f"max(bound_ns) AS widest_ns {_from(tables.CLOCKS, _USABLE)} GROUP BY time ORDER BY time"
)
CLOCK_STATES: Final = (
    "SELECT time, countIf(worst = 'SYNCED') AS synced, countIf(worst = 'HOLDOVER') AS holdover, "
    f"countIf(worst = 'UNSYNCED') AS unsynced FROM (SELECT {TIME}, shard, clock, min(state) AS worst "
    f"{_from(tables.CLOCKS)} GROUP BY time, shard, clock) GROUP BY time ORDER BY time"
)
STATE_ROWS: Final = (
    f"SELECT {TIME}, clock, min(toInt8(state)) AS state_number {_from(tables.CLOCKS, _CLOCKS)} "
    f"AND clock IN (SELECT clock {_from(tables.CLOCKS, _CLOCKS)} GROUP BY clock "
    "ORDER BY countIf(state != 'SYNCED') DESC, countIf(event != 'NONE') DESC, clock "
    f"LIMIT {_MAX_SERIES}) GROUP BY time, clock ORDER BY time, clock"
)
CLOCK_EVENTS: Final = (
    "SELECT window_start AS time, clock, shard, toString(event) AS event, "
    "if(event = 'RATE_CHANGE', NULL, event_ns) AS moved_ns, "
    "if(event = 'RATE_CHANGE', event_ns, NULL) AS rate_ppb, "
    f"toString(state) AS state {_from(tables.CLOCKS, _CLOCKS)} AND event != 'NONE' "
    "ORDER BY time DESC, shard, clock LIMIT 100 BY event LIMIT 500"
)
RESIDUAL_SPREAD: Final = (
    f"SELECT {TIME}, quantile(0.5)(residual_ns) AS p50_ns, quantile(0.99)(residual_ns) AS p99_ns, "
    f"max(residual_ns) AS worst_ns {_from(tables.CLOCKS, _USABLE)} GROUP BY time ORDER BY time"
)
WORST_RESIDUALS: Final = (
    f"SELECT {TIME}, clock, max(residual_ns) AS residual_ns {_from(tables.CLOCKS, _CLOCKS)} "
    f"AND clock IN (SELECT clock {_from(tables.CLOCKS, _CLOCKS)} GROUP BY clock "
    f"ORDER BY max(residual_ns) DESC, clock LIMIT {_MAX_SERIES}) GROUP BY time, clock ORDER BY time, clock"
)
SUSPECT_COUNT: Final = (
    "SELECT uniqExact(prober, peer) AS suspects "
    f"{_from(tables.SUSPECTS)} AND (shard, window) IN (SELECT shard, max(window) {_from(tables.CLOCKS)} "
    "GROUP BY shard)"
)
SUSPECTS: Final = (
    "SELECT prober, peer, argMax(asymmetry_ns, window) AS asymmetry_ns, "
    "argMax(sigma_ns, window) AS sigma_ns, argMax(weight, window) AS weight, "
    "uniqExact(window) AS windows, min(window_start) AS since, "
    f"max(window_end) AS until {_from(tables.SUSPECTS)} GROUP BY prober, peer "
    "ORDER BY abs(asymmetry_ns) DESC, prober, peer LIMIT 200"
)
SUSPECT_SERIES: Final = (
    f"SELECT {TIME}, concat(prober, ' > ', peer) AS pair, avg(asymmetry_ns) AS asymmetry_ns "
    f"{_from(tables.SUSPECTS)} AND (prober, peer) IN (SELECT prober, peer {_from(tables.SUSPECTS)} "
    f"GROUP BY prober, peer ORDER BY max(abs(asymmetry_ns)) DESC, prober, peer LIMIT {_MAX_SERIES}) "
    "GROUP BY time, pair ORDER BY time, pair"
)

MESSAGES: Final = (
    f"SELECT {TIME}, sum(messages) / $__interval_s AS messages, sum(samples) / $__interval_s AS samples "
    f"{_from(tables.PIPELINE)} AND part = 0 GROUP BY time ORDER BY time"
)
LAG: Final = (
    f"SELECT {TIME}, source, max(lag_messages) AS lag_messages {_from(tables.PIPELINE)} AND part = 0 "
    "GROUP BY time, source ORDER BY time, source"
)
LATENESS: Final = (
    f"SELECT {TIME}, quantile(0.5)(late_ms) AS p50_ms, quantile(0.99)(late_ms) AS p99_ms FROM ("
    "SELECT window_start, (recorded_ns - toUnixTimestamp64Nano(window_end)) / 1e6 AS late_ms "
    f"{_from(tables.PIPELINE)} AND part = 0) GROUP BY time ORDER BY time"
)
FAULTS: Final = (
    f"SELECT {TIME}, sum(late) AS late, sum(rejected) AS rejected {_from(tables.PIPELINE)} AND part = 0 "
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

_LINK_STATES: Final = (
    "SELECT subject, toString(state) AS said, toInt8(state) AS number, since, text, flaps_hour, detected_by, "
    "arrayFilter((dscp, is_lossy) -> is_lossy, class_dscp, class_is_lossy) AS lossy_dscps, "
    "greatest(since, toDateTime64($__fromTime, 9, 'UTC')) AS begin, "
    "if(ahead > since, least(ahead, toDateTime64($__toTime, 9, 'UTC')), toDateTime64($__toTime, 9, 'UTC')) "
    "AS ends FROM (SELECT *, leadInFrame(since) OVER (PARTITION BY subject ORDER BY seq "
    f"ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS ahead FROM {_DB}.{tables.LINK_HEALTH} FINAL) "
    "WHERE since <= $__toTime AND ends >= $__fromTime"
)
"""States that a cable, NIC or host was in within the range, each until the next one began."""
LINK_COUNT: Final = (
    "SELECT countIf(newest = 4) AS down, countIf(newest = 3) AS flapping, countIf(newest = 2) AS grey "
    f"FROM (SELECT subject, argMax(number, since) AS newest FROM ({_LINK_STATES}) GROUP BY subject)"
)
LINK_ROWS: Final = (
    "SELECT toDateTime(at) AS time, subject, max(number) AS state_number FROM (SELECT subject, number, "
    "arrayJoin(range(intDiv(toUnixTimestamp(begin), $__interval_s) * $__interval_s, "
    f"toUnixTimestamp(ends) + 1, $__interval_s)) AS at FROM ({_LINK_STATES})) "
    f"WHERE subject IN (SELECT subject FROM ({_LINK_STATES}) GROUP BY subject HAVING max(number) > 1 "
    f"ORDER BY max(number) DESC, count() DESC, subject LIMIT {_MAX_SERIES}) "
    "GROUP BY time, subject ORDER BY time, subject"
)
LINK_TABLE: Final = (
    "SELECT subject, argMax(said, since) AS state, max(since) AS began, argMax(flaps_hour, since) AS flaps, "
    "argMax(detected_by, since) AS seen_by, "
    "arrayStringConcat(arrayMap(dscp -> toString(dscp), argMax(lossy_dscps, since)), ', ') AS lossy_dscps, "
    "argMax(text, since) AS words "
    f"FROM ({_LINK_STATES}) GROUP BY subject HAVING max(number) > 1 "
    "ORDER BY argMax(number, since) DESC, began DESC LIMIT 200"
)
_FLAPS: Final = (
    "FROM (SELECT DISTINCT subject, fromUnixTimestamp64Nano(arrayJoin(flap_ns), 'UTC') AS window_start "
    f"FROM {_DB}.{tables.LINK_HEALTH} FINAL) WHERE {IN_RANGE}"
)
FLAP_COUNT: Final = f"SELECT count() AS flaps {_FLAPS}"
FLAP_SERIES: Final = (
    f"SELECT {TIME}, subject, count() AS flaps {_FLAPS} AND subject IN (SELECT subject {_FLAPS} "
    f"GROUP BY subject ORDER BY count() DESC, subject LIMIT {_MAX_SERIES}) "
    "GROUP BY time, subject ORDER BY time, subject"
)
_QUEUES: Final = _from(tables.LINK_QUEUES)
QUEUE_SPREAD: Final = (
    "SELECT time, toString(le_bytes) AS le, count() AS links FROM ("
    f"SELECT {TIME}, toUInt64(exp2(ceil(log2(greatest(depth_max_bytes, 64.))))) AS le_bytes {_QUEUES}) "
    "GROUP BY time, le_bytes ORDER BY time, le_bytes"
)
QUEUE_SERIES: Final = (
    f"SELECT {TIME}, link, max(depth_mean_bytes) AS depth_bytes {_QUEUES} "
    f"AND link IN (SELECT link {_QUEUES} GROUP BY link ORDER BY max(depth_mean_bytes) DESC, link "
    f"LIMIT {_MAX_SERIES}) "
    "GROUP BY time, link ORDER BY time, link"
)
LOAD_SERIES: Final = (
    f"SELECT {TIME}, link, avg(utilisation) AS utilisation {_QUEUES} AND link IN (SELECT link {_QUEUES} "
    f"GROUP BY link ORDER BY avg(utilisation) DESC NULLS LAST, link LIMIT {_MAX_SERIES}) "
    "GROUP BY time, link ORDER BY time, link"
)
_CONTENTION: Final = (
    f"FROM (SELECT *, opened AS window_start FROM {_DB}.{tables.CONTENTION} FINAL) WHERE opened <= $__toTime "
    "AND (closed_ns IS NULL OR closed_ns >= toUnixTimestamp64Milli($__fromTime_ms) * 1000000)"
)
CONTENTION_COUNT: Final = f"SELECT countIf(state != 'CLOSED') AS standing {_CONTENTION}"
CONTENTION_SERIES: Final = (
    f"SELECT {TIME}, kind, count() AS windows {_CONTENTION} AND {IN_RANGE} "
    "GROUP BY time, kind ORDER BY time, kind"
)
CONTENTION_TABLE: Final = (
    "SELECT opened, link, kind, state, (coalesce(closed_ns, updated_ns) - toUnixTimestamp64Nano(opened)) "
    "AS lasted_ns, detected_by, ce_share, dscp, depth_peak_bytes, delay_ns, over_byte_s, "
    "flows_total AS flows, "
    f"arrayStringConcat(jobs, ', ') AS jobs_named, text {_CONTENTION} "
    "ORDER BY state = 'CLOSED', over_byte_s DESC LIMIT 200"
)
_ALERTS: Final = (
    f"FROM {_DB}.{tables.ALERTS} FINAL WHERE raised <= $__toTime "
    "AND (cleared_ns IS NULL OR cleared_ns >= toUnixTimestamp64Milli($__fromTime_ms) * 1000000)"
)
ALERT_COUNT: Final = f"SELECT countIf(state != 'CLEARED') AS standing {_ALERTS}"
ALERT_TABLE: Final = (
    "SELECT raised, severity, kind, state, text, arrayStringConcat(links, ', ') AS on_links, "
    "arrayStringConcat(jobs, ', ') AS jobs_named, fromUnixTimestamp64Nano(cleared_ns, 'UTC') AS cleared, "
    f"arrayStringConcat(evidence_text, '; ') AS evidence {_ALERTS} "
    "ORDER BY state = 'CLEARED', raised DESC LIMIT 200"
)
FLOW_TABLE: Final = (
    "SELECT job, nic, peer, flow_id, avg(rate_bps) AS rate_bps, max(retransmits) AS retransmits, "
    "max(rtt_ns) AS rtt_ns, arrayStringConcat(argMax(links, reported), ' ') AS way FROM ("
    f"SELECT *, reported AS window_start FROM {_DB}.{tables.FLOWS} FINAL) WHERE {IN_RANGE} "
    "GROUP BY job, nic, peer, flow_id ORDER BY rate_bps DESC LIMIT 100"
)

_DECIDED: Final = (
    f"FROM (SELECT *, decided AS window_start FROM {_DB}.{tables.DECISIONS} FINAL) WHERE {IN_RANGE}"
)
_DONE: Final = f"FROM (SELECT *, done AS window_start FROM {_DB}.{tables.ACTIONS} FINAL) WHERE {IN_RANGE}"
_DOES: Final = "('APPLIED', 'LOCAL_REPAIR')"
DECISION_COUNT: Final = f"SELECT count() AS decisions {_DECIDED}"
DONE_SHARE: Final = (
    f"SELECT countIf(outcome IN {_DOES}) / count() AS done {_DONE} "
    "AND outcome NOT IN ('DUPLICATE', 'ENDED', 'REVERTED')"
)
DECISION_SERIES: Final = (
    f"SELECT {TIME}, reason_kind AS reason, count() AS decisions {_DECIDED} "
    "GROUP BY time, reason ORDER BY time, reason"
)
OUTCOME_SERIES: Final = (
    f"SELECT {TIME}, outcome, count() AS reports {_DONE} GROUP BY time, outcome ORDER BY time, outcome"
)
_ANSWERED: Final = (
    "(SELECT decisions.decided AS window_start, (toUnixTimestamp64Nano(actions.done) - "
    "toUnixTimestamp64Nano(decisions.decided)) AS all_ns, actions.took_ns AS effector_ns "
    f"FROM (SELECT decision_id, decided FROM {_DB}.{tables.DECISIONS} FINAL) AS decisions "
    "INNER JOIN (SELECT decision_id, done, took_ns "
    f"FROM {_DB}.{tables.ACTIONS} FINAL WHERE outcome = 'APPLIED') AS actions USING (decision_id))"
)
"""Decisions that were carried out: how long that took, and the effector's part of it."""
TAKEN_P99: Final = f"SELECT quantile(0.99)(all_ns) AS p99_ns FROM {_ANSWERED} WHERE {IN_RANGE}"
TAKEN_SERIES: Final = (
    f"SELECT {TIME}, quantile(0.5)(all_ns) AS p50_ns, quantile(0.99)(all_ns) AS p99_ns, "
    f"quantile(0.99)(effector_ns) AS effector_p99_ns FROM {_ANSWERED} WHERE {IN_RANGE} "
    "GROUP BY time ORDER BY time"
)
MEANS_SERIES: Final = (
    f"SELECT {TIME}, how, count() AS reports {_DONE} AND how != '' GROUP BY time, how ORDER BY time, how"
)
MAX_MOVED: Final = (
    "SELECT flow_id, count() AS decisions, uniqExact(to_path) AS paths, "
    "arrayStringConcat(arraySort(groupUniqArray(reason_kind)), ', ') AS reasons, max(decided) AS last_time "
    f"{_DECIDED} GROUP BY flow_id ORDER BY decisions DESC, flow_id LIMIT 100"
)
DECISION_TABLE: Final = (
    "SELECT decisions.decided AS decided_at, decisions.flow_id AS flow, decisions.action AS action_wanted, "
    "decisions.reason_kind AS reason, decisions.reason_subject AS answers, decisions.from_path AS from_port, "
    "decisions.to_path AS to_port, decisions.rate_bps AS held_to_bps, answers.outcomes AS outcomes, "
    "answers.how AS done_by, answers.took_ns AS effector_ns, answers.detail AS detail, "
    "decisions.decision_id AS decision "
    f"FROM (SELECT * {_DECIDED}) AS decisions LEFT JOIN (SELECT decision_id, "
    "arrayStringConcat(groupArray(outcome), ', ') AS outcomes, max(how) AS how, max(took_ns) AS took_ns, "
    f"max(detail) AS detail FROM {_DB}.{tables.ACTIONS} FINAL GROUP BY decision_id) AS answers "
    "ON decisions.decision_id = answers.decision_id ORDER BY decided_at DESC LIMIT 300"
)

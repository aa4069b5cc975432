"""The SQL queries of the panels, with the ClickHouse plugin's macros. Tests run each of them in chdb.

Rows of delays and clocks have fabric time, rows of the pipeline have the log's append time. `schemas.queries`
has the queries that the live page uses too.
"""

from __future__ import annotations

from typing import Final

from schemas import queries, tables

_DB: Final = tables.DATABASE
IN_RANGE: Final = "$__timeFilter(window_start)"
GRAFANA: Final = queries.Dialect(_DB, IN_RANGE, "$__timeInterval(window_start)")
TIME: Final = f"{GRAFANA.step} AS time"
MAX_SERIES: Final = 20


def chosen(expression: str, variable: str) -> str:
    """Return the SQL condition that `expression` is among the viewer's selected values; '' selects all."""
    values = f"${{{variable}:singlequote}}"
    return f"(has([{values}], '') OR {expression} IN ({values}))"


_RACK, _RAIL = "ifNull(rack, 'none')", "ifNull(toString(rail), 'none')"
_ELSEWHERE: Final = (
    f"FROM {_DB}.{tables.NICS} FINAL WHERE NOT ({chosen(_RACK, 'rack')} AND {chosen(_RAIL, 'rail')})"
)
"""The NICs that are not in the chosen racks and rails. A NIC that the inventory lacks counts as chosen."""
_PLACED: Final = f"nic NOT IN (SELECT nic {_ELSEWHERE})"
_NICS: Final = f"{chosen('nic', 'nic')} AND {_PLACED}"
_PEERS: Final = chosen("peer", "peer")
_PLACED_CLOCKS: Final = f"clock NOT IN (SELECT clock {_ELSEWHERE})"
_CLOCKS: Final = f"{chosen('clock', 'clock')} AND {_PLACED_CLOCKS}"
_MAX_PAIRS: Final = 4096
_P99: Final = tables.quantile_sql(0.99, "merged")
_MERGED: Final = f"{tables.merged_sql('forward')} AS merged"
_from: Final = GRAFANA.rows


def series(figures: str, rows: str, by: str = "") -> str:
    """Return the query of a time series of the columns `figures`; with `by`, one series per value of `by`."""
    names = f"time, {by.rpartition(' AS ')[2]}" if by else "time"
    columns = ", ".join(filter(None, (TIME, by, figures)))
    return f"SELECT {columns} {rows} GROUP BY {names} ORDER BY {names}"


def top(key: str, order: str, rows: str) -> str:
    """Return the SQL condition that `key` is among the first `MAX_SERIES` values in the given order."""
    return f"AND ({key}) IN (SELECT {key} {rows} GROUP BY {key} ORDER BY {order} LIMIT {MAX_SERIES})"


_ROLLUP: Final = _from(tables.DELAYS_1S)
_CHOSEN: Final = _from(tables.DELAYS_1S, _NICS, _PEERS)
_PATHS: Final = _from(tables.DELAYS, _NICS, _PEERS)
_CLASS: Final = "concat('DSCP ', toString(dscp)) AS class"
_LOSS: Final = "sum(lost) / greatest(1, sum(lost) + sum(count)) AS loss"

RACK_VALUES: Final = (
    f"SELECT DISTINCT arrayJoin(['none', {_RACK}]) AS racks FROM {_DB}.{tables.NICS} FINAL ORDER BY racks"
)
RAIL_VALUES: Final = (
    f"SELECT DISTINCT arrayJoin(['none', {_RAIL}]) AS rails FROM {_DB}.{tables.NICS} FINAL ORDER BY rails"
)
NIC_VALUES: Final = f"SELECT DISTINCT nic {_from(tables.DELAYS_1S, _PLACED)} ORDER BY nic"
PEER_VALUES: Final = f"SELECT DISTINCT peer {_from(tables.DELAYS_1S, _NICS)} ORDER BY peer"
CLOCK_VALUES: Final = f"SELECT DISTINCT clock {_from(tables.CLOCKS, _PLACED_CLOCKS)} ORDER BY clock"

PAIRS: Final = f"SELECT uniqExact(nic, peer) AS pairs {_ROLLUP}"
SAMPLES: Final = (
    "SELECT sum(count) / greatest(1, dateDiff('second', min(window_start), max(window_end))) AS samples "
    f"{_ROLLUP}"
)
LOSS: Final = f"SELECT {_LOSS} {_ROLLUP}"
FLEET_P99: Final = f"SELECT {_P99} AS p99_ns FROM (SELECT {_MERGED} {_ROLLUP})"

DELAY_SPREAD: Final = (
    f"SELECT time, toString(round({tables.bucket_edge_sql('bucket + 1')})) AS le, sum(samples) AS samples "
    f"FROM (SELECT {TIME}, arrayJoin(arrayZip(forward_bucket, forward_bucket_count)) AS z, "
    f"z.1 AS bucket, z.2 AS samples {_CHOSEN}) GROUP BY time, bucket ORDER BY time, bucket"
)
_KNOWN: Final = f"FROM ({queries.known_delays(_CHOSEN, 'forward')})"
PAIR_MATRIX: Final = (
    "SELECT nic, peer, round(p99_ns) AS p99_ns "
    f"FROM ({queries.pairs(_KNOWN, 'forward')}) ORDER BY nic, peer LIMIT {_MAX_PAIRS}"
)
PAIR_SERIES: Final = (
    f"SELECT time, concat(nic, ' > ', peer) AS pair, {_P99} AS p99_ns "
    f"FROM (SELECT {TIME}, nic, peer, {_MERGED} "
    f"{_CHOSEN} AND (nic, peer) IN (SELECT nic, peer FROM (SELECT nic, peer, {_MERGED} {_CHOSEN} "
    f"GROUP BY nic, peer) ORDER BY {_P99} DESC LIMIT {MAX_SERIES}) GROUP BY time, nic, peer) "
    "ORDER BY time, pair"
)
LOSS_SERIES: Final = series(_LOSS, _CHOSEN)
WORST_PATHS: Final = (
    "SELECT nic, peer, path, dscp, max(forward_p99_ns) AS worst_p99_ns, avg(forward_p50_ns) AS mean_p50_ns, "
    "min(forward_min_ns) AS min_ns, max(bound_ns) AS bound_ns, "
    f"{_LOSS}, sum(forward_ce) / sum(ecn) AS forward_ce, "
    "sum(reverse_ce) / sum(ecn) AS reverse_ce "
    f"{_PATHS} GROUP BY nic, peer, path, dscp "
    "ORDER BY worst_p99_ns DESC NULLS LAST LIMIT 50"
)
CE_SERIES: Final = series(
    "(sum(forward_ce) + sum(reverse_ce)) / greatest(1, 2 * sum(ecn)) AS ce", _PATHS, _CLASS
)
CLASS_SERIES: Final = series("max(forward_p99_ns) AS p99_ns", _PATHS, _CLASS)
PATH_SERIES: Final = series(
    "max(forward_p99_ns) AS p99_ns",
    f"{_PATHS} {top('nic, peer, path', 'max(forward_p99_ns) DESC NULLS LAST', _PATHS)}",
    "concat(nic, ' > ', peer, ' ', toString(path)) AS way",
)

_NEWEST_CLOCKS: Final = queries.newest_clocks(GRAFANA)
_CLOCK_FLEET: Final = queries.clock_fleet(GRAFANA)
_CHOSEN_CLOCKS: Final = _from(tables.CLOCKS, _CLOCKS)
CLOCK_COUNT: Final = (
    "SELECT countIf(state = 'SYNCED') AS synced, countIf(state = 'HOLDOVER') AS holdover, "
    f"countIf(state = 'UNSYNCED') AS unsynced FROM ({_NEWEST_CLOCKS})"
)
WORST_BOUND: Final = f"SELECT max(bound_ns) AS bound_ns FROM ({_NEWEST_CLOCKS}) WHERE {queries.USABLE}"
CLOCK_OFFSETS: Final = (
    "SELECT time, clock, moved - any_first AS offset_change_ns FROM ("
    f"SELECT {TIME}, clock, avg(beyond + offset_fraction_ns) AS moved, "
    "first_value(moved) OVER (PARTITION BY clock ORDER BY time) AS any_first FROM ("
    "SELECT *, offset_ns - first_value(offset_ns) OVER (PARTITION BY clock ORDER BY window) AS beyond "
    f"{_CHOSEN_CLOCKS}) GROUP BY time, clock) ORDER BY time, clock"
)
CLOCK_BOUNDS: Final = series("max(bound_ns) AS bound_ns", _CHOSEN_CLOCKS, "clock")
CLOCK_BAND: Final = series(
    "avg(residual_ns) AS residual_ns, quantile(0.5)(bound_ns) AS bound_p50_ns, max(bound_ns) AS bound_max_ns",
    _CHOSEN_CLOCKS,
)
CLOCK_DRIFT: Final = series("avg(drift_ppb) AS drift_ppb", _CHOSEN_CLOCKS, "clock")
CLOCK_TABLE: Final = f"{_NEWEST_CLOCKS} ORDER BY bound_ns DESC"
BOUND_SPREAD: Final = (
    "SELECT time, bound_p50_ns AS p50_ns, bound_p99_ns AS p99_ns, bound_max_ns AS widest_ns "
    f"FROM ({_CLOCK_FLEET}) ORDER BY time"
)
CLOCK_STATES: Final = f"SELECT time, synced, holdover, unsynced FROM ({_CLOCK_FLEET}) ORDER BY time"
RESIDUAL_SPREAD: Final = (
    "SELECT time, residual_p50_ns AS p50_ns, residual_p99_ns AS p99_ns, residual_max_ns AS worst_ns "
    f"FROM ({_CLOCK_FLEET}) ORDER BY time"
)
STATE_ROWS: Final = (
    "SELECT time, clock, toInt8(worst) AS state_number "
    f"FROM ({queries.clock_states(GRAFANA, MAX_SERIES, _CLOCKS)}) ORDER BY time, clock"
)
CLOCK_EVENTS: Final = (
    "SELECT window_start AS time, clock, shard, event, "
    "if(event = 'RATE_CHANGE', NULL, event_ns) AS moved_ns, "
    "if(event = 'RATE_CHANGE', event_ns, NULL) AS rate_ppb, state "
    f"FROM ({queries.clock_events(GRAFANA, 100, 500, _CLOCKS)}) ORDER BY time DESC, shard, clock"
)
WORST_RESIDUALS: Final = series(
    "max(residual_ns) AS residual_ns",
    f"{_CHOSEN_CLOCKS} {top('clock', 'max(residual_ns) DESC, clock', _CHOSEN_CLOCKS)}",
    "clock",
)
SUSPECT_COUNT: Final = f"SELECT count() AS suspects FROM ({queries.suspects(GRAFANA, newest=True)})"
SUSPECTS: Final = f"{queries.suspects(GRAFANA)} LIMIT 200"
_SUSPECTS: Final = _from(tables.SUSPECTS)
SUSPECT_SERIES: Final = series(
    "avg(asymmetry_ns) AS asymmetry_ns",
    f"{_SUSPECTS} {top('prober, peer', 'max(abs(asymmetry_ns)) DESC, prober, peer', _SUSPECTS)}",
    "concat(prober, ' > ', peer) AS pair",
)

_FIRST_PARTS: Final = _from(tables.PIPELINE, "part = 0")
MESSAGES: Final = series(
    "sum(messages) / $__interval_s AS messages, sum(samples) / $__interval_s AS samples", _FIRST_PARTS
)
LAG: Final = series("max(lag_messages) AS lag_messages", _FIRST_PARTS, "source")
LATENESS: Final = series(
    "quantile(0.5)(late_ms) AS p50_ms, quantile(0.99)(late_ms) AS p99_ms",
    "FROM (SELECT window_start, (recorded_ns - toUnixTimestamp64Nano(window_end)) / 1e6 AS late_ms "
    f"{_FIRST_PARTS})",
)
FAULTS: Final = series("sum(late) AS late, sum(rejected) AS rejected", _FIRST_PARTS)
NIC_TABLE: Final = f"{queries.nic_windows(GRAFANA)} ORDER BY lost_batches + restarts DESC, nic LIMIT 500"
_APPENDED: Final = " AND ".join(
    f"append_ns {sign} toUnixTimestamp64Milli($__{end}Time_ms) * 1000000"
    for sign, end in ((">=", "from"), ("<=", "to"))
)
REJECTS: Final = (
    "SELECT fromUnixTimestamp64Nano(append_ns, 'UTC') AS time, topic, partition, offset, reader, reason, "
    f"detail FROM ({queries.rejects(_DB, _APPENDED, 200)})"
)


def _cable(link: str) -> str:
    return f"arrayStringConcat(arraySort(splitByString('>', {link})), '<>')"


def _chosen_link(cable: str) -> str:
    """Return the condition that a cable, NIC or host is selected and has no end at a NIC of another rack."""
    ends = f"arrayMap(end -> replaceOne(end, ':', '/'), splitByString('<>', {cable}))"
    return f"{chosen(cable, 'link')} AND NOT hasAny({ends}, (SELECT groupArray(nic) {_ELSEWHERE}))"


_CHOSEN_LINK: Final = _chosen_link(_cable("link"))
LINK_VALUES: Final = (
    "SELECT DISTINCT subject FROM ("
    f"SELECT DISTINCT subject FROM {_DB}.{tables.LINK_HEALTH} FINAL UNION DISTINCT "
    f"SELECT DISTINCT {_cable('link')} AS subject {_from(tables.LINK_QUEUES)}) ORDER BY subject"
)
_LINK_STATES: Final = (
    "SELECT subject, toString(state) AS said, toInt8(state) AS number, since, text, flaps_hour, detected_by, "
    "arrayFilter((dscp, is_lossy) -> is_lossy, class_dscp, class_is_lossy) AS lossy_dscps, "
    "greatest(since, toDateTime64($__fromTime, 9, 'UTC')) AS begin, "
    "if(ahead > since, least(ahead, toDateTime64($__toTime, 9, 'UTC')), toDateTime64($__toTime, 9, 'UTC')) "
    "AS ends FROM (SELECT *, leadInFrame(since) OVER (PARTITION BY subject ORDER BY seq "
    f"ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS ahead FROM {_DB}.{tables.LINK_HEALTH} FINAL) "
    f"WHERE since <= $__toTime AND ends >= $__fromTime AND {_chosen_link('subject')}"
)
"""Query of the states of cables, NICs and hosts in the range; each state lasts until the next one began."""
LINK_COUNT: Final = (
    "SELECT countIf(newest = 4) AS down, countIf(newest = 3) AS flapping, countIf(newest = 2) AS grey "
    f"FROM (SELECT subject, argMax(number, since) AS newest FROM ({_LINK_STATES}) GROUP BY subject)"
)
LINK_ROWS: Final = (
    "SELECT toDateTime(at) AS time, subject, max(number) AS state_number FROM (SELECT subject, number, "
    "arrayJoin(range(intDiv(toUnixTimestamp(begin), $__interval_s) * $__interval_s, "
    f"toUnixTimestamp(ends) + 1, $__interval_s)) AS at FROM ({_LINK_STATES})) "
    f"WHERE subject IN (SELECT subject FROM ({_LINK_STATES}) GROUP BY subject HAVING max(number) > 1 "
    f"ORDER BY max(number) DESC, count() DESC, subject LIMIT {MAX_SERIES}) "
    "GROUP BY time, subject ORDER BY time, subject"
)
LINK_TABLE: Final = (
    "SELECT subject, argMax(said, since) AS state, max(since) AS began, argMax(flaps_hour, since) AS flaps, "
    "argMax(detected_by, since) AS seen_by, "
    "arrayStringConcat(arrayMap(dscp -> toString(dscp), argMax(lossy_dscps, since)), ', ') AS lossy_dscps, "
    "argMax(text, since) AS words, if(position(subject, '<>') > 0, concat('link=', "
    "replaceOne(subject, '<>', '%3E')), concat('node=', splitByChar('/', subject)[1])) AS opens "
    f"FROM ({_LINK_STATES}) GROUP BY subject HAVING max(number) > 1 "
    "ORDER BY argMax(number, since) DESC, began DESC LIMIT 200"
)
_FLAPS: Final = (
    "FROM (SELECT DISTINCT subject, fromUnixTimestamp64Nano(arrayJoin(flap_ns), 'UTC') AS window_start "
    f"FROM {_DB}.{tables.LINK_HEALTH} FINAL) WHERE {IN_RANGE} AND {_chosen_link('subject')}"
)
FLAP_COUNT: Final = f"SELECT count() AS flaps {_FLAPS}"
FLAP_SERIES: Final = series(
    "count() AS flaps", f"{_FLAPS} {top('subject', 'count() DESC, subject', _FLAPS)}", "subject"
)
_QUEUES: Final = _from(tables.LINK_QUEUES, _CHOSEN_LINK)
QUEUE_SPREAD: Final = (
    "SELECT time, toString(le_bytes) AS le, count() AS links FROM ("
    f"SELECT {TIME}, toUInt64(exp2(ceil(log2(greatest(depth_max_bytes, 64.))))) AS le_bytes {_QUEUES}) "
    "GROUP BY time, le_bytes ORDER BY time, le_bytes"
)
QUEUE_SERIES: Final = series(
    "max(depth_mean_bytes) AS depth_bytes",
    f"{_QUEUES} {top('link', 'max(depth_mean_bytes) DESC, link', _QUEUES)}",
    "link",
)
LOAD_SERIES: Final = series(
    "avg(utilisation) AS utilisation",
    f"{_QUEUES} {top('link', 'avg(utilisation) DESC NULLS LAST, link', _QUEUES)}",
    "link",
)
_CONTENTION: Final = (
    f"FROM (SELECT *, opened AS window_start FROM {_DB}.{tables.CONTENTION} FINAL) WHERE opened <= $__toTime "
    "AND (closed_ns IS NULL OR closed_ns >= toUnixTimestamp64Milli($__fromTime_ms) * 1000000) "
    f"AND {_CHOSEN_LINK}"
)
CONTENTION_COUNT: Final = f"SELECT countIf(state != 'CLOSED') AS standing {_CONTENTION}"
CONTENTION_SERIES: Final = series("count() AS windows", f"{_CONTENTION} AND {IN_RANGE}", "kind")
CONTENTION_TABLE: Final = (
    "SELECT opened, link, kind, state, (coalesce(closed_ns, updated_ns) - toUnixTimestamp64Nano(opened)) "
    "AS lasted_ns, detected_by, ce_share, dscp, depth_peak_bytes, delay_ns, over_byte_s, "
    "flows_total AS flows, "
    f"arrayStringConcat(jobs, ', ') AS jobs_named, text, window_id {_CONTENTION} "
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
    f"arrayStringConcat(evidence_text, '; ') AS evidence, alert_id {_ALERTS} "
    "ORDER BY state = 'CLEARED', raised DESC LIMIT 200"
)
ALERT_MARKS: Final = (
    "SELECT raised AS time, ifNull(fromUnixTimestamp64Nano(cleared_ns, 'UTC'), "
    "toDateTime64($__toTime, 9, 'UTC')) AS timeEnd, "
    "concat(toString(severity), ' ', toString(kind)) AS title, text, "
    "arrayStringConcat(arrayConcat([subject], jobs), ',') AS tags "
    f"{_ALERTS} ORDER BY raised DESC LIMIT 200"
)
"""Alerts as regions of a picture, in the columns of Grafana's annotations."""
FLOW_TABLE: Final = (
    "SELECT job, nic, peer, flow_id, avg(rate_bps) AS rate_bps, max(retransmits) AS retransmits, "
    "max(rtt_ns) AS rtt_ns, arrayStringConcat(argMax(links, reported), ' ') AS way "
    f"{_from(tables.FLOWS, time='reported')} GROUP BY job, nic, peer, flow_id "
    "ORDER BY rate_bps DESC LIMIT 100"
)

_DECIDED: Final = _from(tables.DECISIONS, time="decided")
_DONE: Final = _from(tables.ACTIONS, time="done")
_DOES: Final = "('APPLIED', 'LOCAL_REPAIR')"
ACTION_MARKS: Final = (
    "SELECT min(decided) AS time, concat(toString(count()), ' flows: ', any(toString(reason_kind)), ' ', "
    "reason_subject) AS text, reason_subject AS tags "
    f"{_DECIDED} GROUP BY reason_subject, toStartOfInterval(decided, INTERVAL 10 second) "
    "ORDER BY time DESC LIMIT 200"
)
"""Decisions of 10 s about the same subject as one mark."""
DECISION_COUNT: Final = f"SELECT count() AS decisions {_DECIDED}"
DONE_SHARE: Final = (
    f"SELECT countIf(outcome IN {_DOES}) / count() AS done {_DONE} "
    "AND outcome NOT IN ('DUPLICATE', 'ENDED', 'REVERTED')"
)
DECISION_SERIES: Final = series("count() AS decisions", _DECIDED, "reason_kind AS reason")
OUTCOME_SERIES: Final = series("count() AS reports", _DONE, "outcome")
_ANSWERED: Final = (
    "(SELECT decisions.decided AS window_start, (toUnixTimestamp64Nano(actions.done) - "
    "toUnixTimestamp64Nano(decisions.decided)) AS all_ns, actions.took_ns AS effector_ns "
    f"FROM (SELECT decision_id, decided FROM {_DB}.{tables.DECISIONS} FINAL) AS decisions "
    "INNER JOIN (SELECT decision_id, done, took_ns "
    f"FROM {_DB}.{tables.ACTIONS} FINAL WHERE outcome = 'APPLIED') AS actions USING (decision_id))"
)
"""Decisions that were carried out, with the time that each took in total and in the effector."""
TAKEN_P99: Final = f"SELECT quantile(0.99)(all_ns) AS p99_ns FROM {_ANSWERED} WHERE {IN_RANGE}"
TAKEN_SERIES: Final = series(
    "quantile(0.5)(all_ns) AS p50_ns, quantile(0.99)(all_ns) AS p99_ns, "
    "quantile(0.99)(effector_ns) AS effector_p99_ns",
    f"FROM {_ANSWERED} WHERE {IN_RANGE}",
)
MEANS_SERIES: Final = series("count() AS reports", f"{_DONE} AND how != ''", "how")
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

"""SQL queries of the dashboard of jobs: verdicts, iterations, time split by rank, collectives, flows."""

from __future__ import annotations

from typing import Final

from grafana.queries import GRAFANA, chosen, series, top
from schemas import tables

_JOBS: Final = chosen("job", "job")


def _from(table: str, condition: str = _JOBS) -> str:
    return GRAFANA.rows(table, condition, time="began")


_DIAGNOSES: Final = _from(tables.DIAGNOSES)
_RANKS: Final = _from(tables.RANK_TIMES)
_FLOWS: Final = _from(tables.JOB_FLOWS)
_COLLECTIVES: Final = _from(tables.COLLECTIVES)
_KIND: Final = "multiIf(verdict = 'UNKNOWN', 0, verdict = 'HEALTHY', 1, blames_network, 3, 2)"
"""Verdict as a number: 0 for too little evidence, 1 healthy, 2 slowed by something else, 3 by the network."""
PARTS: Final = ("compute", "launch", "gpu_late", "peer_late", "network_late", "flush")

JOB_VALUES: Final = f"SELECT DISTINCT job {_from(tables.DIAGNOSES, '1')} ORDER BY job"
_NEWEST: Final = f"FROM (SELECT job, argMax({_KIND}, (began, number)) AS kind {_DIAGNOSES} GROUP BY job)"
JOBS_BY_KIND: Final = (
    "SELECT countIf(kind = 3) AS network, countIf(kind = 2) AS other, countIf(kind = 1) AS healthy, "
    f"countIf(kind = 0) AS unknown {_NEWEST}"
)
LOST_SHARE: Final = (
    f"SELECT max(lost) AS lost FROM (SELECT job, argMax(loss_share, (began, number)) AS lost {_DIAGNOSES} "
    "GROUP BY job)"
)
SLOWEST: Final = (
    "SELECT max(ratio) AS slower FROM (SELECT job, argMax(iteration_ns / expected_iteration_ns, "
    f"(began, number)) AS ratio {_DIAGNOSES} AND expected_iteration_ns > 0 GROUP BY job)"
)
RANKS_REPORTING: Final = (
    f"SELECT sum(seen) AS reporting, sum(total) AS in_all FROM (SELECT job, argMax(ranks_seen, (began, "
    f"number)) AS seen, argMax(ranks_total, (began, number)) AS total {_DIAGNOSES} GROUP BY job)"
)
VERDICT_ROWS: Final = series(f"max({_KIND}) AS kind", _DIAGNOSES, "job")
VERDICT_TABLE: Final = (
    "SELECT job, verdict, min(began) AS first_time, max(began) AS last_time, count() AS intervals, "
    "max(loss_share) AS lost, argMax(subject, (began, number)) AS named, argMax(text, (began, number)) AS "
    "explanation, argMax(remedy, (began, number)) AS advice, argMax(confidence, (began, number)) AS sure "
    f"{_DIAGNOSES} AND verdict != 'HEALTHY' GROUP BY job, verdict "
    "ORDER BY last_time DESC, lost DESC LIMIT 200"
)
ITERATIONS: Final = series(
    "avg(iteration_ns) AS iteration, avg(expected_iteration_ns) AS expected",
    f"{_DIAGNOSES} AND iteration_ns IS NOT NULL",
    "job",
)
BUS_SERIES: Final = series(
    "avg(bus_bps) AS bus, avg(expected_bus_bps) AS expected", f"{_DIAGNOSES} AND bus_bps IS NOT NULL", "job"
)
SPLIT_SERIES: Final = series(
    ", ".join(
        f"sum({part}_ns) / sum(end_ns - toUnixTimestamp64Nano(began)) AS {part}_share" for part in PARTS
    ),
    _RANKS,
)
RANK_SERIES: Final = series(
    "avg(network_late_ns) AS network_late",
    f"{_RANKS} {top('job, rank', 'max(network_late_ns) DESC', _RANKS)}",
    "concat(job, ' rank ', toString(rank)) AS of",
)
RANK_TABLE: Final = (
    "SELECT job, rank, argMax(host, began) AS on_host, argMax(nic, began) AS by_nic, "
    + ", ".join(f"avg({part}_ns) AS mean_{part}_ns" for part in PARTS)
    + f", sum(last_arrivals) AS arrived_last {_RANKS} GROUP BY job, rank "
    "ORDER BY mean_network_late_ns DESC LIMIT 1000"
)
FUNCTION_SERIES: Final = series(
    "sum(bus_bps * busy_ns) / sum(busy_ns) AS bus",
    f"{_COLLECTIVES} AND bus_bps IS NOT NULL AND busy_ns > 0",
    "function",
)
FUNCTION_TABLE: Final = (
    "SELECT job, function, algorithm, protocol, bytes_from AS from_bytes, sum(count) AS operations, "
    "sum(busy_ns) / sum(count) AS mean_ns, min(min_ns) AS shortest_ns, max(max_ns) AS longest_ns, "
    "sum(bus_bps * busy_ns) / sum(busy_ns) AS bus, "
    "sum(network_late_ns) / sum(count) AS network_late_each_ns, "
    f"sum(peer_late_ns) / sum(count) AS peer_late_each_ns {_COLLECTIVES} AND count > 0 "
    "GROUP BY job, function, algorithm, protocol, bytes_from ORDER BY sum(busy_ns) DESC LIMIT 200"
)
_SLOW_PAIRS: Final = top("nic, peer", "max(ifNull(data_ns, 0)) DESC, max(ifNull(delay_ns, 0)) DESC", _FLOWS)
_PAIR: Final = "concat(nic, ' > ', peer) AS pair"
DATA_SERIES: Final = series("max(data_ns) AS data", f"{_FLOWS} AND data_ns IS NOT NULL {_SLOW_PAIRS}", _PAIR)
PROBE_SERIES: Final = series(
    "max(delay_ns) AS probes", f"{_FLOWS} AND delay_ns IS NOT NULL {_SLOW_PAIRS}", _PAIR
)
_NICS: Final = _from(tables.JOB_NICS)
QUEUE_PAIR_SERIES: Final = series(
    "max(p99_ns) AS p99",
    f"{_NICS} AND p99_ns IS NOT NULL {top('nic', 'max(ifNull(p99_ns, 0)) DESC, nic', _NICS)}",
    "nic",
)
COUNTERS: Final = (
    "cnp_sent",
    "cnp_received",
    "ce_received",
    "retransmits",
    "out_of_sequence",
    "pause_received",
    "pause_sent",
)
COUNTER_SERIES: Final = (
    "SELECT time, "
    + ", ".join(f"sum({name}_most) AS {name}_all" for name in COUNTERS)
    + f" FROM (SELECT {GRAFANA.step} AS time, nic, began, "
    + ", ".join(f"max(ifNull({name}, 0)) AS {name}_most" for name in COUNTERS)
    + f" {_NICS} GROUP BY time, nic, began) GROUP BY time ORDER BY time"
)
"""Query of the NICs' counter increments, summed. Each process on a host reports a whole NIC's increment, so
that the largest of an interval counts."""
FLOW_TABLE: Final = (
    "SELECT job, nic, peer, max(data_ns) AS slowest_data_ns, avg(data_ns) AS mean_data_ns, "
    "max(delay_ns) AS slowest_probe_ns, avg(rate_bps) AS mean_rate_bps, max(paths) AS flows, "
    f"arrayStringConcat(argMax(links, began), ' ') AS crossed {_FLOWS} GROUP BY job, nic, peer "
    "ORDER BY slowest_data_ns DESC NULLS LAST, slowest_probe_ns DESC NULLS LAST LIMIT 200"
)

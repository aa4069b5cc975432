"""SQL of the dashboard of audits: the newest result of each host and check, and results over time."""

from __future__ import annotations

from typing import Final

from grafana.queries import IN_RANGE, TIME
from schemas import tables

_AUDIT: Final = (
    f"FROM (SELECT *, checked AS window_start FROM {tables.DATABASE}.{tables.AUDIT} FINAL) WHERE {IN_RANGE}"
)
_LEVEL: Final = "if(status = 'FAILED', severity, status)"
"""ERROR or WARNING of a failed check, else UNKNOWN, PASSED or SKIPPED."""
_LATEST: Final = (
    f"FROM (SELECT host, check, argMax({_LEVEL}, checked) AS level, argMax(category, checked) AS area, "
    "argMax(title, checked) AS expected, argMax(text, checked) AS found, argMax(action, checked) AS advice, "
    "argMax(remedy, checked) AS mend, argMax(run, checked) AS in_run, max(checked) AS at "
    f"{_AUDIT} GROUP BY host, check)"
)
HOSTS: Final = f"SELECT uniqExact(host) AS hosts {_LATEST}"
UNFIT_HOSTS: Final = f"SELECT uniqExactIf(host, level = 'ERROR') AS hosts {_LATEST}"
ERRORS: Final = f"SELECT countIf(level = 'ERROR') AS errors {_LATEST}"
UNKNOWN: Final = f"SELECT countIf(level = 'UNKNOWN') AS unknown {_LATEST}"
LEVEL_SERIES: Final = (
    f"SELECT {TIME}, {_LEVEL} AS level, count() AS results {_AUDIT} AND level IN ('ERROR', 'WARNING', "
    "'UNKNOWN') GROUP BY time, level ORDER BY time, level"
)
UNFIT_SERIES: Final = (
    f"SELECT {TIME}, uniqExactIf(host, status = 'FAILED' AND severity = 'ERROR') AS unfit, "
    f"uniqExact(host) AS audited {_AUDIT} GROUP BY time ORDER BY time"
)
FAILED_CHECKS: Final = (
    "SELECT level, any(expected) AS expectation, check, uniqExact(host) AS hosts, any(advice) AS action, "
    "any(mend) AS remedy, any(found) AS example "
    f"{_LATEST} WHERE level IN ('ERROR', 'WARNING', 'UNKNOWN') GROUP BY level, check "
    "ORDER BY indexOf(['ERROR', 'WARNING', 'UNKNOWN'], level), hosts DESC, check LIMIT 200"
)
HOST_TABLE: Final = (
    "SELECT host, countIf(level = 'ERROR') AS errors, countIf(level = 'WARNING') AS warnings, "
    "countIf(level = 'UNKNOWN') AS unknown, countIf(level = 'PASSED') AS passed, "
    "arrayStringConcat(groupUniqArrayIf(advice, level = 'ERROR'), ', ') AS actions, max(at) AS last_checked, "
    f"argMax(in_run, at) AS run {_LATEST} GROUP BY host ORDER BY errors DESC, warnings DESC, host LIMIT 2000"
)
FINDINGS: Final = (
    "SELECT host, level, area AS category, expected AS expectation, found AS text, advice AS action, "
    f"mend AS remedy, check, at AS checked_at {_LATEST} WHERE level IN ('ERROR', 'WARNING', 'UNKNOWN') "
    "ORDER BY indexOf(['ERROR', 'WARNING', 'UNKNOWN'], level), host, check LIMIT 1000"
)
UNLIKE_VALUES: Final = (
    "SELECT name, subject, check, uniqExact(host) AS hosts, uniqExact(value) AS different, "
    "arrayStringConcat(arraySlice(groupUniqArray(value), 1, 6), ', ') AS some_values FROM ("
    "SELECT host, check, fact_name AS name, fact_subject AS subject, argMax(fact_text, checked) AS value "
    "FROM (SELECT host, check, checked, checked AS window_start, fact_name, fact_subject, fact_text "
    f"FROM {tables.DATABASE}.{tables.AUDIT} FINAL ARRAY JOIN fact_name, fact_subject, fact_text, fact_number "
    f"WHERE fact_number IS NULL) WHERE {IN_RANGE} GROUP BY host, check, name, subject) "
    "GROUP BY name, subject, check HAVING different > 1 ORDER BY different, name, subject LIMIT 200"
)

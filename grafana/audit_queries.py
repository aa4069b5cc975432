"""SQL queries of the audit dashboard: the newest result of each host and check, and results over time."""

from __future__ import annotations

from typing import Final

from grafana.queries import GRAFANA, IN_RANGE, series
from schemas import queries, tables

_AUDIT: Final = GRAFANA.rows(tables.AUDIT, time="checked")
_COLUMNS: Final = ("category", "title", "text", "action", "remedy", "run")
_LATEST: Final = f"FROM ({queries.newest_results(_AUDIT, _COLUMNS)})"
_UNFIT: Final = "level IN ('ERROR', 'WARNING', 'UNKNOWN')"
_WORST_FIRST: Final = "indexOf(['ERROR', 'WARNING', 'UNKNOWN'], level)"
HOSTS: Final = f"SELECT uniqExact(host) AS hosts {_LATEST}"
UNFIT_HOSTS: Final = f"SELECT uniqExactIf(host, level = 'ERROR') AS hosts {_LATEST}"
ERRORS: Final = f"SELECT countIf(level = 'ERROR') AS errors {_LATEST}"
UNKNOWN: Final = f"SELECT countIf(level = 'UNKNOWN') AS unknown {_LATEST}"
LEVEL_SERIES: Final = series(
    "count() AS results", f"{_AUDIT} AND {_UNFIT}", f"{queries.RESULT_LEVEL} AS level"
)
UNFIT_SERIES: Final = series(
    "uniqExactIf(host, status = 'FAILED' AND severity = 'ERROR') AS unfit, uniqExact(host) AS audited", _AUDIT
)
FAILED_CHECKS: Final = (
    "SELECT level, any(title) AS expectation, check, uniqExact(host) AS hosts, any(action) AS action, "
    f"any(remedy) AS remedy, any(text) AS example {_LATEST} WHERE {_UNFIT} GROUP BY level, check "
    f"ORDER BY {_WORST_FIRST}, hosts DESC, check LIMIT 200"
)
HOST_TABLE: Final = (
    "SELECT host, countIf(level = 'ERROR') AS errors, countIf(level = 'WARNING') AS warnings, "
    "countIf(level = 'UNKNOWN') AS unknown, countIf(level = 'PASSED') AS passed, "
    "arrayStringConcat(groupUniqArrayIf(action, level = 'ERROR'), ', ') AS actions, max(at) AS last_checked, "
    f"argMax(run, at) AS run {_LATEST} GROUP BY host ORDER BY errors DESC, warnings DESC, host LIMIT 2000"
)
FINDINGS: Final = (
    "SELECT host, level, category, title AS expectation, text, action, remedy, check, at AS checked_at "
    f"{_LATEST} WHERE {_UNFIT} ORDER BY {_WORST_FIRST}, host, check LIMIT 1000"
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

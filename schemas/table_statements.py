"""Builds the SQL statements that create the history tables in ClickHouse or update existing ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.tables import DATABASE, DAYS, DELAYS, DELAYS_1S, DIRECTIONS, ROLLUP_VIEW, TABLES, Table

_SYMBOL: Final = re.compile(r"'\w+' = -?\d+")

CREATED: Final = (
    "SELECT t.name, t.create_table_query, c.columns FROM system.tables AS t LEFT JOIN (SELECT table, "
    "groupArray(name) AS columns FROM system.columns WHERE database = '{database}' GROUP BY table) AS c "
    "ON c.table = t.name WHERE t.database = '{database}'"
)
"""Query of (name, CREATE statement, columns) of each existing table, the rows that `missing` takes."""


def create_all(days: Mapping[str, int] = DAYS, database: str = DATABASE) -> list[str]:
    """Return the statements that create the database, tables, columns and the rollup's view if missing.

    `days`, here and below: the number of days for which each table keeps its rows.
    """
    return [
        f"CREATE DATABASE IF NOT EXISTS {database}",
        *(table.create(days[name], database) for name, table in TABLES.items()),
        *(table.add_columns(database) for table in TABLES.values()),
        create_rollup_view(database),
    ]


def set_retention(days: Mapping[str, int], database: str = DATABASE) -> list[str]:
    """Return the statements that set the retention of existing tables; later merges remove the old rows."""
    return [
        f"ALTER TABLE {database}.{name} MODIFY TTL {TABLES[name].ttl(count)} "
        "SETTINGS materialize_ttl_after_modify = 0"
        for name, count in days.items()
    ]


def missing(
    created: Sequence[tuple[str, str, Sequence[str]]], days: Mapping[str, int], database: str = DATABASE
) -> list[str]:
    """Return the statements of `create_all` and `set_retention` that the tables `created` still need."""
    queries = {name: query for name, query, _ in created}
    columns = {name: set(names) for name, _, names in created}
    statements = [] if created else [f"CREATE DATABASE IF NOT EXISTS {database}"]
    alter = dict(zip(days, set_retention(days, database), strict=True))
    for name, table in TABLES.items():
        if name not in queries:
            statements.append(table.create(days[name], database))
            continue
        if not columns[name] >= set(table.column_names):
            statements.append(table.add_columns(database))
        statements += _widened(table, queries[name], database)
        # ClickHouse writes an interval as a function. If a version does not, ALTER changes nothing.
        if f"TTL toDateTime({table.time}) + toIntervalDay({days[name]})" not in queries[name]:
            statements.append(alter[name])
    if ROLLUP_VIEW not in queries:
        statements.append(create_rollup_view(database))
    elif not columns[ROLLUP_VIEW] >= set(TABLES[DELAYS_1S].column_names):
        statements.append(f"ALTER TABLE {database}.{ROLLUP_VIEW} MODIFY QUERY {_rollup(database)}")
    return statements


def _widened(table: Table, query: str, database: str) -> list[str]:
    """Return the statements that add missing symbols to the enum columns of an existing table.

    Symbols of a later release are kept, so that an earlier sink can still insert.
    """
    statements = []
    for column in table.columns:
        present = re.search(rf"`{column.name}` Enum8\(([^)]*)\)", query)
        if present and set(_SYMBOL.findall(column.type)) - set(_SYMBOL.findall(present[1])):
            change = f"MODIFY COLUMN `{column.name}` {column.type}"
            statements.append(f"ALTER TABLE {database}.{table.name} {change}")
    return statements


def create_rollup_view(database: str = DATABASE) -> str:
    """Return the CREATE statement of the view that fills `delays_1s` from blocks inserted into `delays`."""
    view = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.{ROLLUP_VIEW} TO {database}.{DELAYS_1S} AS"
    return f"{view}\n{_rollup(database)}"


def _rollup(database: str) -> str:
    """Return the SELECT query of the view that fills `delays_1s`.

    The writer sends no block with two rows of one identity, or with only a part of a record. A row has few
    buckets, so that joining the arrays and adding up by distinct bucket is three times as fast as sumMap.
    """
    key = "nic, peer, window, part"
    buckets = {side: f"arraySort(arrayDistinct(g_{side}_bucket))" for side in DIRECTIONS}
    counts = {
        side: f"arrayMap(b -> arraySum((x, y) -> if(x = b, y, 0), g_{side}_bucket, g_{side}_count), "
        + f"{buckets[side]})"
        for side in DIRECTIONS
    }
    histograms = ",\n".join(
        f"  {buckets[side]} AS {side}_bucket,\n  {counts[side]} AS {side}_bucket_count" for side in DIRECTIONS
    )
    joined = ",\n".join(
        f"    groupArrayArray({side}_bucket) AS g_{side}_bucket, "
        f"groupArrayArray({side}_bucket_count) AS g_{side}_count"
        for side in DIRECTIONS
    )
    return (
        f"SELECT {key}, g_shard AS shard, g_start AS window_start, g_end AS window_end, g_state AS state,\n"
        "  g_paths AS paths, g_samples AS count, g_lost AS lost, g_no_t3 AS no_t3,\n"
        "  g_forward_min AS forward_min_ns, g_reverse_min AS reverse_min_ns, g_rtt_min AS rtt_min_ns,\n"
        f"  g_bound AS bound_ns,\n{histograms},\n  g_recorded AS recorded_ns\n"
        "FROM\n(\n"
        f"  SELECT {key}, any(shard) AS g_shard, max(window_start) AS g_start, max(window_end) AS g_end,\n"
        "    min(state) AS g_state, toUInt32(count()) AS g_paths, sum(count) AS g_samples,\n"
        "    sum(lost) AS g_lost, sum(no_t3) AS g_no_t3, min(forward_min_ns) AS g_forward_min,\n"
        "    min(reverse_min_ns) AS g_reverse_min, min(rtt_min_ns) AS g_rtt_min,\n"
        f"    max(bound_ns) AS g_bound, max(recorded_ns) AS g_recorded,\n{joined}\n"
        f"  FROM {database}.{DELAYS}\n  GROUP BY {key}\n)"
    )

"""The tables of history: what they hold, how they are made, and the SQL that turns histograms into quantiles.

In: how many days each table is kept. Out: DDL and expressions, the same for chdb and for a ClickHouse server.

Every table is a ReplacingMergeTree whose sorting key is the identity of its row and whose version is the
log append time of the record that it came from. So a record that is inserted again, or computed again after
a crash, overwrites and never doubles, however the inserts were cut: **read with FINAL**, or with an
aggregate that takes a repeated row calmly (min, max, any, argMax). The rollup `delays_1s` is fed by a
materialized view, one row a (nic, peer, window, part of the record): since a record is inserted whole, each
block gives its rows whole, and they replace as the base's rows do. Merging rollup rows over any span is
`sumMap` of their histograms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

DATABASE: Final = "fabrictime"

DELAYS: Final = "delays"
DELAYS_1S: Final = "delays_1s"
CLOCKS: Final = "clocks"
PIPELINE: Final = "pipeline"
NIC_WINDOWS: Final = "nic_windows"
NICS: Final = "nics"
REJECTS: Final = "rejects"

ROLLUP_VIEW: Final = "delays_1s_view"

WAYS: Final = ("forward", "reverse")

WINDOWS_PER_GROUP: Final = 64
"""Windows that stand together in the sorting key. The last minute of all pairs is then one or two runs of
granules, and a pair's series one short run in each group."""

DEDUPLICATION_WINDOW: Final = 1000
"""Inserted blocks of which a table remembers the deduplication token."""

_STATE: Final = "Enum8('UNSYNCED' = 0, 'HOLDOVER' = 1, 'SYNCED' = 2)"
_STAMP: Final = "Enum8('UNKNOWN' = 0, 'HARDWARE' = 1, 'KERNEL' = 2, 'USER' = 3)"
_TIME: Final = "DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))"
_COUNTER: Final = "Int64 CODEC(Delta, ZSTD(1))"
_NAME: Final = "LowCardinality(String)"
_FIGURE: Final = "Nullable(Float32) CODEC(ZSTD(1))"
_EXACT: Final = "Float64 CODEC(ZSTD(1))"
_COUNT: Final = "UInt32 CODEC(T64, ZSTD(1))"
_BUCKETS: Final = "Array(UInt16) CODEC(Delta, ZSTD(1))"
_BUCKET_COUNTS: Final = "Array(UInt32) CODEC(T64, ZSTD(1))"
_WINDOW: Final = (
    ("window", _COUNTER),
    ("window_start", _TIME),
    ("window_end", _TIME),
)
_RECORDED: Final = (("recorded_ns", _COUNTER),)


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that each table keeps its rows, from the window's start (`nics`: from the announcement)."""

    delays_days: int = field(default=2, metadata={"table": DELAYS})
    delays_1s_days: int = field(default=14, metadata={"table": DELAYS_1S})
    clocks_days: int = field(default=14, metadata={"table": CLOCKS})
    pipeline_days: int = field(default=14, metadata={"table": PIPELINE})
    nic_windows_days: int = field(default=14, metadata={"table": NIC_WINDOWS})
    nics_days: int = field(default=90, metadata={"table": NICS})
    rejects_days: int = field(default=14, metadata={"table": REJECTS})

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield (table, days) of every table. Raises ValueError where days is below 1."""
        for each in fields(self):
            days = getattr(self, each.name)
            if days < 1:
                raise ValueError(f"{each.name}: {days}, expected at least 1 day")
            yield each.metadata["table"], days


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns as (name, type and codec) in order, its sorting key and the column that ages."""

    name: str
    doc: str
    columns: tuple[tuple[str, str], ...]
    order_by: str
    time: str = "window_start"
    partition_by: str | None = "toYYYYMMDD(window_start)"
    version: str = "recorded_ns"

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(name for name, _ in self.columns)

    def ttl(self, days: int) -> str:
        """Return the TTL expression for a row kept `days`."""
        return f"toDateTime({self.time}) + INTERVAL {int(days)} DAY"

    def create(self, days: int, database: str = DATABASE) -> str:
        """Return CREATE TABLE IF NOT EXISTS with rows kept `days`."""
        columns = [f"  `{name}` {kind}" for name, kind in self.columns]
        if self.time == "window_start":
            columns.append("  INDEX window_start_range window_start TYPE minmax GRANULARITY 1")
        partition = f"PARTITION BY {self.partition_by}\n" if self.partition_by else ""
        return (
            f"CREATE TABLE IF NOT EXISTS {database}.{self.name}\n(\n" + ",\n".join(columns) + "\n)\n"
            f"ENGINE = ReplacingMergeTree({self.version})\n{partition}ORDER BY ({self.order_by})\n"
            f"TTL {self.ttl(days)}\n"
            f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}, ttl_only_drop_parts = "
            f"{1 if self.partition_by else 0}\n"
            f"COMMENT '{self.doc}'"
        )

    def add_columns(self, database: str = DATABASE) -> str:
        """Return the statement that gives an older table the columns that it lacks."""
        columns = ", ".join(f"ADD COLUMN IF NOT EXISTS `{name}` {kind}" for name, kind in self.columns)
        return f"ALTER TABLE {database}.{self.name} {columns}"


_GROUP: Final = f"intDiv(window, {WINDOWS_PER_GROUP})"

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        Table(
            DELAYS,
            "one row a nic, peer, path and window (PathDelays); window_start in fabric time",
            (
                ("nic", _NAME), ("peer", _NAME), ("path", "UInt32 CODEC(ZSTD(1))"), ("shard", _NAME),
                *_WINDOW, ("part", _COUNT), ("state", _STATE),
                ("count", _COUNT), ("lost", _COUNT), ("no_t3", _COUNT),
                ("forward_min_ns", _FIGURE), ("forward_p50_ns", _FIGURE), ("forward_p99_ns", _FIGURE),
                ("reverse_min_ns", _FIGURE), ("reverse_p50_ns", _FIGURE), ("reverse_p99_ns", _FIGURE),
                ("rtt_min_ns", _FIGURE), ("rtt_p50_ns", _FIGURE), ("rtt_p99_ns", _FIGURE),
                ("bound_ns", _FIGURE),
                ("forward_bucket", _BUCKETS), ("forward_bucket_count", _BUCKET_COUNTS),
                ("reverse_bucket", _BUCKETS), ("reverse_bucket_count", _BUCKET_COUNTS),
                *_RECORDED,
            ),
            f"{_GROUP}, nic, peer, path, window",
        ),
        Table(
            DELAYS_1S,
            "delays with the paths of a peer merged: one row a nic, peer, window and part of its record",
            (
                ("nic", _NAME), ("peer", _NAME), ("shard", _NAME), *_WINDOW, ("part", _COUNT),
                ("state", _STATE), ("paths", "UInt32 CODEC(T64, ZSTD(1))"),
                ("count", "UInt64 CODEC(T64, ZSTD(1))"), ("lost", "UInt64 CODEC(T64, ZSTD(1))"),
                ("no_t3", "UInt64 CODEC(T64, ZSTD(1))"),
                ("forward_min_ns", _FIGURE), ("reverse_min_ns", _FIGURE), ("rtt_min_ns", _FIGURE),
                ("bound_ns", _FIGURE),
                ("forward_bucket", _BUCKETS), ("forward_bucket_count", "Array(UInt64) CODEC(T64, ZSTD(1))"),
                ("reverse_bucket", _BUCKETS), ("reverse_bucket_count", "Array(UInt64) CODEC(T64, ZSTD(1))"),
                *_RECORDED,
            ),
            f"{_GROUP}, nic, peer, window, part",
        ),
        Table(
            CLOCKS,
            "one row a clock and window (ClockOffsets); window_start in fabric time",
            (
                ("shard", _NAME), ("domain", _NAME), ("clock", _NAME), *_WINDOW,
                ("log_offset_ns", _COUNTER), ("solved_ns", _COUNTER),
                ("at_ns", _COUNTER), ("offset_ns", _EXACT), ("drift_ppb", _EXACT), ("bound_ns", _EXACT),
                ("state", _STATE), ("pairs", _COUNT), ("residual_ns", _EXACT),
                *_RECORDED,
            ),
            f"{_GROUP}, shard, clock, window",
        ),
        Table(
            PIPELINE,
            "one row a source, window and part (ClockFits); window_start in log append time",
            (
                ("shard", _NAME), ("source", _NAME), *_WINDOW, ("part", "UInt32"), ("parts", "UInt32"),
                ("first_offset", _COUNTER), ("next_offset", _COUNTER), ("lag_messages", _COUNTER),
                ("messages", _COUNTER), ("bytes", _COUNTER), ("samples", _COUNTER), ("late", _COUNTER),
                ("rejected", _COUNTER), ("nics", _COUNT), ("pairs", _COUNT),
                *_RECORDED,
            ),
            f"{_GROUP}, source, window, part",
        ),
        Table(
            NIC_WINDOWS,
            "one row a source, window and prober (ClockFits.nics); window_start in log append time",
            (
                ("shard", _NAME), ("source", _NAME), *_WINDOW, ("nic", _NAME), ("clock", _NAME),
                ("run", "Int64 CODEC(ZSTD(1))"), ("batches", _COUNT), ("last_batch", _COUNTER),
                ("samples", _COUNTER), ("lost", _COUNTER), ("lost_batches", _COUNT), ("restarts", _COUNT),
                ("clock_jump_ns", _COUNTER), ("clock_ns", _COUNTER), ("system_ns", _COUNTER),
                ("append_ns", _COUNTER),
                *_RECORDED,
            ),
            f"{_GROUP}, nic, source, window",
        ),
        Table(
            NICS,
            "one row a NIC: its newest announcement (Nic)",
            (
                ("nic", "String"), ("host", "String"), ("device", "String"), ("shard", _NAME),
                ("rail", "Nullable(Int32)"), ("rack", "Nullable(String)"), ("addresses", "Array(String)"),
                ("probe_port", "UInt32"), ("clock", "String"), ("stamp", _STAMP),
                ("speed_bps", "Nullable(Int64)"), ("mtu_bytes", "Nullable(Int64)"), ("run", "Int64"),
                ("since_ns", "Int64"), ("announced_ns", "Int64"), ("capabilities", "Array(String)"),
                ("gone", "UInt8"),
                *_RECORDED,
            ),
            "nic",
            time="fromUnixTimestamp64Nano(recorded_ns)",
            partition_by=None,
            version="recorded_ns, gone",
        ),
        Table(
            REJECTS,
            "one row a message that a reader could not read (Reject)",
            (
                ("topic", _NAME), ("partition", "Int32"), ("offset", _COUNTER), ("append_ns", _COUNTER),
                ("reader", _NAME), ("reason", _NAME), ("detail", "String CODEC(ZSTD(1))"),
                ("key", "String CODEC(ZSTD(1))"), ("size_bytes", "Int64"), ("head", "String CODEC(ZSTD(1))"),
                *_RECORDED,
            ),
            "topic, partition, offset, reader",
            time="fromUnixTimestamp64Nano(append_ns)",
            partition_by="toYYYYMMDD(fromUnixTimestamp64Nano(append_ns))",
        ),
    )
}  # fmt: skip


def create_all(retention: Retention | None = None, database: str = DATABASE) -> list[str]:
    """Return the statements that make database, tables, columns and the rollup's view where missing."""
    days = dict((retention or Retention()).items())
    return [
        f"CREATE DATABASE IF NOT EXISTS {database}",
        *(table.create(days[name], database) for name, table in TABLES.items()),
        *(table.add_columns(database) for table in TABLES.values()),
        create_rollup_view(database),
    ]


def set_retention(retention: Retention, database: str = DATABASE) -> list[str]:
    """Return the statements that give existing tables the retention; old rows go at the next merges."""
    return [
        f"ALTER TABLE {database}.{name} MODIFY TTL {TABLES[name].ttl(days)} "
        "SETTINGS materialize_ttl_after_modify = 0"
        for name, days in retention.items()
    ]


def create_rollup_view(database: str = DATABASE) -> str:
    """Return the view that feeds `delays_1s` from each block inserted into `delays`.

    The writer sends no block that holds one row's identity twice, or a record only in part.
    A few buckets a row: joining the arrays and adding up by distinct bucket is three times as fast as sumMap.
    """
    kept = "nic, peer, window, part"
    buckets = {way: f"arraySort(arrayDistinct(g_{way}_bucket))" for way in WAYS}
    counts = {
        way: f"arrayMap(b -> arraySum((x, y) -> if(x = b, y, 0), g_{way}_bucket, g_{way}_count), "
        + f"{buckets[way]})"
        for way in WAYS
    }
    histograms = ",\n".join(
        f"  {buckets[way]} AS {way}_bucket,\n  {counts[way]} AS {way}_bucket_count" for way in WAYS
    )
    joined = ",\n".join(
        f"    groupArrayArray({way}_bucket) AS g_{way}_bucket, "
        f"groupArrayArray({way}_bucket_count) AS g_{way}_count"
        for way in WAYS
    )
    return (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.{ROLLUP_VIEW} TO {database}.{DELAYS_1S} AS\n"
        f"SELECT {kept}, g_shard AS shard, g_start AS window_start, g_end AS window_end, g_state AS state,\n"
        "  g_paths AS paths, g_samples AS count, g_lost AS lost, g_no_t3 AS no_t3,\n"
        "  g_forward_min AS forward_min_ns, g_reverse_min AS reverse_min_ns, g_rtt_min AS rtt_min_ns,\n"
        f"  g_bound AS bound_ns,\n{histograms},\n  g_recorded AS recorded_ns\n"
        "FROM\n(\n"
        f"  SELECT {kept}, any(shard) AS g_shard, max(window_start) AS g_start, max(window_end) AS g_end,\n"
        "    min(state) AS g_state, toUInt32(count()) AS g_paths, sum(count) AS g_samples,\n"
        "    sum(lost) AS g_lost, sum(no_t3) AS g_no_t3, min(forward_min_ns) AS g_forward_min,\n"
        "    min(reverse_min_ns) AS g_reverse_min, min(rtt_min_ns) AS g_rtt_min,\n"
        f"    max(bound_ns) AS g_bound, max(recorded_ns) AS g_recorded,\n{joined}\n"
        f"  FROM {database}.{DELAYS}\n  GROUP BY {kept}\n)"
    )


def bucket_sql(ns: str) -> str:
    """Return the bucket number of a delay: 4 * floor(log2 ns) + its next two bits, 0 below 1 ns.

    The exponent and the two highest bits of the mantissa of an IEEE double are just that, 4 * 1023 higher; so
    this is exact and equals `native.core.bucket_of`.
    """
    return (
        f"if(({ns}) < 1, toUInt16(0), "
        f"toUInt16(bitShiftRight(reinterpretAsUInt64(toFloat64({ns})), 50) - {4 * 1023}))"
    )


def bucket_edge_sql(bucket: str) -> str:
    """Return the lower edge of a bucket in ns (bucket + 1: the upper one); 0 for bucket 0."""
    return (
        f"if(({bucket}) = 0, 0., reinterpretAsFloat64(bitShiftLeft(toUInt64(({bucket}) + {4 * 1023}), 50)))"
    )


def merged_sql(way: str) -> str:
    """Return the aggregate that merges histograms of `delays` or `delays_1s`: (buckets, counts), ascending.

    `way` is 'forward' or 'reverse'. Raises ValueError for another one.
    """
    if way not in WAYS:
        raise ValueError(f"way {way!r}: expected one of {', '.join(WAYS)}")
    return f"sumMap({way}_bucket, {way}_bucket_count)"


def quantile_sql(level: float, merged: str) -> str:
    """Return the quantile in ns of a merged histogram; NULL where it is empty.

    `merged` names a value of `merged_sql`, best the alias of a subquery's column. Within the bucket that
    holds the quantile, samples count as evenly spread: the error is below the bucket's width, 25% at most,
    10% typically. Raises ValueError where `level` is not in 0..1.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"quantile level {level}: expected 0 to 1")
    buckets, counts = f"tupleElement({merged}, 1)", f"tupleElement({merged}, 2)"
    running = f"arrayCumSum({counts})"
    rank = f"{level!r} * arraySum({counts})"
    at = f"arrayFirstIndex(c -> c >= {rank}, {running})"
    low, high = bucket_edge_sql(f"{buckets}[{at}]"), bucket_edge_sql(f"{buckets}[{at}] + 1")
    within = f"({rank} - ({running}[{at}] - {counts}[{at}])) / {counts}[{at}]"
    return f"if(empty({buckets}), NULL, {low} + ({high} - {low}) * greatest(0., {within}))"

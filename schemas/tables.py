"""The ClickHouse tables of history, their DDL, and SQL expressions for histograms.

The statements are the same for chdb and for a ClickHouse server. Every table is a ReplacingMergeTree: its
sorting key is the identity of a row, its version the log append time of the row's record. A record that
is inserted or computed again overwrites its row, regardless of how the inserts were cut. **Read with
FINAL**, or with an aggregate that ignores repeated rows (min, max, any, argMax).

A materialized view feeds the rollup `delays_1s`, one row per (nic, peer, window, part of the record). A
record is inserted as a whole, so each block gives complete rows, and they replace like the rows of the
base table. `sumMap` of the histograms merges rollup rows over any interval.
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
PAIR_FITS: Final = "pair_fits"
SUSPECTS: Final = "suspects"
NICS: Final = "nics"
REJECTS: Final = "rejects"
LINK_HEALTH: Final = "link_health"
LINK_QUEUES: Final = "link_queues"
CONTENTION: Final = "contention"
ALERTS: Final = "alerts"
FLOWS: Final = "flows"
PATHS: Final = "paths"
DECISIONS: Final = "decisions"
ACTIONS: Final = "actions"
AUDIT: Final = "audit"
DIAGNOSES: Final = "diagnoses"
RANK_TIMES: Final = "rank_times"
JOB_FLOWS: Final = "job_flows"
COLLECTIVES: Final = "collectives"
JOB_NICS: Final = "job_nics"

ROLLUP_VIEW: Final = "delays_1s_view"

DIRECTIONS: Final = ("forward", "reverse")

WINDOWS_PER_GROUP: Final = 64
"""Windows that stand together in the sorting key. The last minute of all pairs is then one or two runs of
granules, and a pair's series one short run in each group."""

DEDUPLICATION_WINDOW: Final = 1000
"""Inserted blocks of which a table remembers the deduplication token."""

_STATE: Final = "Enum8('UNSYNCED' = 0, 'HOLDOVER' = 1, 'SYNCED' = 2)"
_EVENT: Final = (
    "Enum8('NONE' = 0, 'NEW' = 1, 'STEP' = 2, 'RATE_CHANGE' = 3, 'FALSETICKER' = 4, 'MERGED' = 5) "
    "CODEC(ZSTD(1))"
)
_STAMP: Final = "Enum8('UNKNOWN' = 0, 'HARDWARE' = 1, 'KERNEL' = 2, 'USER' = 3)"
_TIME: Final = "DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))"
_COUNTER: Final = "Int64 CODEC(Delta, ZSTD(1))"
_NAME: Final = "LowCardinality(String)"
_FIGURE: Final = "Nullable(Float32) CODEC(ZSTD(1))"
_FIGURE_KNOWN: Final = "Float32 CODEC(ZSTD(1))"
_EXACT: Final = "Float64 CODEC(ZSTD(1))"
_COUNT: Final = "UInt32 CODEC(T64, ZSTD(1))"
_BUCKETS: Final = "Array(UInt16) CODEC(Delta, ZSTD(1))"
_BUCKET_COUNTS: Final = "Array(UInt32) CODEC(T64, ZSTD(1))"
_NAMES: Final = "Array(LowCardinality(String)) CODEC(ZSTD(1))"
_TEXT: Final = "String CODEC(ZSTD(1))"
_STATE_OF_LINK: Final = "Enum8('UNKNOWN' = 0, 'UP' = 1, 'GREY' = 2, 'FLAPPING' = 3, 'DOWN' = 4)"
_MAYBE_NS: Final = "Nullable(Int64) CODEC(ZSTD(1))"
_MAYBE_COUNT: Final = "Nullable(UInt32) CODEC(ZSTD(1))"
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
    pair_fits_days: int = field(default=2, metadata={"table": PAIR_FITS})
    suspects_days: int = field(default=14, metadata={"table": SUSPECTS})
    nics_days: int = field(default=90, metadata={"table": NICS})
    rejects_days: int = field(default=14, metadata={"table": REJECTS})
    link_health_days: int = field(default=90, metadata={"table": LINK_HEALTH})
    link_queues_days: int = field(default=2, metadata={"table": LINK_QUEUES})
    contention_days: int = field(default=30, metadata={"table": CONTENTION})
    alerts_days: int = field(default=90, metadata={"table": ALERTS})
    flows_days: int = field(default=2, metadata={"table": FLOWS})
    paths_days: int = field(default=30, metadata={"table": PATHS})
    decisions_days: int = field(default=90, metadata={"table": DECISIONS})
    actions_days: int = field(default=90, metadata={"table": ACTIONS})
    audit_days: int = field(default=90, metadata={"table": AUDIT})
    diagnoses_days: int = field(default=90, metadata={"table": DIAGNOSES})
    rank_times_days: int = field(default=7, metadata={"table": RANK_TIMES})
    job_flows_days: int = field(default=2, metadata={"table": JOB_FLOWS})
    collectives_days: int = field(default=2, metadata={"table": COLLECTIVES})
    job_nics_days: int = field(default=2, metadata={"table": JOB_NICS})

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
    added_key: str | None = None
    """Last column of the sorting key, which a table of an earlier release lacks."""

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
        if self.added_key is not None:  # a key can only grow by a column of the same statement
            columns += f", MODIFY ORDER BY ({self.order_by})"
        return f"ALTER TABLE {database}.{self.name} {columns}"


_GROUP: Final = f"intDiv(window, {WINDOWS_PER_GROUP})"

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        Table(
            DELAYS,
            "one row per nic, peer, path, class and window (PathDelays); window_start in fabric time",
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
                ("dscp", "UInt8"), ("ecn", _COUNT), ("forward_ce", _COUNT), ("reverse_ce", _COUNT),
            ),
            f"{_GROUP}, nic, peer, path, window, dscp",
            added_key="dscp",
        ),
        Table(
            DELAYS_1S,
            "delays with the paths of a peer merged: one row per nic, peer, window and part of its record",
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
            "one row per clock and window (ClockOffsets); window_start in fabric time",
            (
                ("shard", _NAME), ("domain", _NAME), ("clock", _NAME), *_WINDOW,
                ("log_offset_ns", _COUNTER), ("solved_ns", _COUNTER),
                ("at_ns", _COUNTER), ("offset_ns", _COUNTER), ("drift_ppb", _EXACT), ("bound_ns", _EXACT),
                ("state", _STATE), ("pairs", _COUNT), ("residual_ns", _EXACT),
                ("drift_sigma_ppb", _EXACT), ("event", _EVENT), ("event_ns", _EXACT),
                ("knot_at_ns", _COUNTER), ("knot_offset_ns", _COUNTER), ("knot_bound_ns", _EXACT),
                ("reference", f"{_NAME} DEFAULT 'ensemble'"),
                ("offset_fraction_ns", _EXACT), ("knot_offset_fraction_ns", _EXACT),
                *_RECORDED,
            ),
            f"{_GROUP}, shard, clock, window",
        ),
        Table(
            PIPELINE,
            "one row per source, window and part (ClockFits); window_start in log append time",
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
            "one row per source, window and prober (ClockFits.nics); window_start in log append time",
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
            PAIR_FITS,
            "one row per source, window and directed pair (ClockFits.pairs); window_start in log append time",
            (
                ("shard", _NAME), ("source", _NAME), *_WINDOW, ("prober", _NAME), ("peer", _NAME),
                ("at_ns", _COUNTER), ("offset_ns", _COUNTER), ("offset_fraction_ns", _EXACT),
                ("drift_ppb", _EXACT),
                ("sigma_ns", _FIGURE_KNOWN), ("drift_sigma_ppb", _FIGURE_KNOWN),
                ("rtt_min_ns", _FIGURE_KNOWN), ("samples", _COUNT), ("accepted", _COUNT),
                ("margin_ns", _FIGURE_KNOWN), ("noise_ns", _FIGURE_KNOWN),
                *_RECORDED,
            ),
            f"{_GROUP}, prober, peer, source, window",
        ),
        Table(
            SUSPECTS,
            "one row per suspect pair and window (ClockOffsets.suspects); window_start in fabric time",
            (
                ("shard", _NAME), ("domain", _NAME), *_WINDOW, ("prober", _NAME), ("peer", _NAME),
                ("asymmetry_ns", _EXACT), ("sigma_ns", _EXACT), ("weight", _EXACT),
                *_RECORDED,
            ),
            f"{_GROUP}, shard, prober, peer, window",
        ),
        Table(
            NICS,
            "one row per NIC: its newest announcement (Nic)",
            (
                ("nic", "String"), ("host", "String"), ("device", "String"), ("shard", _NAME),
                ("rail", "Nullable(Int32)"), ("rack", "Nullable(String)"), ("addresses", "Array(String)"),
                ("probe_port", "UInt32"), ("clock", "String"), ("stamp", _STAMP),
                ("speed_bps", "Nullable(Int64)"), ("mtu_bytes", "Nullable(Int64)"), ("run", "Int64"),
                ("since_ns", "Int64"), ("announced_ns", "Int64"), ("capabilities", "Array(String)"),
                ("path_ports", "Array(UInt32)"), ("first_hop", "Nullable(String)"),
                ("slot_ns", "Int64"), ("slot_probes", "UInt32"), ("ud", "Nullable(String)"),
                ("stamp_error_ns", "Int64"), ("networks", "Array(String)"), ("egress", "Nullable(String)"),
                ("simulation_pace", "Nullable(Float64)"), ("gone", "UInt8"),
                *_RECORDED,
            ),
            "nic",
            time="fromUnixTimestamp64Nano(recorded_ns)",
            partition_by=None,
            version="recorded_ns, gone",
        ),
        Table(
            REJECTS,
            "one row per message that a reader could not read (Reject)",
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
        Table(
            LINK_HEALTH,
            "one row per cable, NIC or host and state that it was in (LinkHealth); since in fabric time",
            (
                ("subject", _NAME), ("kind", _NAME), ("shard", _NAME), ("seq", _COUNTER), ("since", _TIME),
                ("state", _STATE_OF_LINK), ("before", _NAME), ("links", _NAMES), ("candidates", _NAMES),
                ("evaluated_ns", _COUNTER), ("loss_rate", _FIGURE), ("loss_rate_low", _FIGURE),
                ("loss_rate_high", _FIGURE), ("class_dscp", "Array(Int32) CODEC(ZSTD(1))"),
                ("class_loss_rate", "Array(Float32) CODEC(ZSTD(1))"),
                ("class_is_lossy", "Array(UInt8) CODEC(ZSTD(1))"), ("max_packet_bytes", _MAYBE_COUNT),
                ("flaps_hour", _COUNT), ("flaps_total", _COUNTER),
                ("flap_ns", "Array(Int64) CODEC(ZSTD(1))"), ("detected_by", _NAME), ("paths_dead", _COUNT),
                ("paths_living", _COUNT), ("probers", _COUNT), ("text", _TEXT),
                *_RECORDED,
            ),
            "subject, seq",
            time="since",
            partition_by=None,
        ),
        Table(
            LINK_QUEUES,
            "one row per directed link and second (LinkQueues of one slot); window_start in fabric time",
            (
                ("shard", _NAME), *_WINDOW, ("part", _COUNT), ("link", _NAME), ("synced", "UInt8"),
                ("rate_bps", _COUNTER), ("depth_mean_bytes", _FIGURE_KNOWN),
                ("depth_max_bytes", _FIGURE_KNOWN), ("bound_bytes", _FIGURE_KNOWN),
                ("utilisation", _FIGURE), ("utilisation_bound", _FIGURE), ("from_flows", "UInt8"),
                ("samples", _COUNT), ("group", _COUNT),
                *_RECORDED,
                ("dscp", "UInt8"), ("ce_share", _FIGURE_KNOWN),
            ),
            f"{_GROUP}, link, shard, window",
        ),
        Table(
            CONTENTION,
            "one row per contention window, its newest record (ContentionWindow); opened in fabric time",
            (
                ("window_id", _TEXT), ("link", _NAME), ("shard", _NAME), ("update", _COUNTER),
                ("state", _NAME), ("kind", _NAME), ("confidence", _FIGURE_KNOWN), ("opened", _TIME),
                ("updated_ns", _COUNTER), ("closed_ns", _MAYBE_NS), ("depth_bytes", _FIGURE_KNOWN),
                ("depth_peak_bytes", _FIGURE_KNOWN), ("delay_ns", _FIGURE_KNOWN), ("utilisation", _FIGURE),
                ("over_ns", _COUNTER), ("over_byte_s", _EXACT), ("rate_bps", _COUNTER),
                ("flow_id", "Array(String) CODEC(ZSTD(1))"), ("flow_nic", _NAMES), ("flow_peer", _NAMES),
                ("flow_job", _NAMES), ("flow_rate_bps", "Array(Float32) CODEC(ZSTD(1))"),
                ("flow_share", "Array(Float32) CODEC(ZSTD(1))"), ("flows_total", _COUNT), ("jobs", _NAMES),
                ("links", _NAMES), ("text", _TEXT),
                *_RECORDED,
                ("detected_by", f"{_NAME} DEFAULT 'UNKNOWN'"), ("ce_share", _FIGURE_KNOWN), ("dscp", "UInt8"),
            ),
            "window_id",
            time="opened",
            partition_by="toYYYYMMDD(opened)",
            version="update",
        ),
        Table(
            ALERTS,
            "one row per alert, its newest record (Alert); raised in fabric time",
            (
                ("alert_id", _TEXT), ("subject", _TEXT), ("kind", _NAME), ("state", _NAME),
                ("severity", _NAME), ("shard", _NAME), ("update", _COUNTER), ("raised", _TIME),
                ("updated_ns", _COUNTER), ("cleared_ns", _MAYBE_NS), ("text", _TEXT), ("links", _NAMES),
                ("nics", _NAMES), ("jobs", _NAMES), ("grouped", _NAMES), ("evidence_topic", _NAMES),
                ("evidence_key", _NAMES), ("evidence_at_ns", "Array(Int64) CODEC(ZSTD(1))"),
                ("evidence_text", "Array(String) CODEC(ZSTD(1))"),
                *_RECORDED,
            ),
            "alert_id",
            time="raised",
            partition_by=None,
            version="update",
        ),
        Table(
            FLOWS,
            "one row per flow and report (FlowReports); reported in log append time",
            (
                ("reported", _TIME), ("host", _NAME), ("boot", _NAME), ("report", _COUNTER),
                ("shard", _NAME), ("flow_id", _TEXT), ("state", _NAME), ("nic", _NAME), ("peer", _NAME),
                ("source_address", _NAME), ("peer_address", _NAME), ("source_port", _COUNT),
                ("peer_port", _COUNT), ("protocol", _NAME), ("links", _NAMES),
                ("job", "LowCardinality(Nullable(String))"), ("tenant", "LowCardinality(Nullable(String))"),
                ("bytes_total", _COUNTER), ("interval_ns", _COUNTER), ("bytes", _COUNTER),
                ("rate_bps", _EXACT), ("rtt_ns", _MAYBE_NS), ("retransmits", _MAYBE_NS),
                ("busy_share", _FIGURE), ("receiver_limited_share", _FIGURE),
                ("sender_limited_share", _FIGURE), ("rate_limit_bps", _MAYBE_NS), ("system_ns", _COUNTER),
                ("can", _NAMES), *_RECORDED,
            ),
            f"intDiv(recorded_ns, {WINDOWS_PER_GROUP}000000000), flow_id, host, boot, report",
            time="reported",
            partition_by="toYYYYMMDD(reported)",
        ),
        Table(
            PATHS,
            "one row per directed pair, path, leg and direction that it took (PathMaps); as last traced",
            (
                ("nic", _NAME), ("peer", _NAME), ("path", "UInt32 CODEC(ZSTD(1))"), ("leg", _NAME),
                ("since_ns", _COUNTER), ("shard", _NAME), ("run", "Int64 CODEC(ZSTD(1))"),
                ("traced_ns", _COUNTER), ("links", _NAMES), ("found", _NAME), ("complete", "UInt8"),
                ("changes", _COUNT), ("contradiction", "Nullable(String) CODEC(ZSTD(1))"),
                *_RECORDED,
            ),
            "nic, peer, path, leg, since_ns",
            time="fromUnixTimestamp64Nano(recorded_ns)",
            partition_by=None,
        ),
        Table(
            DECISIONS,
            "one row per decision of the policy (Decision); decided in fabric time",
            (
                ("decision_id", _TEXT), ("shard", _NAME), ("epoch", _COUNTER), ("seq", _COUNTER),
                ("decided", _TIME), ("host", _NAME), ("action", _NAME), ("flow_id", _TEXT),
                ("from_path", _MAYBE_COUNT), ("to_path", _MAYBE_COUNT), ("rate_bps", _MAYBE_NS),
                ("expires_at_ns", _COUNTER), ("reason_kind", _NAME), ("reason_subject", _TEXT),
                ("reason_seq", _MAYBE_NS), ("reason_window_id", _TEXT),
                ("config_version", _COUNTER), ("text", _TEXT),
                *_RECORDED,
            ),
            "decision_id",
            time="decided",
            partition_by="toYYYYMMDD(decided)",
        ),
        Table(
            ACTIONS,
            "one row per decision and outcome at the actuator (ActionReport); done in fabric time",
            (
                ("decision_id", _TEXT), ("outcome", _NAME), ("host", _NAME), ("shard", _NAME),
                ("epoch", _COUNTER), ("seq", _COUNTER), ("done", _TIME), ("flow_id", _TEXT),
                ("action", _NAME), ("from_path", _MAYBE_COUNT), ("to_path", _MAYBE_COUNT),
                ("took_ns", _COUNTER), ("config_version", _COUNTER), ("detail", _TEXT),
                ("rate_bps", _MAYBE_NS), ("how", _NAME), *_RECORDED,
            ),
            "decision_id, outcome",
            time="done",
            partition_by="toYYYYMMDD(done)",
        ),
        Table(
            AUDIT,
            "one row per run, host and check of an audit (AuditResult); checked by the clock of the host",
            (
                ("checked", _TIME), ("run", _NAME), ("host", _NAME), ("shard", _NAME), ("sku", _NAME),
                ("check", _NAME), ("category", _NAME), ("title", _NAME), ("status", _NAME),
                ("severity", _NAME), ("action", _NAME), ("remedy", _NAME), ("text", _TEXT),
                ("took_ns", _COUNTER), ("checks", _COUNT), ("finding_subject", _NAMES),
                ("finding_status", _NAMES), ("finding_text", "Array(String) CODEC(ZSTD(1))"),
                ("fact_name", _NAMES), ("fact_subject", _NAMES),
                ("fact_text", "Array(String) CODEC(ZSTD(1))"),
                ("fact_number", "Array(Nullable(Float64)) CODEC(ZSTD(1))"), *_RECORDED,
            ),
            "run, host, check",
            time="checked",
            partition_by="toYYYYMMDD(checked)",
        ),
        Table(
            DIAGNOSES,
            "one row per job and interval (Diagnosis); began in fabric time",
            (
                ("job", _NAME), ("tenant", "LowCardinality(Nullable(String))"), ("shard", _NAME),
                ("number", _COUNTER), ("began", _TIME), ("end_ns", _COUNTER), ("since_ns", _COUNTER),
                ("verdict", _NAME), ("confidence", _FIGURE_KNOWN), ("blames_network", "UInt8"),
                ("subject", _TEXT), ("subjects", _NAMES), ("links", _NAMES), ("nics", _NAMES),
                ("ranks", "Array(UInt32) CODEC(ZSTD(1))"), ("jobs", _NAMES), ("text", _TEXT),
                ("remedy", _TEXT), ("loss_share", _FIGURE_KNOWN), ("evidence_topic", _NAMES),
                ("evidence_subject", _NAMES), ("evidence_quantity", _NAMES),
                ("evidence_number", "Array(Nullable(Float64)) CODEC(ZSTD(1))"),
                ("evidence_expected", "Array(Nullable(Float64)) CODEC(ZSTD(1))"),
                ("evidence_text", "Array(String) CODEC(ZSTD(1))"), ("alternative_verdict", _NAMES),
                ("alternative_confidence", "Array(Float32) CODEC(ZSTD(1))"),
                ("alternative_subject", _NAMES), ("alternative_text", "Array(String) CODEC(ZSTD(1))"),
                ("missing", "Array(String) CODEC(ZSTD(1))"), ("ranks_seen", _COUNT),
                ("ranks_total", _COUNT), ("hosts", _COUNT), ("operations", _COUNTER), ("bytes", _COUNTER),
                ("iteration_ns", _MAYBE_NS), ("expected_iteration_ns", _MAYBE_NS),
                ("bus_bps", "Nullable(Float64) CODEC(ZSTD(1))"),
                ("expected_bus_bps", "Nullable(Float64) CODEC(ZSTD(1))"), ("bound_ns", _EXACT),
                *_RECORDED,
            ),
            "job, began, number",
            time="began",
            partition_by="toYYYYMMDD(began)",
        ),
        Table(
            RANK_TIMES,
            "one row per job, interval and rank: the time split of Diagnosis; began in fabric time",
            (
                ("job", _NAME), ("number", _COUNTER), ("began", _TIME), ("end_ns", _COUNTER),
                ("rank", _COUNT), ("host", _NAME), ("nic", _NAME), ("compute_ns", _COUNTER),
                ("launch_ns", _COUNTER), ("gpu_late_ns", _COUNTER), ("peer_late_ns", _COUNTER),
                ("network_late_ns", _COUNTER), ("flush_ns", _COUNTER), ("last_arrivals", _COUNTER),
                *_RECORDED,
            ),
            "job, began, number, rank",
            time="began",
            partition_by="toYYYYMMDD(began)",
        ),
        Table(
            JOB_FLOWS,
            "one row per job, interval and pair of NICs: flows of Diagnosis; began in fabric time",
            (
                ("job", _NAME), ("number", _COUNTER), ("began", _TIME), ("end_ns", _COUNTER),
                ("nic", _NAME), ("peer", _NAME), ("paths", _COUNT), ("rate_bps", _EXACT),
                ("delay_ns", _MAYBE_NS), ("data_ns", _MAYBE_NS), ("links", _NAMES), *_RECORDED,
            ),
            "job, began, number, nic, peer",
            time="began",
            partition_by="toYYYYMMDD(began)",
        ),
        Table(
            COLLECTIVES,
            "one row per process, record and kind of operation (CollectiveBatch); began in fabric time",
            (
                ("job", _NAME), ("host", _NAME), ("boot", _NAME), ("process", _NAME), ("batch", _COUNTER),
                ("source", _NAME), ("began", _TIME), ("end_ns", _COUNTER), ("communicator_id", _NAME),
                ("rank", _COUNT), ("ranks_total", _COUNT), ("function", _NAME), ("algorithm", _NAME),
                ("protocol", _NAME), ("bytes_from", _COUNTER), ("first_seq", _COUNTER),
                ("last_seq", _COUNTER), ("count", _COUNTER), ("bytes", _COUNTER), ("busy_ns", _COUNTER),
                ("min_ns", _COUNTER), ("p50_ns", _COUNTER), ("max_ns", _COUNTER), ("launch_ns", _MAYBE_NS),
                ("kernel_ns", _MAYBE_NS), ("gpu_late_ns", _MAYBE_NS), ("peer_late_ns", _MAYBE_NS),
                ("network_late_ns", _MAYBE_NS), ("flush_ns", _MAYBE_NS),
                ("bus_bps", "Nullable(Float64) CODEC(ZSTD(1))"), *_RECORDED,
            ),
            "job, began, host, boot, process, batch, communicator_id, rank, function, algorithm, protocol, "
            "bytes_from",
            time="began",
            partition_by="toYYYYMMDD(began)",
        ),
        Table(
            JOB_NICS,
            "one row per process, record and NIC (CollectiveBatch); began in fabric time",
            (
                ("job", _NAME), ("host", _NAME), ("boot", _NAME), ("process", _NAME), ("batch", _COUNTER),
                ("began", _TIME), ("end_ns", _COUNTER), ("nic", _NAME), ("queue_pairs", _COUNT),
                ("chunks", _COUNTER), ("bytes", _COUNTER), ("posted", _COUNTER), ("mean_ns", _MAYBE_NS),
                ("p99_ns", _MAYBE_NS), ("max_ns", _MAYBE_NS), ("cnp_sent", _MAYBE_NS),
                ("cnp_received", _MAYBE_NS), ("ce_received", _MAYBE_NS), ("retransmits", _MAYBE_NS),
                ("out_of_sequence", _MAYBE_NS), ("pause_received", _MAYBE_NS), ("pause_sent", _MAYBE_NS),
                *_RECORDED,
            ),
            "job, began, host, boot, process, batch, nic",
            time="began",
            partition_by="toYYYYMMDD(began)",
        ),
    )
}  # fmt: skip


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


def merged_sql(direction: str) -> str:
    """Return the aggregate that merges histograms of `delays` or `delays_1s`: (buckets, counts), ascending.

    `direction` is 'forward' or 'reverse'. Raises ValueError for another one.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction {direction!r}: expected one of {', '.join(DIRECTIONS)}")
    return f"sumMap({direction}_bucket, {direction}_bucket_count)"


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

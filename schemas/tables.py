"""Defines the ClickHouse tables of the history, their DDL, and SQL expressions for histograms.

The statements are equal for chdb and for a ClickHouse server. Every table is a ReplacingMergeTree: its
sorting key is the identity of a row, its version the log append time of the row's record. A record that is
inserted or computed again overwrites its rows, however the inserts were split into blocks. **Read with
FINAL**, or with an aggregate that ignores repeated rows (min, max, any, argMax).

A materialized view fills the rollup `delays_1s`, with one row per (nic, peer, window, part of the record). A
record is inserted as a whole, so each block yields complete rows, which replace earlier ones as in the base
table. `sumMap` of the histograms merges rollup rows over any interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from schemas import topics
from schemas.columns import APPEND_TIME, COUNT, COUNTER, NAME, TIME, Column, columns_of
from schemas.topics import Topic

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
REPAIRS: Final = "repairs"
DIAGNOSES: Final = "diagnoses"
RANK_TIMES: Final = "rank_times"
JOB_FLOWS: Final = "job_flows"
COLLECTIVES: Final = "collectives"
JOB_NICS: Final = "job_nics"

ROLLUP_VIEW: Final = "delays_1s_view"

DIRECTIONS: Final = ("forward", "reverse")

WINDOWS_PER_GROUP: Final = 64
"""Number of consecutive windows that the sorting key groups. The last minute of all pairs is then one or two
runs of granules, and a pair's series is one short run in each group."""

DEDUPLICATION_WINDOW: Final = 1000
"""Number of inserted blocks whose deduplication tokens a table remembers."""

_STATE: Final = "Enum8('UNSYNCED' = 0, 'HOLDOVER' = 1, 'SYNCED' = 2)"
_EVENT: Final = (
    "Enum8('NONE' = 0, 'NEW' = 1, 'STEP' = 2, 'RATE_CHANGE' = 3, 'FALSETICKER' = 4, 'MERGED' = 5) "
    "CODEC(ZSTD(1))"
)
_STAMP: Final = "Enum8('UNKNOWN' = 0, 'HARDWARE' = 1, 'KERNEL' = 2, 'USER' = 3)"
_STATE_OF_LINK: Final = "Enum8('UNKNOWN' = 0, 'UP' = 1, 'GREY' = 2, 'FLAPPING' = 3, 'DOWN' = 4)"
_FIGURE: Final = "Float32 CODEC(ZSTD(1))"
_TEXT: Final = "String CODEC(ZSTD(1))"
_TEXTS: Final = "Array(String) CODEC(ZSTD(1))"
_RUN: Final = "Int64 CODEC(ZSTD(1))"
_MAYBE_NS: Final = "Nullable(Int64) CODEC(ZSTD(1))"
_MAYBE_EXACT: Final = "Nullable(Float64) CODEC(ZSTD(1))"
_GROUP: Final = f"intDiv(window, {WINDOWS_PER_GROUP})"


@dataclass(frozen=True)
class Table:
    """One history table, filled by the records of a topic; `schemas.columns` finds its columns' fields."""

    name: str
    topic: Topic
    doc: str
    names: str
    """Column names in order; `name=field` for a column that a field of another name fills."""
    days: int
    order_by: str
    items: str | None = None
    """Array field of the record, with one item per row; None if each record is one row."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Names of the columns whose type does not follow from their field, by type."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Names of the columns that no field fills, by type; the sink adds them to the items or to the record."""
    time: str = "window_start"
    partitioned: bool = True
    """Whether each day is a partition."""
    version: str = APPEND_TIME
    added_key: str | None = None
    """Last column of the sorting key if tables of earlier releases lack it; else None."""
    of_view: bool = False
    """Whether a materialized view fills the table."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table, in order."""
        return tuple(columns_of(self.topic.record, self.items, self.names, self.types, self.derived))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def ttl(self, days: int) -> str:
        """Return the TTL expression that keeps rows for `days`. Raises ValueError if `days` is below 1."""
        if days < 1:
            raise ValueError(f"{self.name}_days: {days}, expected at least 1 day")
        return f"toDateTime({self.time}) + INTERVAL {days} DAY"

    def create(self, days: int, database: str = DATABASE) -> str:
        """Return the CREATE TABLE IF NOT EXISTS statement of a table that keeps its rows for `days`."""
        columns = [f"  `{column.name}` {column.type}" for column in self.columns]
        if self.time == "window_start":
            columns.append("  INDEX window_start_range window_start TYPE minmax GRANULARITY 1")
        partition = f"PARTITION BY toYYYYMMDD({self.time})\n" if self.partitioned else ""
        return (
            f"CREATE TABLE IF NOT EXISTS {database}.{self.name}\n(\n" + ",\n".join(columns) + "\n)\n"
            f"ENGINE = ReplacingMergeTree({self.version})\n{partition}ORDER BY ({self.order_by})\n"
            f"TTL {self.ttl(days)}\n"
            f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}, ttl_only_drop_parts = "
            f"{int(self.partitioned)}\n"
            f"COMMENT '{self.doc}'"
        )

    def add_columns(self, database: str = DATABASE) -> str:
        """Return the statement that adds missing columns to the table of an earlier release."""
        columns = ", ".join(
            f"ADD COLUMN IF NOT EXISTS `{column.name}` {column.type}" for column in self.columns
        )
        if self.added_key is not None:  # a key can only grow by a column of the same statement
            columns += f", MODIFY ORDER BY ({self.order_by})"
        return f"ALTER TABLE {database}.{self.name} {columns}"


TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        Table(
            DELAYS, topics.DELAYS,
            "one row per nic, peer, path, class and window (PathDelays); window_start in fabric time",
            "nic peer path shard window window_start window_end part state count lost no_t3 forward_min_ns "
            "forward_p50_ns forward_p99_ns reverse_min_ns reverse_p50_ns reverse_p99_ns rtt_min_ns "
            "rtt_p50_ns rtt_p99_ns bound_ns forward_bucket forward_bucket_count reverse_bucket "
            "reverse_bucket_count recorded_ns dscp ecn forward_ce reverse_ce",
            items="paths", days=2, order_by=f"{_GROUP}, nic, peer, path, window, dscp", added_key="dscp",
            types={
                "UInt32 CODEC(ZSTD(1))": "path", _STATE: "state",
                "Array(UInt16) CODEC(Delta, ZSTD(1))": "forward_bucket reverse_bucket",
                "Array(UInt32) CODEC(T64, ZSTD(1))": "forward_bucket_count reverse_bucket_count",
                "UInt8": "dscp",
            },
        ),
        Table(
            DELAYS_1S, topics.DELAYS,
            "delays with the paths of a peer merged: one row per nic, peer, window and part of its record",
            "nic peer shard window window_start window_end part state paths count lost no_t3 forward_min_ns "
            "reverse_min_ns rtt_min_ns bound_ns forward_bucket forward_bucket_count reverse_bucket "
            "reverse_bucket_count recorded_ns",
            items="paths", days=14, order_by=f"{_GROUP}, nic, peer, window, part", of_view=True,
            types={
                _STATE: "state", "UInt64 CODEC(T64, ZSTD(1))": "count lost no_t3",
                "Array(UInt16) CODEC(Delta, ZSTD(1))": "forward_bucket reverse_bucket",
                "Array(UInt64) CODEC(T64, ZSTD(1))": "forward_bucket_count reverse_bucket_count",
            },
        ),
        Table(
            SUSPECTS, topics.CLOCK_OFFSETS,
            "one row per suspect pair and window (ClockOffsets.suspects); window_start in fabric time",
            "shard domain window window_start window_end prober peer asymmetry_ns sigma_ns weight "
            "recorded_ns",
            items="suspects", days=14, order_by=f"{_GROUP}, shard, prober, peer, window",
        ),
        Table(
            CLOCKS, topics.CLOCK_OFFSETS,
            "one row per clock and window (ClockOffsets); window_start in fabric time",
            "shard domain clock window window_start window_end log_offset_ns solved_ns at_ns offset_ns "
            "drift_ppb bound_ns state pairs residual_ns drift_sigma_ppb event event_ns knot_at_ns "
            "knot_offset_ns knot_bound_ns reference offset_fraction_ns knot_offset_fraction_ns recorded_ns",
            items="clocks", days=14, order_by=f"{_GROUP}, shard, clock, window",
            types={
                _STATE: "state", _EVENT: "event", "LowCardinality(String) DEFAULT 'ensemble'": "reference",
            },
        ),
        Table(
            PIPELINE, topics.CLOCK_FITS,
            "one row per source, window and part (ClockFits); window_start in log append time",
            "shard source window window_start window_end part parts first_offset next_offset lag_messages "
            "messages bytes samples late rejected nics pairs recorded_ns",
            days=14, order_by=f"{_GROUP}, source, window, part", types={"UInt32": "part parts"},
        ),
        Table(
            NIC_WINDOWS, topics.CLOCK_FITS,
            "one row per source, window and prober (ClockFits.nics); window_start in log append time",
            "shard source window window_start window_end nic clock run batches last_batch samples lost "
            "lost_batches restarts clock_jump_ns clock_ns system_ns append_ns recorded_ns",
            items="nics", days=14, order_by=f"{_GROUP}, nic, source, window", types={_RUN: "run"},
        ),
        Table(
            PAIR_FITS, topics.CLOCK_FITS,
            "one row per source, window and directed pair (ClockFits.pairs); window_start in log append time",
            "shard source window window_start window_end prober peer at_ns offset_ns offset_fraction_ns "
            "drift_ppb sigma_ns drift_sigma_ppb rtt_min_ns samples accepted margin_ns noise_ns recorded_ns",
            items="pairs", days=2, order_by=f"{_GROUP}, prober, peer, source, window",
            types={_FIGURE: "sigma_ns drift_sigma_ppb rtt_min_ns margin_ns noise_ns"},
        ),
        Table(
            NICS, topics.INVENTORY, "one row per NIC: its newest announcement (Nic)",
            "nic host device shard rail rack addresses probe_port clock stamp speed_bps mtu_bytes run "
            "since_ns announced_ns capabilities path_ports first_hop slot_ns slot_probes ud stamp_error_ns "
            "networks egress simulation_pace gone recorded_ns",
            days=90, order_by="nic", time="fromUnixTimestamp64Nano(recorded_ns)", partitioned=False,
            version="recorded_ns, gone",
            types={
                "String": "nic host device clock", "Nullable(Int32)": "rail",
                "Nullable(String)": "rack first_hop ud egress",
                "Array(String)": "addresses capabilities networks", "UInt32": "probe_port slot_probes",
                _STAMP: "stamp", "Nullable(Int64)": "speed_bps mtu_bytes",
                "Int64": "run since_ns announced_ns slot_ns stamp_error_ns", "Array(UInt32)": "path_ports",
                "Nullable(Float64)": "simulation_pace",
            },
            derived={"UInt8": "gone"},
        ),
        Table(
            REJECTS, topics.REJECTS, "one row per message that a reader could not read (Reject)",
            "topic partition offset append_ns reader reason detail key size_bytes head recorded_ns",
            days=14, order_by="topic, partition, offset, reader", time="fromUnixTimestamp64Nano(append_ns)",
            types={"Int32": "partition", _TEXT: "detail", "Int64": "size_bytes"},
        ),
        Table(
            LINK_HEALTH, topics.LINK_HEALTH,
            "one row per cable, NIC or host and state that it was in (LinkHealth); since in fabric time",
            "subject kind shard seq since state before links candidates evaluated_ns loss_rate loss_rate_low "
            "loss_rate_high class_dscp class_loss_rate class_is_lossy max_packet_bytes flaps_hour "
            "flaps_total flap_ns detected_by paths_dead paths_living probers text recorded_ns",
            days=90, order_by="subject, seq", time="since", partitioned=False,
            types={_STATE_OF_LINK: "state", "Array(Int32) CODEC(ZSTD(1))": "class_dscp", _TEXT: "text"},
        ),
        Table(
            LINK_QUEUES, topics.QUEUES,
            "one row per directed link and second (LinkQueues of one slot); window_start in fabric time",
            "shard window window_start window_end part link synced rate_bps depth_mean_bytes depth_max_bytes "
            "bound_bytes utilisation utilisation_bound from_flows samples group recorded_ns dscp ce_share",
            items="links", days=2, order_by=f"{_GROUP}, link, shard, window",
            types={_FIGURE: "depth_mean_bytes depth_max_bytes bound_bytes ce_share", "UInt8": "dscp"},
            derived={TIME: "window_end"},
        ),
        Table(
            CONTENTION, topics.CONTENTION,
            "one row per contention window, its newest record (ContentionWindow); opened in fabric time",
            "window_id link shard update state kind confidence opened updated_ns closed_ns depth_bytes "
            "depth_peak_bytes delay_ns utilisation over_ns over_byte_s rate_bps flow_id=flow_flow_id "
            "flow_nic flow_peer flow_job flow_rate_bps flow_share flows_total jobs links text recorded_ns "
            "detected_by ce_share dscp",
            days=30, order_by="window_id", time="opened", version="update",
            types={
                _TEXT: "window_id text", _FIGURE: "confidence depth_bytes depth_peak_bytes delay_ns ce_share",
                _TEXTS: "flow_id", "LowCardinality(String) DEFAULT 'UNKNOWN'": "detected_by", "UInt8": "dscp",
            },
        ),
        Table(
            ALERTS, topics.ALERTS, "one row per alert, its newest record (Alert); raised in fabric time",
            "alert_id subject kind state severity shard update raised updated_ns cleared_ns text links nics "
            "jobs grouped evidence_topic evidence_key evidence_at_ns evidence_text recorded_ns",
            days=90, order_by="alert_id", time="raised", partitioned=False, version="update",
            types={_TEXT: "alert_id subject text", COUNTER: "update", _TEXTS: "evidence_text"},
        ),
        Table(
            FLOWS, topics.FLOWS, "one row per flow and report (FlowReports); reported in log append time",
            "reported=recorded_ns host boot report shard flow_id state nic peer source_address peer_address "
            "source_port peer_port protocol links job tenant bytes_total interval_ns bytes rate_bps rtt_ns "
            "retransmits busy_share receiver_limited_share sender_limited_share rate_limit_bps system_ns can "
            "recorded_ns",
            items="flows", days=2,
            order_by=f"intDiv(recorded_ns, {WINDOWS_PER_GROUP}000000000), flow_id, host, boot, report",
            time="reported", types={_TEXT: "flow_id"},
        ),
        Table(
            PATHS, topics.PATHS,
            "one row per directed pair, path, leg and direction that it took (PathMaps); as last traced",
            "nic peer path leg since_ns shard run traced_ns links found complete changes contradiction "
            "recorded_ns",
            items="paths", days=30, order_by="nic, peer, path, leg, since_ns",
            time="fromUnixTimestamp64Nano(recorded_ns)", partitioned=False,
            types={
                "UInt32 CODEC(ZSTD(1))": "path", _RUN: "run",
                "Nullable(String) CODEC(ZSTD(1))": "contradiction",
            },
        ),
        Table(
            DECISIONS, topics.DECISIONS,
            "one row per decision of the policy (Decision); decided in fabric time",
            "decision_id shard epoch seq decided=at_ns host action flow_id from_path to_path rate_bps "
            "expires_at_ns reason_kind reason_subject reason_seq reason_window_id config_version text "
            "recorded_ns",
            days=90, order_by="decision_id", time="decided",
            types={_TEXT: "decision_id flow_id reason_subject reason_window_id text"},
        ),
        Table(
            ACTIONS, topics.ACTIONS,
            "one row per decision and outcome at the actuator (ActionReport); done in fabric time",
            "decision_id outcome host shard epoch seq done=at_ns flow_id action from_path to_path took_ns "
            "config_version detail rate_bps how recorded_ns",
            days=90, order_by="decision_id, outcome", time="done",
            types={_TEXT: "decision_id flow_id detail"},
        ),
        Table(
            AUDIT, topics.AUDIT,
            "one row per run, host and check of an audit (AuditResult); checked by the clock of the host",
            "checked run host shard sku check category title status severity action remedy text took_ns "
            "checks finding_subject finding_status finding_text fact_name fact_subject fact_text fact_number "
            "recorded_ns",
            days=90, order_by="run, host, check", time="checked",
            types={_TEXT: "text", _TEXTS: "finding_text fact_text"},
        ),
        Table(
            REPAIRS, topics.REPAIRS,
            "one row per repair and state (Repair); opened by the clock of the process that drained",
            "repair_id state opened=opened_ns node host cause_host scheduler group rack rails run checks "
            "reason evidence_check evidence_run evidence_at_ns evidence_text evidence_remedy job_job "
            "job_owner job_notified by updated_ns ended_ns ended_by end_run end_reason recorded_ns",
            days=400, order_by="repair_id, state", time="opened",
            types={_TEXT: "repair_id reason end_reason", _TEXTS: "evidence_text evidence_remedy"},
        ),
        Table(
            DIAGNOSES, topics.DIAGNOSES, "one row per job and interval (Diagnosis); began in fabric time",
            "job tenant shard number began=begin_ns end_ns since_ns verdict confidence blames_network "
            "subject subjects links nics ranks jobs text remedy loss_share evidence_topic evidence_subject "
            "evidence_quantity evidence_number evidence_expected evidence_text alternative_verdict "
            "alternative_confidence alternative_subject alternative_text missing ranks_seen ranks_total "
            "hosts operations bytes iteration_ns expected_iteration_ns bus_bps expected_bus_bps bound_ns "
            "recorded_ns",
            days=90, order_by="job, began, number", time="began",
            types={
                _FIGURE: "confidence loss_share", _TEXT: "subject text remedy",
                _TEXTS: "evidence_text alternative_text missing", _MAYBE_EXACT: "bus_bps expected_bus_bps",
            },
        ),
        Table(
            RANK_TIMES, topics.DIAGNOSES,
            "one row per job, interval and rank: the time split of Diagnosis; began in fabric time",
            "job number began=begin_ns end_ns rank host nic compute_ns launch_ns gpu_late_ns peer_late_ns "
            "network_late_ns flush_ns last_arrivals recorded_ns",
            items="time_splits", days=7, order_by="job, began, number, rank", time="began",
        ),
        Table(
            JOB_FLOWS, topics.DIAGNOSES,
            "one row per job, interval and pair of NICs: flows of Diagnosis; began in fabric time",
            "job number began=begin_ns end_ns nic peer paths rate_bps delay_ns data_ns links recorded_ns",
            items="flows", days=2, order_by="job, began, number, nic, peer", time="began",
        ),
        Table(
            COLLECTIVES, topics.COLLECTIVES,
            "one row per process, record and kind of operation (CollectiveBatch); began in fabric time",
            "job host boot process batch source began=begin_ns end_ns communicator_id rank ranks_total "
            "function algorithm protocol bytes_from first_seq last_seq count bytes busy_ns min_ns p50_ns "
            "max_ns launch_ns kernel_ns gpu_late_ns peer_late_ns network_late_ns flush_ns bus_bps "
            "recorded_ns",
            items="summaries", days=2,
            order_by="job, began, host, boot, process, batch, communicator_id, rank, function, algorithm, "
            "protocol, bytes_from",
            time="began", types={_MAYBE_EXACT: "bus_bps"},
            derived={NAME: "communicator_id", COUNT: "rank ranks_total"},
        ),
        Table(
            JOB_NICS, topics.COLLECTIVES,
            "one row per process, record and NIC (CollectiveBatch); began in fabric time",
            "job host boot process batch began=begin_ns end_ns nic queue_pairs chunks bytes posted mean_ns "
            "p99_ns max_ns cnp_sent cnp_received ce_received retransmits out_of_sequence pause_received "
            "pause_sent recorded_ns",
            items="nics", days=2, order_by="job, began, host, boot, process, batch, nic", time="began",
            derived={
                NAME: "nic", COUNT: "queue_pairs", COUNTER: "chunks bytes posted",
                _MAYBE_NS: "mean_ns p99_ns max_ns cnp_sent cnp_received ce_received retransmits "
                           "out_of_sequence pause_received pause_sent",
            },
        ),
    )
}  # fmt: skip

DAYS: Final[Mapping[str, int]] = {name: table.days for name, table in TABLES.items()}
"""Number of days that each table keeps its rows unless the settings state it."""


def bucket_edge_sql(bucket: str) -> str:
    """Return SQL for a histogram bucket's lower edge, ns; 0 for bucket 0. `bucket`: SQL of its number."""
    return (
        f"if(({bucket}) = 0, 0., reinterpretAsFloat64(bitShiftLeft(toUInt64(({bucket}) + {4 * 1023}), 50)))"
    )


def merged_sql(direction: str) -> str:
    """Return a SQL aggregate that merges the histograms of rows of `delays` or `delays_1s`.

    The aggregate's value is (buckets, counts), by ascending bucket. Raises ValueError unless `direction` is
    'forward' or 'reverse'.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction {direction!r}: expected one of {', '.join(DIRECTIONS)}")
    return f"sumMap({direction}_bucket, {direction}_bucket_count)"


def quantile_sql(level: float, merged: str) -> str:
    """Return a SQL expression for the quantile `level` (0 to 1) of a histogram, in ns; NULL if it is empty.

    `merged`: SQL expression with a value of `merged_sql`, best the alias of a subquery's column. Within the
    quantile's bucket, samples are taken as evenly spread: the error is below the bucket's width, 25% at most,
    10% typically. Raises ValueError if `level` is not in 0..1.
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

"""Metrics of services that run once per fleet: pipeline stages, the fleet's state, log and history."""

from __future__ import annotations

from typing import Final

from schemas import records
from schemas.metrics.agent import ActionResult
from schemas.metrics.base import Detail, Merge
from schemas.metrics.common import WORKERS, counter, gauge, symbols
from schemas.topics import TOPICS

STAGES: Final = (
    "delays",
    "clock",
    "probe schedules",
    "links",
    "queues",
    "contention",
    "alerts",
    "diagnosis",
    "policy",
    "history",
)
"""Names of the stages; the sinks of all topics count as `history`."""


SUPPRESSED_BY: Final = (
    "PROTECTED",
    "NOT_ALLOWED",
    "ACTIONS_PER_S",
    "MOVED_SHARE",
    "NO_LIVING_PATH",
    "NO_BETTER_PATH",
    "COOL_DOWN",
    "WAITING",
    "NOT_MOVABLE",
)
"""Values of `SuppressedAction.cause`."""
OTHER_CAUSE: Final = "OTHER"

STAGE_METRICS: Final = (
    counter("stage_records_total", "Messages that a stage took.", WORKERS, "records", stage=STAGES),
    gauge(
        "stage_lag_records",
        "Messages between the log's ends and the positions of a stage's partitions.",
        WORKERS,
        "records",
        stage=STAGES,
    ),
    gauge("stage_partitions", "Partitions that a stage owns.", WORKERS, "partitions", stage=STAGES),
    counter(
        "stage_skipped_records_total",
        "Messages left out because newer ones waited.",
        WORKERS,
        "records",
        stage=STAGES,
    ),
    counter(
        "topic_records_published_total",
        "Records that stages published, by topic.",
        WORKERS,
        "records",
        topic=sorted(TOPICS),
    ),
    counter(
        "evaluations_failed_total", "Evaluations that ended with an unexpected error.", WORKERS, "evaluations"
    ),
    counter(
        "rejects_unpublished_total",
        "Rejected messages without a record, because there were too many.",
        WORKERS,
        "records",
    ),
    counter(
        "schema_waits_total",
        "Messages of another version that waited until the schemas on the log were read.",
        WORKERS,
        "records",
    ),
    counter(
        "decisions_total",
        "Decisions of the policy, by action.",
        WORKERS,
        "decisions",
        action=symbols(records.FlowAction),
    ),
    counter(
        "alerts_raised_total",
        "Alerts that were raised, by kind.",
        WORKERS,
        "alerts",
        kind=symbols(records.AlertKind),
    ),
    gauge(
        "window_delay_seconds",
        "Time from the end of a clock window to its publication, the newest window.",
        WORKERS,
        "seconds",
        Merge.MAX,
    ),
)
FLEET: Final = (
    gauge("fleet_nics", "NICs of the fleet.", ("web",), "nics", Merge.MAX),
    gauge("fleet_hosts", "Hosts of the fleet.", ("web",), "hosts", Merge.MAX),
    gauge(
        "fleet_clocks",
        "Clocks in the newest windows, by state.",
        WORKERS,
        "clocks",
        state=symbols(records.ClockSync),
    ),
    gauge(
        "fleet_clock_bound_seconds",
        "Largest error bound of a SYNCED or HOLDOVER clock.",
        WORKERS,
        "seconds",
        Merge.MAX,
    ),
    gauge(
        "links",
        "Cables of the fabric, by state.",
        ("web",),
        "links",
        Merge.MAX,
        state=symbols(records.LinkState),
    ),
    gauge(
        "nic_faults",
        "NICs of the fleet that are not UP, by state.",
        ("web",),
        "nics",
        Merge.MAX,
        state=tuple(state for state in symbols(records.LinkState) if state != "UP"),
    ),
    gauge(
        "contention_windows",
        "Links with contention now, by kind.",
        ("web",),
        "links",
        Merge.MAX,
        kind=symbols(records.ContentionKind),
    ),
    gauge(
        "queue_max_bytes",
        "Deepest inferred queue of a link, mean over the newest window.",
        ("web",),
        "bytes",
        Merge.MAX,
    ),
    gauge(
        "queue_delay_max_seconds",
        "Longest inferred queueing delay of a link, same windows.",
        ("web",),
        "seconds",
        Merge.MAX,
    ),
    gauge(
        "alerts_active",
        "Alerts that are not cleared, by kind and severity.",
        ("web",),
        "alerts",
        Merge.MAX,
        kind=symbols(records.AlertKind),
        severity=symbols(records.Severity),
    ),
    gauge(
        "jobs",
        "Jobs with a diagnosis in the last seconds, by verdict.",
        ("web",),
        "jobs",
        Merge.MAX,
        verdict=symbols(records.Verdict),
    ),
    gauge("policy_flows", "Flows that the policy sees.", ("web",), "flows", Merge.MAX),
    gauge(
        "policy_movable_flows",
        "Flows with other paths and an endpoint that can move them.",
        ("web",),
        "flows",
        Merge.MAX,
    ),
    gauge(
        "suppressed_actions",
        "Actions that the policy wants and does not take, by cause.",
        ("web",),
        "actions",
        Merge.MAX,
        cause=(*SUPPRESSED_BY, OTHER_CAUSE),
    ),
    gauge(
        "acting",
        "1 if the default mode carries decisions out, 0 if it only observes.",
        ("web",),
        "mode",
        Merge.MAX,
    ),
    gauge(
        "action_budget_used_ratio",
        "Used share of the action limits, the shard or host that used most.",
        ("web",),
        "ratio",
        Merge.MAX,
        limit=("MOVED_SHARE", "ACTIONS_PER_S"),
    ),
    gauge(
        "state_age_seconds",
        "Age of the newest message from which the fleet's figures come.",
        ("web",),
        "seconds",
        Merge.MIN,
    ),
    gauge(
        "link_up",
        "1 if a directed link is UP, else 0.",
        ("web",),
        "state",
        Merge.MAX,
        Detail.PER_LINK,
        link=(),
    ),
    gauge(
        "link_queue_bytes",
        "Inferred queue of a directed link, mean over its newest window.",
        ("web",),
        "bytes",
        Merge.MAX,
        Detail.PER_LINK,
        link=(),
    ),
    gauge(
        "link_utilisation_ratio",
        "Inferred utilisation of a directed link, newest window.",
        ("web",),
        "ratio",
        Merge.MAX,
        Detail.PER_LINK,
        link=(),
    ),
)
STORES: Final = (
    counter("broker_messages_total", "Messages that the embedded log appended.", ("log",), "records"),
    gauge("broker_connections", "Connections of clients of the embedded log.", ("log",), "connections"),
    gauge("broker_size_bytes", "Size of the embedded log on disk.", ("log",), "bytes"),
    gauge("broker_free_bytes", "Free space of the embedded log's file system.", ("log",), "bytes", Merge.MIN),
    counter("history_rows_total", "Rows that were inserted into the embedded history.", ("history",), "rows"),
    counter(
        "notifications_total",
        "Attempts to notify receivers of alerts, by result.",
        ("notify",),
        "notifications",
        result=("accepted", "retried", "refused"),
    ),
    gauge(
        "notifications_waiting",
        "Notifications that no receiver has accepted yet.",
        ("notify",),
        "notifications",
    ),
    gauge("drains_in_force", "Nodes that the drain service holds drained.", ("drains",), "nodes"),
    gauge("drains_waiting", "Drains that are due and wait for time, a limit or jobs.", ("drains",), "nodes"),
    gauge(
        "drains_stopped",
        "1 if the circuit breaker of drains is open until a person resets it, else 0.",
        ("drains",),
        "1",
        Merge.MAX,
    ),
    counter(
        "drain_actions_total",
        "Drains and resumes, by result.",
        ("drains",),
        "actions",
        result=tuple(ActionResult),
    ),
    gauge("web_tabs", "Tabs that are connected to the live page.", ("web",), "tabs"),
)

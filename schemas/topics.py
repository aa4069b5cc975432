"""The table of topics: name, key, record, partitions, retention, writers and readers.

The embedded log creates its topics from `TOPICS`. A test compares the table with the topics of the services.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from schemas import records

R = TypeVar("R", default=Any)
"""The type of a topic's records: a class of `schemas.records`."""

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

REPLAY_HORIZON_MS: Final = DAY_MS
"""Compaction keeps all records younger than this, so that the last day can be replayed."""


class Partitions(StrEnum):
    """Rules for the number of partitions of a topic."""

    DATA = "data"
    """As many as the setting `log.partitions`. Topics that one stage reads together have the same number."""
    ONE = "one"


@dataclass(frozen=True)
class Topic(Generic[R]):
    """One topic of the contract. `retention_ms` is None if only compaction removes records."""

    name: str
    key: str
    type: type[R]
    doc: str
    partitions: Partitions
    retention_ms: int | None
    compacted: bool = False
    retention_setting: str | None = None
    writers: tuple[str, ...] = field(default=())
    readers: tuple[str, ...] = field(default=())

    @property
    def record(self) -> str:
        """Return the name of the record that the topic carries."""
        return self.type.__name__

    def config(self, *, retention_hours: float | None = None) -> dict[str, str]:
        """Return its Kafka configuration. `retention_hours` applies to topics with a `retention_setting`."""
        retention_ms = self.retention_ms
        if retention_hours is not None and self.retention_setting is not None:
            retention_ms = round(retention_hours * HOUR_MS)
        policy = [
            name for name, on in (("compact", self.compacted), ("delete", retention_ms is not None)) if on
        ]
        config = {
            "cleanup.policy": ",".join(policy),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(MAX_MESSAGE_BYTES),
        }
        if retention_ms is not None:
            config["retention.ms"] = str(retention_ms)
        if self.compacted:
            config["min.compaction.lag.ms"] = str(REPLAY_HORIZON_MS)
        return config


MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Largest size of a message of any topic; records are split into parts that are much smaller."""

MAX_ELEMENTS: Final = 4096
"""Largest number of elements of a top-level array in one record; more are split into several parts."""

PROBES: Final = Topic(
    "fabric.probes",
    "NIC",
    records.ProbeBatch,
    "one NIC's probe samples since its last flush",
    Partitions.DATA,
    24 * HOUR_MS,
    retention_setting="probes.retention_hours",
    writers=("prober", "sim"),
    readers=("map",),
)
INVENTORY: Final = Topic(
    "fabric.inventory",
    "NIC",
    records.Nic,
    "every NIC: host, device, shard, addresses, clock, kind of timestamps",
    Partitions.ONE,
    None,
    compacted=True,
    writers=("prober", "sim"),
    readers=(
        *("prober", "flows", "map", "solve", "sink", "web", "up"),
        *("actuator", "auditor", "audit", "drains", "notify", "alert"),
    ),
)
CLOCK_FITS: Final = Topic(
    "fabric.clock.fits",
    "shard",
    records.ClockFits,
    "clock fits of all NIC pairs of one source partition and window",
    Partitions.DATA,
    DAY_MS,
    writers=("map", "prober"),
    readers=("map", "solve", "sink", "up"),
)
CLOCK_OFFSETS: Final = Topic(
    "fabric.clock.offsets",
    "shard/part",
    records.ClockOffsets,
    "offsets and drifts of all clocks in one window, in parts",
    Partitions.DATA,
    7 * DAY_MS,
    compacted=True,
    writers=("solve",),
    readers=("prober", "sim", "map", "solve", "sink", "web", "up", "actuator", "audit"),
)
DELAYS: Final = Topic(
    "fabric.delays",
    "NIC",
    records.PathDelays,
    "one NIC's window: counts, losses and delays per peer and path",
    Partitions.DATA,
    DAY_MS,
    writers=("map", "prober"),
    readers=("solve", "sink", "web", "up", "audit"),
)
PATHS: Final = Topic(
    "fabric.paths",
    "NIC>NIC",
    records.PathMaps,
    "the links that probes take from one NIC to another",
    Partitions.DATA,
    None,
    compacted=True,
    writers=("prober", "sim"),
    readers=("solve", "sink", "web", "up", "audit"),
)
PROBE_SCHEDULES: Final = Topic(
    "fabric.probe-schedules",
    "NIC",
    records.ProbeSchedule,
    "probe slots of each NIC, so that every link is probed at even intervals",
    Partitions.DATA,
    HOUR_MS,
    compacted=True,
    writers=("solve",),
    readers=("prober", "sim"),
)
FLOW_ROUTES: Final = Topic(
    "fabric.flow-routes",
    "NIC>NIC",
    records.FlowRoutes,
    "the links that flows take, and would take from other source ports",
    Partitions.DATA,
    None,
    compacted=True,
    writers=("flows", "sim"),
    readers=("flows", "solve", "up", "audit"),
)
LINKS: Final = Topic(
    "fabric.links",
    "shard",
    records.LinkEvent,
    "evidence about links: probe losses, carrier, counters, verbs events",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("prober", "sim"),
    readers=("solve", "web"),
)
LINK_HEALTH: Final = Topic(
    "fabric.link-health",
    "link",
    records.LinkHealth,
    "health of each cable, NIC and host: UP, GREY, FLAPPING, DOWN",
    Partitions.DATA,
    None,
    compacted=True,
    writers=("solve",),
    readers=("solve", "sink", "web", "up", "audit"),
)
PATH_QUEUEING: Final = Topic(
    "fabric.path-queueing",
    "shard",
    records.PathQueueing,
    "delays above each path's floor in short slots",
    Partitions.DATA,
    HOUR_MS,
    writers=("map",),
    readers=("solve",),
)
QUEUES: Final = Topic(
    "fabric.queues",
    "shard",
    records.LinkQueues,
    "inferred depth and utilisation of the shard's links",
    Partitions.DATA,
    DAY_MS,
    writers=("solve",),
    readers=("solve", "sink", "web", "up", "audit"),
)
FLOWS: Final = Topic(
    "fabric.flows",
    "host",
    records.FlowReports,
    "queue pairs and flows with path, job, tenant, bytes and rate",
    Partitions.DATA,
    DAY_MS,
    writers=("flows", "sim"),
    readers=("prober", "solve", "sink", "web", "up", "actuator"),
)
COLLECTIVES: Final = Topic(
    "fabric.collectives",
    "job",
    records.CollectiveBatch,
    "operations of the processes of a job, as the profilers of NCCL, RCCL and MPI saw them",
    Partitions.DATA,
    DAY_MS,
    writers=("collectives", "sim"),
    readers=("solve", "sink", "web", "up", "audit"),
)
DIAGNOSES: Final = Topic(
    "fabric.diagnoses",
    "job",
    records.Diagnosis,
    "time split of each job, and the explanation of its speed",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("solve",),
    readers=("solve", "sink", "web", "up"),
)
CONTENTION: Final = Topic(
    "fabric.contention",
    "link",
    records.ContentionWindow,
    "persistent queues: link, interval, cause and flows",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("solve",),
    readers=("solve", "sink", "web", "up"),
)
ALERTS: Final = Topic(
    "fabric.alerts",
    "alert_id",
    records.Alert,
    "problems that people should know of, raised once and cleared once",
    Partitions.DATA,
    7 * DAY_MS,
    compacted=True,
    writers=("solve",),
    readers=("solve", "sink", "web", "up", "drains", "notify", "alert"),
)
ALERT_NOTES: Final = Topic(
    "fabric.alert-notes",
    "subject",
    records.AlertNote,
    "acknowledgements, silences, maintenance windows, owners and comments of alerts",
    Partitions.ONE,
    None,
    compacted=True,
    writers=("alert",),
    readers=("alert", "notify", "web"),
)
DECISIONS: Final = Topic(
    "fabric.decisions",
    "host",
    records.Decision,
    "actions that the policy wants for flows, with the reason",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("solve", "sim"),
    readers=("solve", "sink", "web", "up", "actuator", "notify"),
)
POLICY_CYCLES: Final = Topic(
    "fabric.policy-cycles",
    "shard",
    records.PolicyCycles,
    "the inputs that each policy cycle used, and the actions that it suppressed",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("solve",),
    readers=("solve", "web", "up"),
)
FALLBACKS: Final = Topic(
    "fabric.fallbacks",
    "host",
    records.Fallbacks,
    "ranked other paths of each flow, for local repair",
    Partitions.DATA,
    None,
    compacted=True,
    writers=("solve",),
    readers=("up", "actuator"),
)
ACTUATORS: Final = Topic(
    "fabric.actuators",
    "actuator",
    records.ActuatorState,
    "state of each actuator: mode, actions in force",
    Partitions.ONE,
    DAY_MS,
    writers=("actuator",),
    readers=("config",),
)
ACTIONS: Final = Topic(
    "fabric.actions",
    "host",
    records.ActionReport,
    "outcomes of decisions at the actuators",
    Partitions.DATA,
    7 * DAY_MS,
    writers=("actuator", "drains"),
    readers=("solve", "sink", "web", "up", "drains", "notify"),
)
CONFIG: Final = Topic(
    "fabric.config",
    "host or *",
    records.ActuatorConfig,
    "mode, limits, thresholds and latency rules, changed at runtime",
    Partitions.ONE,
    None,
    compacted=True,
    writers=("config",),
    readers=("solve", "web", "up", "actuator", "drains"),
)
AUDIT_RUNS: Final = Topic(
    "fabric.audit.runs",
    "run",
    records.AuditRun,
    "requests to audit hosts",
    Partitions.ONE,
    30 * DAY_MS,
    writers=("audit",),
    readers=("auditor", "audit"),
)
AUDIT: Final = Topic(
    "fabric.audit",
    "run",
    records.AuditResult,
    "outcome of each check of each audited host",
    Partitions.ONE,
    30 * DAY_MS,
    writers=("auditor", "audit"),
    readers=("solve", "audit", "drains", "sink"),
)
REPAIRS: Final = Topic(
    "fabric.repairs",
    "repair",
    records.Repair,
    "break-fix records of drained nodes: cause, evidence, jobs, end",
    Partitions.ONE,
    400 * DAY_MS,
    compacted=True,
    writers=("drains",),
    readers=("drains", "audit", "sink"),
)
TRUTH: Final = Topic(
    "fabric.truth",
    "shard",
    records.FabricTruth,
    "ground truth of the simulated fleet; no detector reads it",
    Partitions.DATA,
    DAY_MS,
    writers=("sim",),
    readers=("bench",),
)
STEPS: Final = Topic(
    "fabric.steps",
    "stage/partition",
    records.Steps,
    "what each operator took before each advance, from which a replay gives the same output",
    Partitions.DATA,
    DAY_MS,
    writers=("map", "solve"),
    readers=("up",),
)
REJECTS: Final = Topic(
    "fabric.rejects",
    "topic",
    records.Reject,
    "messages that could not be used, with the reason",
    Partitions.ONE,
    7 * DAY_MS,
    writers=("map", "solve", "sink", "actuator"),
    readers=("sink",),
)
SCHEMAS: Final = Topic(
    "fabric.schemas",
    "fingerprint",
    dict[str, Any],
    "Avro schemas of all versions that write, as JSON",
    Partitions.ONE,
    None,
    compacted=True,
)
"""No topic of the contract, as its values are no records; see `schemas.kafka.schema_log`."""

TOPICS: Final[dict[str, Topic]] = {
    topic.name: topic
    for topic in (
        PROBES,
        INVENTORY,
        CLOCK_FITS,
        CLOCK_OFFSETS,
        DELAYS,
        PATHS,
        PROBE_SCHEDULES,
        LINKS,
        LINK_HEALTH,
        PATH_QUEUEING,
        QUEUES,
        FLOWS,
        FLOW_ROUTES,
        COLLECTIVES,
        DIAGNOSES,
        CONTENTION,
        ALERTS,
        ALERT_NOTES,
        DECISIONS,
        POLICY_CYCLES,
        FALLBACKS,
        ACTIONS,
        ACTUATORS,
        CONFIG,
        AUDIT_RUNS,
        AUDIT,
        REPAIRS,
        TRUTH,
        STEPS,
        REJECTS,
    )
}

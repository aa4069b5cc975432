"""The table of topics: name, key, record, partitions, retention, who writes and who reads.

In: nothing. Out: `TOPICS`, used by the embedded log, by every producer and consumer, and by the test that
compares this table with what each service opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

REPLAY_HORIZON_MS: Final = DAY_MS
"""How far back a window can be run again: compaction leaves younger records alone."""


class Partitions(StrEnum):
    """How many partitions a topic has."""

    DATA = "data"
    """`log.partitions` of the configuration: topics that meet in one agent share it."""
    ONE = "one"


@dataclass(frozen=True)
class Topic:
    """One topic of the contract. `retention_ms` is None where only compaction removes records."""

    name: str
    key: str
    record: str
    doc: str
    partitions: Partitions
    retention_ms: int | None
    compacted: bool = False
    retention_setting: str | None = None
    writers: tuple[str, ...] = field(default=())
    readers: tuple[str, ...] = field(default=())

    def config(self, *, retention_hours: float | None = None) -> dict[str, str]:
        """Kafka topic configuration; `retention_hours` overrides where the topic has a setting for it."""
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
"""Largest message that any topic takes; records are cut into parts well below it."""

MAX_ELEMENTS: Final = 4096
"""Most elements of a top-level array in one record; more go into further parts."""

PROBES: Final = Topic(
    "fabric.probes", "NIC", "ProbeBatch", "one NIC's samples since its last flush",
    Partitions.DATA, 24 * HOUR_MS, retention_setting="probes.retention_hours",
    writers=("prober", "sim"), readers=("map",),
)  # fmt: skip
INVENTORY: Final = Topic(
    "fabric.inventory", "NIC", "Nic", "every NIC: host, device, shard, addresses, clock, stamp kind",
    Partitions.ONE, None, compacted=True,
    writers=("prober", "sim"), readers=("prober", "flows", "map", "solve", "sink", "page", "up", "actuator"),
)  # fmt: skip
CLOCK_FITS: Final = Topic(
    "fabric.clock.fits", "shard", "ClockFits", "all pairs that one source fitted in one window",
    Partitions.DATA, DAY_MS,
    writers=("map", "prober"), readers=("map", "solve", "sink", "up"),
)  # fmt: skip
CLOCK_OFFSETS: Final = Topic(
    "fabric.clock.offsets", "shard/part", "ClockOffsets", "a window's clocks, in parts",
    Partitions.DATA, 7 * DAY_MS, compacted=True,
    writers=("solve",), readers=("prober", "sim", "map", "solve", "sink", "page", "up", "actuator"),
)  # fmt: skip
DELAYS: Final = Topic(
    "fabric.delays", "NIC", "PathDelays", "a NIC's window: counts, loss and delays per peer and path",
    Partitions.DATA, DAY_MS,
    writers=("map", "prober"), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
PATHS: Final = Topic(
    "fabric.paths", "NIC>NIC", "PathMaps", "the links that packets take from one NIC to another",
    Partitions.DATA, None, compacted=True,
    writers=("prober", "sim"), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
PROBE_SCHEDULES: Final = Topic(
    "fabric.probe-schedules", "NIC", "ProbeSchedule", "when and where to each prober sends, so that all links are seen",
    Partitions.DATA, HOUR_MS, compacted=True,
    writers=("solve",), readers=("prober", "sim"),
)  # fmt: skip
FLOW_ROUTES: Final = Topic(
    "fabric.flow-routes", "NIC>NIC", "FlowRoutes", "the links that flows take, and would from other source ports",
    Partitions.DATA, None, compacted=True,
    writers=("flows", "sim"), readers=("flows", "solve", "up"),
)  # fmt: skip
LINKS: Final = Topic(
    "fabric.links", "shard", "LinkEvent", "evidence about links: losses, ports, counters, verbs",
    Partitions.DATA, 7 * DAY_MS,
    writers=("prober", "sim"), readers=("solve", "page"),
)  # fmt: skip
LINK_HEALTH: Final = Topic(
    "fabric.link-health", "link", "LinkHealth", "health of each cable, NIC and host: UP, GREY, FLAPPING, DOWN",
    Partitions.DATA, None, compacted=True,
    writers=("solve",), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
PATH_QUEUEING: Final = Topic(
    "fabric.path-queueing", "shard", "PathQueueing", "delays above each path's floor in short slots",
    Partitions.DATA, HOUR_MS,
    writers=("map",), readers=("solve",),
)  # fmt: skip
QUEUES: Final = Topic(
    "fabric.queues", "shard", "LinkQueues", "inferred depth and utilisation of the shard's links",
    Partitions.DATA, DAY_MS,
    writers=("solve",), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
FLOWS: Final = Topic(
    "fabric.flows", "host", "FlowReports", "queue pairs and flows with path, job, tenant, bytes and rate",
    Partitions.DATA, DAY_MS,
    writers=("flows", "sim"), readers=("prober", "solve", "sink", "page", "up", "actuator"),
)  # fmt: skip
CONTENTION: Final = Topic(
    "fabric.contention", "link", "ContentionWindow", "queues that stand: where, since when, why, whose",
    Partitions.DATA, 7 * DAY_MS,
    writers=("solve",), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
ALERTS: Final = Topic(
    "fabric.alerts", "subject", "Alert", "what people should know, raised once and cleared once",
    Partitions.DATA, 7 * DAY_MS, compacted=True,
    writers=("solve",), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
DECISIONS: Final = Topic(
    "fabric.decisions", "host", "Decision", "what flows are to do, and why",
    Partitions.DATA, 7 * DAY_MS,
    writers=("solve",), readers=("solve", "sink", "page", "up", "actuator"),
)  # fmt: skip
POLICY_CYCLES: Final = Topic(
    "fabric.policy-cycles", "shard", "PolicyCycles", "what policy had read when it decided, and what it held back",
    Partitions.DATA, 7 * DAY_MS,
    writers=("solve",), readers=("solve", "page", "up"),
)  # fmt: skip
FALLBACKS: Final = Topic(
    "fabric.fallbacks", "host", "Fallbacks", "each flow's other paths, ranked, for when nobody decides",
    Partitions.DATA, None, compacted=True,
    writers=("solve",), readers=("up", "actuator"),
)  # fmt: skip
ACTUATORS: Final = Topic(
    "fabric.actuators", "actuator", "ActuatorState", "what each actuator is at: mode, what is in force",
    Partitions.ONE, DAY_MS,
    writers=("actuator",), readers=("config",),
)  # fmt: skip
ACTIONS: Final = Topic(
    "fabric.actions", "host", "ActionReport", "what actuators made of decisions",
    Partitions.DATA, 7 * DAY_MS,
    writers=("actuator",), readers=("solve", "sink", "page", "up"),
)  # fmt: skip
CONFIG: Final = Topic(
    "fabric.config", "host or *", "ActuatorConfig", "mode, limits, thresholds and promises, live",
    Partitions.ONE, None, compacted=True,
    writers=("config",), readers=("solve", "page", "up", "actuator"),
)  # fmt: skip
TRUTH: Final = Topic(
    "fabric.truth", "shard", "FabricTruth", "what is really so in the simulated fleet; no detector reads it",
    Partitions.DATA, DAY_MS,
    writers=("sim",), readers=("bench",),
)  # fmt: skip
REJECTS: Final = Topic(
    "fabric.rejects", "topic", "Reject", "messages that could not be read, with why",
    Partitions.ONE, 7 * DAY_MS,
    writers=("map", "solve", "sink", "actuator"), readers=("sink",),
)  # fmt: skip

TOPICS: Final[dict[str, Topic]] = {
    topic.name: topic
    for topic in (
        PROBES, INVENTORY, CLOCK_FITS, CLOCK_OFFSETS, DELAYS, PATHS, PROBE_SCHEDULES, LINKS, LINK_HEALTH, PATH_QUEUEING,
        QUEUES, FLOWS, FLOW_ROUTES, CONTENTION, ALERTS, DECISIONS, POLICY_CYCLES, FALLBACKS, ACTIONS, ACTUATORS,
        CONFIG, TRUTH, REJECTS,
    )
}  # fmt: skip

"""The only module of the golden tests that imports product code: each stage's pure logic behind one function.

Follow a move or a rename of product code here. A stage takes the rows of its input topics in log order and
yields `(topic, key, record)` of its output topics. Field names are those of today's schemas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CLOCK_FITS,
    CLOCK_OFFSETS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    DELAYS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATH_QUEUEING,
    PATHS,
    POLICY_CYCLES,
    PROBES,
    QUEUES,
    TOPICS,
)
from schemas.topology import Topology, load_topology
from schemas.validation import validate_link_event
from streams.alerts.ordered_inputs import AlertInputs
from streams.clock.solver import ShardClocks, SolveParameters
from streams.clock.validation import validate_fits
from streams.clock.window_barrier import CompleteWindow, WindowBarrier
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.contention.validation import validate_queues
from streams.delays.counters import JumpLimit
from streams.delays.messages import decode_messages
from streams.delays.queueing import SourceQueueing
from streams.delays.records import clock_fits, fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.links.health import ShardHealth
from streams.policy.stage import replay_epoch
from streams.queues.inference import ShardQueues
from streams.queues.validation import validate_queueing
from streams.runtime.columnar import decode_columnar, encode_columnar
from streams.runtime.flow_table import FlowTable, LiveFlows
from streams.runtime.live_config import LiveConfig
from streams.runtime.pipeline_constants import (
    FLOW_LAG_NS,
    FLOWS_NS,
    GRACE_NS,
    HOLDOVER_S,
    SILENCE_NS,
    SUB_SLOTS,
    WINDOW_NS,
    slot_ns_of,
)
from streams.runtime.route_table import RouteTable, link_rate_bps
from streams.runtime.tables import ClockTable, Inventory, Member

MS = 1_000_000
QUEUEING_EVERY_NS = 100 * MS
"""Fewer records than `QUEUEING_NS` would make keep the recordings small."""
STEP_NS = 100 * MS
NEVER_NS = 2**62
DEFAULT_SHARD = "fabric"

Record = dict[str, Any]
Output = tuple[str, str, Record | None]


def message_of(
    append_ns: int, topic: str, partition: int, offset: int, key: str, record: Record | None
) -> Message:
    """Return a recorded message as a stage receives it."""
    value = None
    if record is not None and topic == PATH_QUEUEING.name:
        # recorded before classes
        value = encode_columnar(PATH_QUEUEING.type, {"dscp": [], "ce": [], **record})
    elif record is not None:
        value = codec.encode(TOPICS[topic].record, record)
    return Message(append_ns, topic, partition, offset, key, value)


class Tables:
    """The global tables that stages look up, filled in log order."""

    def __init__(self, shard: str, topology: Topology) -> None:
        self.inventory = Inventory(shard)
        self.clocks = ClockTable(self.inventory, HOLDOVER_S, WINDOW_NS)
        self.routes = RouteTable()
        self.config = LiveConfig()
        self.flows = FlowTable(self.routes, self.inventory.members.__contains__)
        self.topology = topology
        self._of = {
            INVENTORY.name: self.inventory,
            CLOCK_OFFSETS.name: self.clocks,
            PATHS.name: self.routes,
            CONFIG.name: self.config,
            FLOWS.name: self.flows,
        }

    def take(self, row: Message) -> None:
        """Take a message where a table holds its topic; pass over one that the codec refuses."""
        if row.topic in self._of:
            with contextlib.suppress(codec.BadRecord):
                self._of[row.topic].take(row.key.encode(), row.value, None, row.append_ns)

    def rate_bps(self, link: str) -> int:
        """Return bit/s of a link."""
        return link_rate_bps(link, self.topology, self.inventory.speeds_bps)

    def fastest_bps(self) -> int:
        """Return the rate of the fastest link."""
        rates = [self.topology.rate_bps(link) for link in self.topology.links()]
        return max(rates, default=0) or max(self.inventory.speeds_bps.values(), default=0)


def topology_of(path: Path) -> Topology:
    """Return what the topology file says, or an empty topology."""
    return load_topology(path) if path.exists() else Topology()


# ------------------------------------------------------------------------------------ stages


class Stage:
    """One stage. `inputs`: the topics that it reads, the one that it works through last."""

    inputs: tuple[str, ...] = ()
    times_are_exact = False
    """Whether append times are compared with times inside records, so that none may be moved by 1 ns."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def take(self, row: Message) -> Iterator[Output]:
        """Take the next message of the log; yield what follows from it."""
        raise NotImplementedError

    def end(self) -> Iterator[Output]:
        """Yield what still follows when the log ends."""
        yield from ()


class _Members(dict[str, Member]):
    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, nic: str) -> Member:
        return self._inventory.member(nic)

    def __contains__(self, nic: object) -> bool:
        return True


class MapStage(Stage):
    """Probes in; `ClockFits`, `PathDelays` and `PathQueueing` out."""

    inputs = (INVENTORY.name, CLOCK_OFFSETS.name, PROBES.name)

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._limit = JumpLimit(100_000, 1000.0)
        self._parts: dict[int, tuple[Source, SourceQueueing]] = {}
        self._taken_ns = self._newest_ns = 0

    def take(self, row: Message) -> Iterator[Output]:
        """Take a batch of probes."""
        if row.topic != PROBES.name:
            return
        if row.partition not in self._parts:
            name = f"{row.topic}/{row.partition}"
            slot_ns = slot_ns_of(self.tables.fastest_bps()) // SUB_SLOTS
            self._parts[row.partition] = (
                Source(name, WINDOW_NS, SILENCE_NS),
                SourceQueueing(name, slot_ns),
            )
        source, queueing = self._parts[row.partition]
        batches, _ = decode_messages([row])
        closed = source.add_messages([row], batches)
        queueing.add_messages([row], batches, self.tables.clocks.models())
        yield from self._publish(queueing, closed)
        self._newest_ns = max(self._newest_ns, row.append_ns)
        if self._newest_ns - self._taken_ns >= QUEUEING_EVERY_NS:
            self._taken_ns = self._newest_ns
            for _, (_, each) in sorted(self._parts.items()):
                yield from self._queueing(each)

    def end(self) -> Iterator[Output]:
        """Close the open windows."""
        for _, (source, queueing) in sorted(self._parts.items()):
            yield from self._publish(
                queueing, source.tick(self._newest_ns + 2 * WINDOW_NS, 2 * WINDOW_NS, True)
            )
            yield from self._queueing(queueing)

    def _publish(self, queueing: SourceQueueing, closed: Iterable[ClosedWindow]) -> Iterator[Output]:
        inventory, clocks = self.tables.inventory, self.tables.clocks
        for window in closed:
            fitted = fit_window(window)
            members = {nic: inventory.member(nic) for nic in window.nics}
            for record in clock_fits(fitted, members, inventory.shards(), WINDOW_NS, self._limit):
                yield CLOCK_FITS.name, record["shard"], record
            queueing.learn(fitted.fits)
            models, end_ns = clocks.models(), (window.cut.window + 1) * WINDOW_NS
            for nic, found in sorted(window.nics.items()):
                bodies = path_delays(
                    found.samples,
                    inventory.member(nic),
                    window.cut.window,
                    WINDOW_NS,
                    models,
                    clocks.state_of(nic, end_ns),
                    clocks.log_offset_ns,
                )
                for body in bodies:
                    yield DELAYS.name, nic, codec.decode(codec.header(DELAYS.record) + body, DELAYS.record)

    def _queueing(self, queueing: SourceQueueing) -> Iterator[Output]:
        for record in queueing.take(_Members(self.tables.inventory)):
            value = encode_columnar(PATH_QUEUEING.type, record)
            yield PATH_QUEUEING.name, record["shard"], decode_columnar(value, PATH_QUEUEING.type)


class ClocksStage(Stage):
    """`ClockFits` in, `ClockOffsets` out."""

    inputs = (INVENTORY.name, CLOCK_FITS.name)

    def __init__(self, tables: Tables, sources: Iterable[str] = ()) -> None:
        super().__init__(tables)
        self._sources = set(sources)
        self._shards: dict[str, tuple[ShardClocks, WindowBarrier]] = {}

    def take(self, row: Message) -> Iterator[Output]:
        """Take the fits of one source and window."""
        if row.topic != CLOCK_FITS.name or row.value is None:
            return
        fits, _ = validate_fits(codec.decode(row.value, CLOCK_FITS.record), row.append_ns, WINDOW_NS)
        shard = fits["shard"]
        if shard not in self._shards:
            barrier = WindowBarrier(self._sources, GRACE_NS)
            self._shards[shard] = (ShardClocks(shard, SolveParameters()), barrier)
        clocks, barrier = self._shards[shard]
        barrier.add(fits, row.offset, row.append_ns, row.offset)
        for window in barrier.ready(row.append_ns):
            yield from self._solve(clocks, window)

    def end(self) -> Iterator[Output]:
        """Solve the windows that wait for sources."""
        for _, (clocks, barrier) in sorted(self._shards.items()):
            for window in barrier.ready(NEVER_NS):
                yield from self._solve(clocks, window)

    def _solve(self, clocks: ShardClocks, window: CompleteWindow) -> Iterator[Output]:
        inventory, solved_ns = self.tables.inventory, (window.window + 1) * WINDOW_NS
        records = clocks.solve(
            window.window,
            WINDOW_NS,
            window.fits,
            inventory.clock_of(),
            solved_ns,
            inventory.stamp_errors_ns(),
        )
        for record in records:
            yield CLOCK_OFFSETS.name, f"{record['shard']}/{record['part']}", record


class HealthStage(Stage):
    """`LinkEvent` in, `LinkHealth` out."""

    inputs = (INVENTORY.name, PATHS.name, CONFIG.name, CLOCK_OFFSETS.name, LINKS.name)

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._shards: dict[tuple[int, str], ShardHealth] = {}

    def take(self, row: Message) -> Iterator[Output]:
        """Take evidence, and let time pass up to the message."""
        if row.topic == LINKS.name and row.value is not None:
            event = validate_link_event(codec.decode(row.value, LINKS.record))
            at = (row.partition, event["shard"])
            if at not in self._shards:
                members = self.tables.inventory.members
                self._shards[at] = ShardHealth(
                    event["shard"],
                    self.tables.config.thresholds(),
                    f"{row.topic}/{row.partition}",
                    lambda nic: not members or nic in members,
                )
            health = self._updated(at)
            for subject, record in health.ingest(event, row.append_ns, self.tables.routes, row.offset):
                yield LINK_HEALTH.name, subject, record
        for at in sorted(self._shards):
            if self._shards[at].due_ns <= row.append_ns:
                for subject, record in self._updated(at).evaluate(row.append_ns):
                    yield LINK_HEALTH.name, subject, record

    def _updated(self, at: tuple[int, str]) -> ShardHealth:
        health, clocks = self._shards[at], self.tables.clocks
        health.thresholds = self.tables.config.thresholds()
        health.log_offset_ns = health.evidence.log_offset_ns = clocks.log_offset_ns
        health.evidence.clock_models = clocks.models()
        return health


class QueuesStage(Stage):
    """`PathQueueing` in, `LinkQueues` out."""

    inputs = (INVENTORY.name, PATHS.name, FLOWS.name, CLOCK_OFFSETS.name, PATH_QUEUEING.name)

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._shards: dict[str, tuple[ShardQueues, LiveFlows]] = {}
        self._flows_ns: dict[str, int] = {}

    def take(self, row: Message) -> Iterator[Output]:
        """Take the queueing of one source's paths."""
        if row.topic != PATH_QUEUEING.name or row.value is None:
            return
        now_ns = row.append_ns + self.tables.clocks.log_offset_ns
        record = validate_queueing(decode_columnar(row.value, PATH_QUEUEING.type), now_ns)
        shard = record["shard"]
        if shard not in self._shards:
            self._shards[shard] = (ShardQueues(shard, self.tables.rate_bps), self.tables.flows.of(shard))
        queues, flows = self._shards[shard]
        queues.take(record, self.tables.routes)
        if row.append_ns - self._flows_ns.get(shard, 0) >= FLOWS_NS:
            self._flows_ns[shard] = row.append_ns
            flows.advance(row.append_ns)
            queues.set_flow_rates(flows.rates_bps())
        while queues.ready():
            for made in queues.solve(row.append_ns):
                yield QUEUES.name, made["shard"], made


class ContentionStage(Stage):
    """`LinkQueues` in, `ContentionWindow` out."""

    inputs = (INVENTORY.name, PATHS.name, CONFIG.name, FLOWS.name, QUEUES.name)

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._shards: dict[str, tuple[ContentionDetector, LiveFlows]] = {}

    def take(self, row: Message) -> Iterator[Output]:
        """Take a window of queues."""
        if row.topic != QUEUES.name or row.value is None:
            return
        queues = validate_queues(codec.decode(row.value, QUEUES.record), row.append_ns)
        shard, members = queues["shard"], self.tables.inventory.members
        if shard not in self._shards:
            flows = self.tables.flows.of(shard)
            detector = ContentionDetector(
                shard, flows, members.__contains__, self._hosts, self.tables.rate_bps
            )
            self._shards[shard] = (detector, flows)
        detector, flows = self._shards[shard]
        flows.advance(row.append_ns - FLOW_LAG_NS)
        for record in detector.ingest(queues, ContentionRules.of(self.tables.config.thresholds())):
            yield CONTENTION.name, record["link"], record

    def _hosts(self) -> int:
        return len({member.host for member in self.tables.inventory.members.values()})


class AlertsStage(Stage):
    """All that alerts are made of in, `Alert` out."""

    inputs = (
        CONFIG.name,
        INVENTORY.name,
        PATHS.name,
        LINK_HEALTH.name,
        CONTENTION.name,
        CLOCK_OFFSETS.name,
        DELAYS.name,
        LINKS.name,
    )

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._inputs = AlertInputs(
            default_shard=tables.inventory.default_shard, topology=tables.topology, window_ns=WINDOW_NS
        )
        self._at_ns = self._newest_ns = 0

    def take(self, row: Message) -> Iterator[Output]:
        """Take a message, and evaluate what lies `STEP_NS` and more before it."""
        self._inputs.add(row)
        self._newest_ns = row.append_ns
        if not self._at_ns:
            self._at_ns = row.append_ns - STEP_NS
        while self._at_ns + 2 * STEP_NS <= row.append_ns:
            self._at_ns += STEP_NS
            yield from self._evaluated()

    def end(self) -> Iterator[Output]:
        """Evaluate the rest."""
        self._at_ns = self._newest_ns
        yield from self._evaluated()
        assert not self._inputs.rejected, self._inputs.rejected[0][1]

    def _evaluated(self) -> Iterator[Output]:
        for key, record in self._inputs.evaluate(self._at_ns) + self._inputs.evaluate_delays(self._at_ns):
            yield ALERTS.name, key, record


class PolicyStage(Stage):
    """Recorded cycles and the inputs that they read in, `Decision` out."""

    inputs = (
        CONFIG.name,
        INVENTORY.name,
        FLOW_ROUTES.name,
        LINK_HEALTH.name,
        CONTENTION.name,
        QUEUES.name,
        FLOWS.name,
        ACTIONS.name,
        POLICY_CYCLES.name,
    )
    times_are_exact = True

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._cycles: dict[tuple[str, int], list[Record]] = {}
        self._messages: list[Message] = []

    def take(self, row: Message) -> Iterator[Output]:
        """Keep a message until the log ends."""
        if row.topic != POLICY_CYCLES.name:
            self._messages.append(row)
        elif row.value is not None:
            record = codec.decode(row.value, POLICY_CYCLES.record)
            self._cycles.setdefault((record["shard"], record["epoch"]), []).append(record)
        yield from ()

    def end(self) -> Iterator[Output]:
        """Decide every cycle again."""
        shard = self.tables.inventory.default_shard
        for _, records in sorted(self._cycles.items()):
            topology = self.tables.topology
            for _, output in replay_epoch(records, self._messages, default_shard=shard, topology=topology):
                if output.topic is DECISIONS:
                    yield DECISIONS.name, output.key, output.record


STAGES: dict[str, type[Stage]] = {
    "map": MapStage,
    "clocks": ClocksStage,
    "health": HealthStage,
    "queues": QueuesStage,
    "contention": ContentionStage,
    "alerts": AlertsStage,
    "policy": PolicyStage,
}


def run(stage: str, rows: Sequence[Message], topology: Topology) -> Iterator[Output]:
    """Yield what a stage makes of the rows of its inputs."""
    tables = Tables(DEFAULT_SHARD, topology)
    if stage == "clocks":
        fits = [row.value for row in rows if row.topic == CLOCK_FITS.name and row.value is not None]
        found = {codec.decode(value, CLOCK_FITS.record)["source"] for value in fits}
        work: Stage = ClocksStage(tables, found)
    else:
        work = STAGES[stage](tables)
    for row in rows:
        tables.take(row)
        yield from work.take(row)
    yield from work.end()


__all__ = ["STAGES", "Output", "Stage", "Tables", "message_of", "run", "topology_of"]

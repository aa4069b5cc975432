"""Collects the inputs of a worker's policies cycle by cycle, so that the log reproduces the same cycles.

`PolicyCycles` records contain, for each cycle, its time and the position read in each input. Messages read
between two cycles are applied in the order (topic as in `INPUTS`, partition, offset). The log holds all
inputs except the topology file. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import (
    ActuatorConfig,
    ContentionWindow,
    Decision,
    LinkHealth,
    PolicyCycle,
    PolicyCycles,
)
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    MAX_ELEMENTS,
    POLICY_CYCLES,
    QUEUES,
    Topic,
)
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS, refusal
from streams.policy.cycle import CycleResult, Outgoing, SuppressedAction
from streams.policy.policy import Policy
from streams.policy.rules import Rules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.flow_routes import FlowRoute, FlowRouteTable
from streams.runtime.flow_table import STALE_NS, FlowTable, LiveFlow, LiveFlows
from streams.runtime.live_config import LiveConfig
from streams.runtime.operator import Moment, Operator, Output, Past, records_of
from streams.runtime.route_table import RouteTable, link_rate_bps
from streams.runtime.tables import MAX_UNSOLVED_NS, GlobalTable, Inventory
from streams.runtime.units import NS_PER_MS, NS_PER_S

TopicPartition = tuple[str, int]
R = TypeVar("R")

WHOLE_TOPICS: Final[tuple[Topic[Any], ...]] = (CONFIG, INVENTORY, FLOW_ROUTES, LINK_HEALTH)
"""Topics that are read from their beginning."""
INPUTS: Final[tuple[Topic[Any], ...]] = (*WHOLE_TOPICS, CONTENTION, QUEUES, FLOWS, ACTIONS)
ORDER: Final = {topic.name: number for number, topic in enumerate(INPUTS)}
LOOKBACK_NS: Final = {
    CONTENTION.name: 10 * NS_PER_S,
    QUEUES.name: NS_PER_S,
    FLOWS.name: 30 * NS_PER_S,
    ACTIONS.name: 600 * NS_PER_S,
}
"""How far back a new owner reads the other topics, ns. For actions it is far enough to include local repairs
made without an owner."""
DECISION_LOOKBACK_NS: Final = 600 * NS_PER_S
"""How far back decisions of earlier epochs count."""
PERIODIC_TOPICS: Final = frozenset({FLOWS.name, QUEUES.name})
"""Topics with regular messages, which do not cause a cycle but wait for the next regular one."""
REJECTING_TOPICS: Final = frozenset({FLOW_ROUTES.name, ACTIONS.name})
"""Topics whose invalid messages this stage must reject, because no other stage does."""
CYCLE_NS: Final = 100 * NS_PER_MS
"""Time from one regular cycle to the next."""
MIN_CYCLE_NS: Final = 20 * NS_PER_MS
"""Shortest time from one cycle to one that a new message causes; link health causes a cycle at once."""
MAX_CYCLES_PER_RECORD: Final = 64
CYCLE_RECORD_NS: Final = 250 * NS_PER_MS
"""Longest time for which cycles without a decision wait to be published."""
REPEAT_SUPPRESSED_NS: Final = 10 * NS_PER_S
"""Interval at which unchanged suppressed actions are published again, for new readers."""


def read_from(epoch: int) -> dict[str, int]:
    """Return, by topic, the append time, ns, from which an epoch's owner reads. An epoch is a time in ms."""
    starts_ns = dict.fromkeys((topic.name for topic in WHOLE_TOPICS), 0)
    for name, lookback_ns in LOOKBACK_NS.items():
        starts_ns[name] = max(0, epoch * NS_PER_MS - lookback_ns)
    return starts_ns


@dataclass(slots=True)
class _Shard:
    policy: Policy
    live: LiveFlows
    was_urgent: bool = False
    """True if the last cycle was an urgent one, which ran failover alone."""
    number: int = 0
    """Number of the next cycle."""
    now_ns: int = 0
    """Time of the last cycle."""
    published_ns: int = 0
    positions: list[int] = field(default_factory=list)
    """Position in each input at the last recorded cycle."""
    suppressed: list[SuppressedAction] | None = None
    suppressed_ns: int = 0
    """Time at which the suppressed actions were last published."""
    cycles: list[PolicyCycle] = field(default_factory=list)

    def pass_to(self, now_ns: int) -> int:
        """Return the time of the next cycle: `now_ns`, or the time of the last cycle after a small step back.

        A change of the clock's pace steps back by less than `MAX_UNSOLVED_NS`. A larger step corrects fabric
        time and is followed, because cycles would otherwise have the same time for as long as the step.
        """
        if not self.now_ns - MAX_UNSOLVED_NS <= now_ns < self.now_ns:
            self.now_ns = now_ns
        return self.now_ns


class PolicyInputs(Operator):
    """Runs the policies of the shards that `owned` accepts. `partitions`: all input partitions, in order."""

    def __init__(
        self,
        epoch: int,
        partitions: Iterable[TopicPartition],
        owned: Callable[[str], bool] | None = None,
        *,
        default_shard: str = "fabric",
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        self.epoch = epoch
        self.partitions = sorted(partitions)
        self.has_news = self.has_urgent = False
        """Whether a message outside `PERIODIC_TOPICS` (`has_news`), or one about link health, waits."""
        self.shards: dict[str, _Shard] = {}
        self._owned = owned or (lambda shard: True)
        self._registry, self._rules = registry, rules
        self._topology = topology if topology is not None else Topology()
        self._decisions: list[Decision] = []
        """Decisions of earlier epochs, in order."""
        self._inventory = Inventory(default_shard)
        self._config = LiveConfig()
        self._routes = FlowRouteTable()
        self._flow_tail = FlowTable(RouteTable(), self._inventory.members.__contains__)
        self._tables: dict[str, GlobalTable] = {
            CONFIG.name: self._config,
            INVENTORY.name: self._inventory,
            FLOW_ROUTES.name: self._routes,
            FLOWS.name: self._flow_tail,
        }
        self._handlers: dict[str, Callable[[Message], None]] = {
            CONFIG.name: self._take_config,
            INVENTORY.name: self._take_inventory,
            LINK_HEALTH.name: self._take_health,
            CONTENTION.name: self._take_contention,
            QUEUES.name: self._take_queues,
            FLOWS.name: self._take_flows,
            ACTIONS.name: self._take_action,
        }
        self._rates_bps: dict[str, int] = {}
        self._positions = dict.fromkeys(self.partitions, 0)
        self._waiting: list[Message] = []
        self._health: dict[str, LinkHealth] = {}
        self._windows: dict[str, ContentionWindow] = {}
        self._pending: list[str] = []
        """Shards whose cycle is still to run in this round; the next one is at the end."""
        self._round_ns = 0
        """Log time at which the last round of cycles began; 0 before the first."""

    @property
    def topology(self) -> Topology:
        """The contents of the topology file."""
        return self._topology

    @topology.setter
    def topology(self, topology: Topology) -> None:
        if topology is not self._topology:
            self._topology = topology
            self._rates_bps.clear()

    # ------------------------------------------------------------------------------------ operator

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Keep the decisions of earlier epochs, from which each shard's policy continues."""
        earlier = (
            decision
            for decision in records_of(past, DECISIONS, self._registry)
            if decision["epoch"] < self.epoch
        )
        self._decisions = sorted(earlier, key=lambda decision: (decision["epoch"], decision["seq"]))

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Queue messages of `INPUTS`; the next cycles apply them."""
        self._waiting += messages
        for message in messages:
            self.has_urgent = self.has_urgent or message.topic == LINK_HEALTH.name
            self.has_news = self.has_news or message.topic not in PERIODIC_TOPICS

    def due_ns(self) -> int:
        """Return the log time of the next cycle, ns; 0 if a cycle is due at once."""
        if self._pending or self.needs_urgent_cycle or not self._round_ns:
            return 0
        return self._round_ns + (MIN_CYCLE_NS if self.has_news else CYCLE_NS)

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Run the cycle of one shard; each call runs the next shard of the round.

        A round begins by applying the queued messages. Decisions are published shard by shard.
        """
        self.topology = tables.topology
        if not self._pending:
            self.apply()
            self._round_ns, self._pending = moment.log_ns, sorted(self.shards, reverse=True)
        if not self._pending:
            return []
        name = self._pending.pop()
        fabric_ns = moment.log_ns + moment.offset_ns - tables.clocks.lost_ns(name, moment.log_ns)
        try:
            return self.run_cycle(name, fabric_ns, moment.log_ns)
        except DATA_ERRORS as error:
            self.failed.append((name, error))
            return []

    # ------------------------------------------------------------------------------------ messages

    def apply(self) -> None:
        """Apply the queued messages; the caller must then run a cycle of each shard."""
        waiting, self._waiting = self._waiting, []
        self.has_news = self.has_urgent = False
        waiting.sort(key=lambda message: (ORDER[message.topic], message.partition, message.offset))
        for message in waiting:
            self._positions[message.place] = message.offset + 1
            try:
                self._take(message)
            except codec.BadRecord as error:
                if message.topic in REJECTING_TOPICS:
                    self.rejected.append((message, error))
            except DATA_ERRORS as error:
                self.rejected.append((message, refusal(error)))

    def _take(self, message: Message) -> None:
        table = self._tables.get(message.topic)
        if table is not None:
            table.take_message(message, self._registry)
        handler = self._handlers.get(message.topic)
        if handler is not None:
            handler(message)

    def _take_flows(self, message: Message) -> None:
        record = self._decoded(message, FLOWS)
        if record is not None:
            self._start_shard(record["shard"])

    def _take_config(self, message: Message) -> None:
        for shard in self.shards.values():
            shard.policy.take_config(self._config_records())

    def _take_inventory(self, message: Message) -> None:
        self._rates_bps.clear()

    def _take_health(self, message: Message) -> None:
        subject, record = message.key, self._decoded(message, LINK_HEALTH)
        if record is None:
            self._health.pop(subject, None)
        else:
            self._health[subject] = record
        for shard in self.shards.values():
            shard.policy.take_health(subject, record)

    def _take_contention(self, message: Message) -> None:
        record = self._decoded(message, CONTENTION)
        if record is not None:
            self._windows[record["link"]] = record
            for shard in self.shards.values():
                shard.policy.take_contention(record)

    def _take_queues(self, message: Message) -> None:
        if not any(shard.policy.needs_queues for shard in self.shards.values()):
            return
        record = self._decoded(message, QUEUES)
        if record is not None and record["shard"] in self.shards:
            self.shards[record["shard"]].policy.take_queues(record)

    def _take_action(self, message: Message) -> None:
        record = self._decoded(message, ACTIONS)
        if record is not None:
            for shard in self.shards.values():
                shard.policy.take_action(record)

    def _decoded(self, message: Message, topic: Topic[R]) -> R | None:
        if message.value is None:
            return None
        return message.decoded(topic, self._registry)

    def _config_records(self) -> dict[str, ActuatorConfig]:
        return self._config.all()

    def _start_shard(self, name: str) -> None:
        """Start a shard's policy at its first flow report."""
        if name in self.shards or not self._owned(name):
            return
        live = self._flow_tail.of(name)
        policy = Policy(name, self.epoch, live, self, self._rate_bps, rules=self._rules)
        policy.recover(self._decisions)
        policy.take_config(self._config_records())
        for subject, record in sorted(self._health.items()):
            policy.take_health(subject, record)
        for _, window in sorted(self._windows.items()):
            policy.take_contention(window)
        self.shards[name] = _Shard(policy, live)

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        """Return, by entropy value, the route that a flow would take with it."""
        return self._routes.of(flow.nic, flow.peer, flow.peer_port)

    def _rate_bps(self, link: str) -> int:
        """Return the rate of a link, bit/s; if it is unknown, the rate of the fastest NIC."""
        rate_bps = self._rates_bps.get(link)
        if rate_bps is None:
            speeds_bps = self._inventory.speeds_bps
            rate_bps = link_rate_bps(link, self._topology, speeds_bps) or max(speeds_bps.values(), default=0)
            self._rates_bps[link] = rate_bps
        return rate_bps

    # ------------------------------------------------------------------------------------ cycles

    @property
    def needs_urgent_cycle(self) -> bool:
        """True if link health waits to be applied, or if a full cycle must follow an urgent cycle."""
        return self.has_urgent or any(shard.was_urgent for shard in self.shards.values())

    def run_cycle(self, name: str, now_ns: int, flows_ns: int) -> list[Output]:
        """Run a cycle of one shard at `now_ns`, fabric time, with flow reports up to `flows_ns`, append time.

        Small backward steps of the shard's time are ignored. After a change of link health, the cycle only
        runs failover, and a full cycle follows.
        """
        shard = self.shards[name]
        now_ns = shard.pass_to(now_ns)
        policy = shard.policy
        shard.was_urgent = policy.needs_urgent_cycle and not shard.was_urgent and policy.counts()[0] > 0
        suppressed: list[SuppressedAction] | None = None
        if shard.was_urgent:
            cycle = policy.decide_urgent(now_ns)
        else:
            shard.live.advance(flows_ns, self._inventory.simulated.stretched_ns(name, STALE_NS))
            cycle = policy.decide(now_ns)
            suppressed = _update_suppressed(shard, cycle, now_ns)
        self._note(shard, now_ns, flows_ns, len(cycle.decisions), suppressed)
        is_due = now_ns - shard.published_ns >= CYCLE_RECORD_NS or len(shard.cycles) >= MAX_CYCLES_PER_RECORD
        publishes = cycle.decisions or suppressed or is_due
        decisions = [
            _output(decision, f"{decision.record['action']} {decision.record['text']}")
            for decision in cycle.decisions
        ]
        cycles = [self._cycle_record(name, shard, now_ns)] if publishes else []
        return [
            *decisions,
            *map(_output, cycle.fallbacks),
            *(Output(POLICY_CYCLES, record["shard"], record) for record in cycles),
        ]

    def _note(
        self,
        shard: _Shard,
        now_ns: int,
        flows_ns: int,
        decisions: int,
        suppressed: list[SuppressedAction] | None,
    ) -> None:
        """Record a cycle, and how far each input was read since the last cycle."""
        elements = None if suppressed is None else [action.record() for action in suppressed[:MAX_ELEMENTS]]
        positions = [self._positions[partition] for partition in self.partitions]
        before = shard.positions or [0] * len(positions)
        steps = [now - then for now, then in zip(positions, before, strict=True)]
        shard.positions = positions
        shard.cycles.append(
            {
                "now_ns": now_ns,
                "flows_ns": flows_ns,
                "positions": steps if any(steps) else [],
                "decisions": decisions,
                "suppressed": elements,
            }
        )
        shard.number += 1

    def _cycle_record(self, name: str, shard: _Shard, now_ns: int) -> PolicyCycles:
        """Return the `PolicyCycles` record of all cycles since the last record."""
        cycles, shard.cycles, shard.published_ns = shard.cycles, [], now_ns
        flows, movable = shard.policy.counts()
        return {
            "shard": name,
            "epoch": self.epoch,
            "first_cycle": shard.number - len(cycles),
            "at_ns": now_ns,
            "inputs": [f"{topic}/{partition}" for topic, partition in self.partitions],
            "flows": flows,
            "movable": movable,
            "cycles": cycles,
        }


def _output(outgoing: Outgoing[Any], text: str = "") -> Output:
    return Output(outgoing.topic, outgoing.key, outgoing.record, text=text)


def _update_suppressed(shard: _Shard, cycle: CycleResult, now_ns: int) -> list[SuppressedAction] | None:
    """Return the suppressed actions if they changed or are due for republication, else None."""
    actions = sorted(cycle.suppressed, key=lambda action: (*action[:3], str(action.reason)))
    is_same = actions == shard.suppressed and now_ns - shard.suppressed_ns < REPEAT_SUPPRESSED_NS
    shard.suppressed = actions
    if is_same:
        return None
    shard.suppressed_ns = now_ns
    return actions

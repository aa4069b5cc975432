"""Inputs of the policies of a worker's shards, round by round, so that the log gives the same rounds again.

In: messages of `INPUTS` in any order, and when to look. Out: `Made`: decisions and fallbacks to publish; and
`PolicyCycles`, which name for every round how far each input had been read and by which time was decided.
What was read between two rounds is taken in the order (topic as in `INPUTS`, partition, offset). The topology
file alone is not in the log. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import codec
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    MAX_ELEMENTS,
    QUEUES,
    TOPICS,
    Topic,
)
from schemas.topology import Topology
from streams.alerts.ordered_inputs import Message
from streams.policy.policy import Held, Policy, Rules, Said
from streams.runtime.flow_routes import FlowRoute, FlowRouteTable
from streams.runtime.flow_table import FlowTable, LiveFlow, LiveFlows
from streams.runtime.live_config import LiveConfig
from streams.runtime.route_table import RouteTable, link_rate_bps
from streams.runtime.tables import GlobalTable, Inventory

__all__ = ["DECISION_LOOKBACK_NS", "INPUTS", "Made", "PolicyInputs", "read_from"]

Record = dict[str, Any]
Place = tuple[str, int]
"""Topic and partition."""

S: Final = 1_000_000_000
MS: Final = 1_000_000
WHOLE: Final[tuple[Topic, ...]] = (CONFIG, INVENTORY, FLOW_ROUTES, LINK_HEALTH)
"""Topics that are read from their beginning."""
INPUTS: Final[tuple[Topic, ...]] = (*WHOLE, CONTENTION, QUEUES, FLOWS, ACTIONS)
ORDER: Final = {topic.name: number for number, topic in enumerate(INPUTS)}
BACK_NS: Final = {CONTENTION.name: 10 * S, QUEUES.name: S, FLOWS.name: 30 * S, ACTIONS.name: 600 * S}
"""How far back a new owner reads the others: what actuators did by themselves while there was none counts."""
DECISION_LOOKBACK_NS: Final = 600 * S
"""How far back decisions of earlier epochs count."""
REGULAR: Final = frozenset({FLOWS.name, QUEUES.name})
"""Topics that always have news: those wait for the next look."""
REJECTED: Final = frozenset({FLOW_ROUTES.name, ACTIONS.name})
"""Topics whose bad messages nobody else rejects."""
ROUNDS_MOST: Final = 64
TELL_NS: Final = 250 * MS
"""Rounds in which nothing was decided are told of this much later at most."""
HELD_AGAIN_NS: Final = 10 * S
"""What is held back is told again after so long, though it is the same: for who has just begun to listen."""


def read_from(epoch: int) -> dict[str, int]:
    """Return topic to the append time, ns, from which the owner that began `epoch` reads: an epoch is the
    log's time at its begin, in ms."""
    return dict.fromkeys((topic.name for topic in WHOLE), 0) | {
        name: max(0, epoch * MS - back_ns) for name, back_ns in BACK_NS.items()
    }


@dataclass(slots=True)
class Made:
    """What came of one round."""

    decisions: list[Said]
    fallbacks: list[Said]
    rounds: list[Record]
    """`PolicyCycles` to publish."""


@dataclass(slots=True)
class _Shard:
    policy: Policy
    live: LiveFlows
    hurried: bool = False
    """Whether the last round only let flows leave what had died."""
    number: int = 0
    """Of the next round."""
    told_ns: int = 0
    told: list[int] = field(default_factory=list)
    """Positions as of the last round that was noted."""
    held: list[Held] | None = None
    held_ns: int = 0
    """When that was told last."""
    rounds: list[Record] = field(default_factory=list)


class PolicyInputs:
    """The policies of the shards that `owned` says are ours. `places`: the partitions that are read;
    `decisions`: those of earlier epochs, in their order."""

    def __init__(
        self,
        epoch: int,
        places: Iterable[Place],
        owned: Callable[[str], bool] | None = None,
        *,
        default_shard: str = "fabric",
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        decisions: Iterable[Record] = (),
        rules: Rules | None = None,
    ) -> None:
        self.epoch = epoch
        self.places = sorted(places)
        self.refused: list[tuple[Message, codec.BadRecord]] = []
        """Messages that could not be read and that nobody else rejects."""
        self.news = self.urgent = False
        """Whether anything but what is `REGULAR` waits to be taken, and whether links' health does."""
        self.shards: dict[str, _Shard] = {}
        self._owned = owned or (lambda shard: True)
        self._registry, self._rules = registry, rules
        self._topology = topology if topology is not None else Topology()
        self._decisions = list(decisions)
        self._inventory = Inventory(default_shard)
        self._config = LiveConfig()
        self._ways = FlowRouteTable()
        self._tail = FlowTable(RouteTable(), self._inventory.members.__contains__)
        self._rates: dict[str, int] = {}
        self._positions = dict.fromkeys(self.places, 0)
        self._waiting: list[Message] = []
        self._health: dict[str, Record] = {}
        self._windows: dict[str, Record] = {}

    @property
    def topology(self) -> Topology:
        """What the topology file says."""
        return self._topology

    @topology.setter
    def topology(self, topology: Topology) -> None:
        if topology is not self._topology:
            self._topology = topology
            self._rates.clear()

    # ------------------------------------------------------------------------------------ in

    def offer(self, message: Message) -> None:
        """Take a message of `INPUTS` in; it counts from the next `take` on."""
        self._waiting.append(message)
        self.urgent = self.urgent or message.topic == LINK_HEALTH.name
        self.news = self.news or message.topic not in REGULAR

    def take(self) -> None:
        """Let what was offered count; a round of each shard is to follow."""
        waiting, self._waiting = self._waiting, []
        self.news = self.urgent = False
        waiting.sort(key=lambda message: (ORDER[message.topic], message.partition, message.offset))
        for message in waiting:
            self._positions[message.topic, message.partition] = message.offset + 1
            try:
                self._take(message)
            except codec.BadRecord as error:
                if message.topic in REJECTED:
                    self.refused.append((message, error))

    def _take(self, message: Message) -> None:
        topic, key, value = message.topic, message.key, message.value
        views: dict[str, GlobalTable] = {
            CONFIG.name: self._config, INVENTORY.name: self._inventory, FLOW_ROUTES.name: self._ways,
            FLOWS.name: self._tail,
        }  # fmt: skip
        if topic in views:
            views[topic].take(key.encode(), value, self._registry, message.append_ns)
        if topic == FLOWS.name:
            if value is not None:
                self._shard(codec.decode(value, FLOWS.record, self._registry)["shard"])
        elif topic == CONFIG.name:
            for shard in self.shards.values():
                shard.policy.take_config(self._config.all())
        elif topic == INVENTORY.name:
            self._rates.clear()
        elif topic == LINK_HEALTH.name:
            self._take_health(key, self._decoded(message))
        elif topic == CONTENTION.name:
            record = self._decoded(message)
            if record is not None:
                self._windows[record["link"]] = record
                for shard in self.shards.values():
                    shard.policy.take_contention(record)
        elif topic == QUEUES.name:
            if any(shard.policy.needs_queues for shard in self.shards.values()):
                record = self._decoded(message)
                if record is not None and record["shard"] in self.shards:
                    self.shards[record["shard"]].policy.take_queues(record)
        elif topic == ACTIONS.name:
            record = self._decoded(message)
            if record is not None:
                for shard in self.shards.values():
                    shard.policy.take_action(record)

    def _take_health(self, subject: str, record: Record | None) -> None:
        if record is None:
            self._health.pop(subject, None)
        else:
            self._health[subject] = record
        for shard in self.shards.values():
            shard.policy.take_health(subject, record)

    def _decoded(self, message: Message) -> Record | None:
        if message.value is None:
            return None
        return codec.decode(message.value, TOPICS[message.topic].record, self._registry)

    def _shard(self, name: str) -> None:
        """Begin a shard's policy with its first flow report."""
        if name in self.shards or not self._owned(name):
            return
        live = self._tail.of(name)
        policy = Policy(name, self.epoch, live, self, self._rate_bps, rules=self._rules)
        policy.recover(self._decisions)
        policy.take_config(self._config.all())
        for subject, record in sorted(self._health.items()):
            policy.take_health(subject, record)
        for _, record in sorted(self._windows.items()):
            policy.take_contention(record)
        self.shards[name] = _Shard(policy, live)

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        """Return entropy value to way of a flow."""
        return self._ways.of(flow.nic, flow.peer, flow.peer_port)

    def _rate_bps(self, link: str) -> int:
        """Return bit/s of a link; where nobody says, it is taken to be as fast as the fastest NIC."""
        rate_bps = self._rates.get(link)
        if rate_bps is None:
            speeds_bps = self._inventory.speeds_bps
            rate_bps = link_rate_bps(link, self._topology, speeds_bps) or max(speeds_bps.values(), default=0)
            self._rates[link] = rate_bps
        return rate_bps

    # ------------------------------------------------------------------------------------ rounds

    @property
    def hurries(self) -> bool:
        """Whether links' health waits to be taken, or what it led to is to be followed by a whole round."""
        return self.urgent or any(shard.hurried for shard in self.shards.values())

    def round(self, name: str, now_ns: int, flows_ns: int) -> Made:
        """Decide for one shard by `now_ns`, fabric time, and flow reports up to `flows_ns`, append time."""
        shard = self.shards[name]
        policy = shard.policy
        shard.hurried = policy.hurries and not shard.hurried and policy.counts()[0] > 0
        if shard.hurried:
            found = policy.hurry(now_ns)
            held = None
        else:
            shard.live.advance(flows_ns)
            found = policy.decide(now_ns)
            found.held.sort()
            known = found.held == shard.held and now_ns - shard.held_ns < HELD_AGAIN_NS
            held = None if known else found.held
            shard.held = found.held
            shard.held_ns = shard.held_ns if held is None else now_ns
        self._note(shard, now_ns, flows_ns, len(found.decisions), held)
        due = now_ns - shard.told_ns >= TELL_NS or len(shard.rounds) >= ROUNDS_MOST
        rounds = [self._told(name, shard, now_ns)] if found.decisions or held or due else []
        return Made(found.decisions, found.fallbacks, rounds)

    def _note(
        self, shard: _Shard, now_ns: int, flows_ns: int, decisions: int, held: list[Held] | None
    ) -> None:
        positions = [self._positions[place] for place in self.places]
        before = shard.told or [0] * len(positions)
        steps = [now - then for now, then in zip(positions, before, strict=True)]
        shard.told = positions
        shard.rounds.append({
            "now_ns": now_ns, "flows_ns": flows_ns, "positions": steps if any(steps) else [],
            "decisions": decisions,
            "suppressed": None if held is None else [each._asdict() for each in held[:MAX_ELEMENTS]],
        })  # fmt: skip
        shard.number += 1

    def _told(self, name: str, shard: _Shard, now_ns: int) -> Record:
        rounds, shard.rounds, shard.told_ns = shard.rounds, [], now_ns
        flows, movable = shard.policy.counts()
        return {
            "shard": name, "epoch": self.epoch, "first_cycle": shard.number - len(rounds), "at_ns": now_ns,
            "inputs": [f"{topic}/{partition}" for topic, partition in self.places], "flows": flows,
            "movable": movable, "cycles": rounds,
        }  # fmt: skip

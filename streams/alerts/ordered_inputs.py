"""All inputs of alerts in the one order in which the log took them, and the alerts that follow.

In: messages of the topics of `MAIN`, and `PathDelays`, from any partitions in any order, with their append
times. Out: `Alert` records. A message waits until the log's clock is past it, then all are taken by (append
time, topic, partition, offset): so a worker that follows the log, one that was restarted and a replay of what
the log keeps say the same. What else decides is told by messages too: thresholds and promises, the inventory,
the cables. The topology file alone is not in the log. Pure.

Promises are judged by delays, of which there may be many: those run in a lane of their own, so that a worker
that catches up on them holds no other alert up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import codec
from schemas.topics import (
    CLOCK_OFFSETS,
    CONFIG,
    CONTENTION,
    DELAYS,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATHS,
    TOPICS,
    Topic,
)
from schemas.topology import Topology
from schemas.validation import validate_offsets
from streams.alerts.shard_alerts import ShardAlerts
from streams.delays.latency_slo import groups_of
from streams.links.validation import validate_link_event
from streams.links.wiring import Wiring
from streams.runtime.live_config import LiveConfig
from streams.runtime.tables import Inventory
from streams.runtime.thresholds import Thresholds

__all__ = ["MAIN", "AlertsFeed", "Message", "read_from"]

Record = dict[str, Any]
Published = list[tuple[str, Record]]

WHOLE: Final[tuple[Topic, ...]] = (CONFIG, INVENTORY, PATHS)
"""Topics that are read from their beginning."""
MAIN: Final[tuple[Topic, ...]] = (*WHOLE, LINK_HEALTH, CONTENTION, CLOCK_OFFSETS, LINKS)
LOOKED_UP: Final = frozenset({CONFIG.name, INVENTORY.name, PATHS.name, CLOCK_OFFSETS.name, LINKS.name})
"""Topics whose bad messages somebody else rejects."""

S: Final = 1_000_000_000
HORIZON_NS: Final = 3600 * S
"""ns that a new owner reads again: longer than any alert waits to be raised or cleared."""
MARGIN_S: Final = 5.0
"""s that it reads more than thresholds need: windows are cut later than they are measured."""


def read_from(now_ns: int, thresholds: Thresholds, delays_s: float = 0.0) -> dict[str, int]:
    """Return topic to the append time, ns, from which who takes over at `now_ns` must read it again.

    Of `fabric.link-health` it must know each key's last record before as well. `delays_s`: the longest time that
    any promise may be broken before it is told.
    """
    heard_s = max(thresholds["alert_agent_s"], thresholds["alert_storm_s"])
    dated_s = max(heard_s, thresholds["alert_miswired_s"], thresholds["alert_clocks_s"])
    back_s = {
        LINKS: heard_s + MARGIN_S,
        CLOCK_OFFSETS: dated_s + thresholds["alert_clear_s"] + 2 * MARGIN_S,  # by which findings are dated
        DELAYS: delays_s + MARGIN_S,
    }
    found = {topic.name: now_ns - round(seconds * S) for topic, seconds in back_s.items()}
    found |= dict.fromkeys((LINK_HEALTH.name, CONTENTION.name), now_ns - HORIZON_NS)
    return found | dict.fromkeys((topic.name for topic in WHOLE), 0)


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message. Its order is that in which it is taken."""

    append_ns: int
    topic: str
    partition: int
    offset: int
    key: str = field(compare=False)
    value: bytes | None = field(compare=False)
    record: Record | None = field(default=None, compare=False)
    """Where it was decoded and checked already."""


class AlertsFeed:
    """The alerts of the shards that `owned` says are ours.

    `past`: the alerts that were published before. `heard_from_ns`: append time from which on `fabric.links`
    is read; `promises_from_ns`: and `fabric.delays`. `log_offset_ns`: fabric time minus append time, until a
    record of clocks says it.
    """

    def __init__(
        self,
        past: Iterable[Record] = (),
        owned: Callable[[str], bool] | None = None,
        *,
        default_shard: str = "fabric",
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        window_ns: int = 1_000_000_000,
        heard_from_ns: int = 0,
        promises_from_ns: int = 0,
        log_offset_ns: int = 0,
    ) -> None:
        self.config, self._promised = LiveConfig(), LiveConfig()
        self.inventory, self._members = Inventory(default_shard), Inventory(default_shard)
        self.wiring = Wiring(topology)
        self.shards: dict[str, ShardAlerts] = {}
        self.refused: list[tuple[Message, codec.BadRecord]] = []
        """Messages that could not be read and that nobody else rejects."""
        self.taken = 0
        self.late = 0
        """Messages that came when a later one had been taken: what they say may be told otherwise again."""
        self._past = list(past)
        self._owned = owned or (lambda shard: True)
        self._registry = registry
        self._window_ns, self._heard_from_ns, self._log_offset_ns = window_ns, heard_from_ns, log_offset_ns
        self._main: list[Message] = []
        self._delays: list[Message] = []
        self._last: Message | None = None
        self._promising, self._promises_from_ns = False, promises_from_ns
        self._promised_ns = 0
        """When what is promised was last told, append time: delays from before do not count any more."""
        for shard in sorted({r["shard"] for r in self._past if r["state"] == "RAISED"}):
            self._shard(shard)
        for r in self._past:
            if r["kind"] == "MISWIRED" and r["state"] == "RAISED" and r["shard"] in self.shards:
                names, stood_ns = [*r["nics"], *r["grouped"]], r["updated_ns"] - log_offset_ns
                self.wiring.restore(r["shard"], r["subject"], names, stood_ns)

    # ------------------------------------------------------------------------------------ in

    def offer(self, message: Message) -> None:
        """Take a message of `MAIN` or `fabric.delays` in; it is judged once its time has passed."""
        if message.topic == DELAYS.name:
            heapq.heappush(self._delays, message)
            return
        heapq.heappush(self._main, message)
        if message.topic in (CONFIG.name, INVENTORY.name):
            heapq.heappush(self._delays, message)
        if self._last is not None and message < self._last:
            self.late += 1

    @property
    def delays_s(self) -> float:
        """How far back, in s, who begins must read `fabric.delays`; 0 where no latency is promised."""
        rules = self._promised.latency_rules()
        return max((rule["for_s"] for rule in rules), default=0.0)

    def wants_delays(self, nic: str) -> bool:
        """Return whether a NIC's delays matter to a promise."""
        shard = self.shards.get(self._members.member(nic).shard)
        return shard is not None and shard.wants_delays(nic)

    def open(self) -> list[str]:
        """Return the ids of the alerts that stand."""
        return sorted(alert for shard in self.shards.values() for alert in shard.open())

    # ------------------------------------------------------------------------------------ out

    def advance(self, to_ns: int) -> Published:
        """Judge what the log took up to `to_ns`, and what became due by then; return (key, `Alert`)."""
        out: Published = []
        while self._main and self._main[0].append_ns <= to_ns:
            message = heapq.heappop(self._main)
            self._last = message if self._last is None else max(message, self._last)
            self._pass(message.append_ns - 1, out)
            self._take(message, out)
            self.taken += 1
        self._pass(to_ns, out)
        for name in sorted(self.shards):
            out += self.shards[name].tick(to_ns)
        return out

    def advance_delays(self, to_ns: int) -> Published:
        """Judge promises by the delays that the log took up to `to_ns`; return (key, `Alert`)."""
        out: Published = []
        while self._delays and self._delays[0].append_ns <= to_ns:
            message = heapq.heappop(self._delays)
            self.taken += message.topic == DELAYS.name
            if message.append_ns >= self._promises_from_ns:
                self._begin_promises(out)
            if message.topic == CONFIG.name:
                self._promised_ns = max(self._promised_ns, message.append_ns)
                if self._read_into(self._promised, message) and self._promising:
                    self._promise(out)
            elif message.topic == INVENTORY.name:
                self._read_into(self._members, message)
            elif message.append_ns < self._promised_ns:
                continue
            elif message.value is not None and self.wants_delays(message.key):
                record = self._decoded(message)
                if record is not None and self._shard(record["shard"]) is not None:
                    out += self.shards[record["shard"]].take(DELAYS.name, message.key, record, 0)
        if to_ns >= self._promises_from_ns:
            self._begin_promises(out)
        return out

    def _begin_promises(self, out: Published) -> None:
        """Take the promises in force once all that was told of them before has been taken: one that was told
        as broken, and of which nobody knows any more, is over."""
        if not self._promising:
            self._promising = True
            self._promise(out)

    def _promise(self, out: Published) -> None:
        rules = self._promised.latency_rules()
        for name in self._members.shards() if rules else ():
            self._shard(name)
        for name in sorted(self.shards):
            out += self.shards[name].promise(rules)

    # ------------------------------------------------------------------------------------ one message

    def _pass(self, to_ns: int, out: Published) -> None:
        """Let what was found out of the wiring become due."""
        thresholds = self.config.thresholds()
        while (due_ns := self.wiring.due_ns(thresholds)) <= to_ns:
            for name, found in self.wiring.judge(due_ns, thresholds):
                shard = self._shard(name)
                if shard is not None:
                    out += shard.find(found)

    def _take(self, message: Message, out: Published) -> None:
        topic = message.topic
        if topic == CONFIG.name:
            self._read_into(self.config, message)
            for shard in self.shards.values():
                out += shard.tick(message.append_ns - 1)
                shard.thresholds = self.config.thresholds()
            return
        record = message.record if message.record is not None else self._decoded(message)
        if record is None and message.value is not None:
            return
        if topic == INVENTORY.name:
            self._read_into(self.inventory, message)
            self.wiring.take_nic(message.key, record, message.append_ns)
        elif topic == PATHS.name:
            self.wiring.take_paths(message.key, record, message.append_ns)
        elif record is None:
            for name in sorted(self.shards):
                out += self.shards[name].take(topic, message.key, None, message.append_ns)
        else:
            judge = self._shard(record["shard"])
            if judge is None:
                return
            if topic == CLOCK_OFFSETS.name:
                out += judge.tick(message.append_ns - 1)
                judge.log_offset_ns = self._log_offset_ns = record["log_offset_ns"]
            out += judge.take(topic, message.key, record, message.append_ns)

    def _shard(self, name: str) -> ShardAlerts | None:
        """Return a shard's alerts; None where the shard is another worker's."""
        found = self.shards.get(name)
        if found is None and self._owned(name):
            found = self.shards[name] = ShardAlerts(
                name, self.config.thresholds(), self.wiring.cables_at,
                lambda nic: groups_of(self._members.member(nic)), self.inventory.probe_slots.get,
            )  # fmt: skip
            found.log_offset_ns = self._log_offset_ns
            found.recover(self._past, self._heard_from_ns)
            if self._promising:
                found.promise(self._promised.latency_rules())
        return found

    def _read_into(self, view: LiveConfig | Inventory, message: Message) -> bool:
        try:
            view.take(message.key.encode(), message.value, self._registry, message.append_ns)
        except codec.BadRecord:
            return False
        return True

    def _decoded(self, message: Message) -> Record | None:
        """Return a message's record as it may be used; None where there is none."""
        if message.value is None:
            return None
        try:
            record = codec.decode(message.value, TOPICS[message.topic].record, self._registry)
            if message.topic == LINKS.name:
                _expect_key(message.key, record)
                return validate_link_event(record)
            if message.topic == CLOCK_OFFSETS.name:
                return validate_offsets(record, message.append_ns, self._window_ns)[0]
            return record
        except codec.BadRecord as error:
            if message.topic not in LOOKED_UP:
                self.refused.append((message, error))
            return None


def _expect_key(key: str, event: Mapping[str, Any]) -> None:
    if key != event["shard"]:
        raise codec.BadRecord("WRONG_KEY", f"key {key!r}, expected shard {event['shard']!r}")

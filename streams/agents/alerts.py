"""Alerts as a worker raises them: link health, queues and clocks in, `Alert` records out; one writer a shard.

In: `fabric.flaps`, `fabric.contention`, read without a group from an hour back; the clocks' lookup; where
latencies are promised `fabric.delays`. Out: `fabric.alerts`. The worker that owns a shard's evidence (its
partition of `fabric.links`) owns its alerts. A new owner takes over what was published and reads the hour
again, which says nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.partitioner import murmur2

from schemas import codec
from schemas.ids import cable_id
from schemas.topics import ALERTS, CLOCK_OFFSETS, CONTENTION, DELAYS, FLAPS, LINKS, TOPICS, Topic
from streams.agents.partitions import Ownership, Tenure
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.lookups import partition_count, read_last
from streams.solve.alerts import ShardAlerts
from streams.solve.latency import groups_of

__all__ = ["AlertsStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
S: Final = 1_000_000_000
HORIZON_NS: Final = 3600 * S
"""ns that a new owner reads again: longer than any alert waits to be raised or cleared."""
POLL_MS: Final = 50
BEHIND_NS: Final = 150 * MS
"""What is due is done so long after its time: records of that time have come by then."""
CABLES_S: Final = 5.0
MARGIN_S: Final = 5.0
"""s that a new owner reads of the delays before those that a rule needs: its windows are cut later."""
DELAYS_A_TURN: Final = 100
"""Records of delays between two looks at everything else."""


class AlertsStage:
    """The alerts of one worker's shards."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.partitions = Ownership(room, "alerts", LINKS, self._follow)
        self._numbers: set[int] = set()
        self._partitions = 0
        self._past: list[codec.Record] = []
        self._shards: dict[str, ShardAlerts] = {}
        self._windows: dict[str, int] = {}
        self._cables: dict[str, int] = {}
        self._cables_of = (-1, -CABLES_S)
        self._rules_of = -1
        self._delays: AIOKafkaConsumer | None = None

    async def _follow(self, tenure: Tenure) -> None:
        self._numbers = {tp.partition for tp in tenure.tps}
        self._shards, self._windows, self._rules_of = {}, {}, -1
        bootstrap = self.room.settings.bootstrap
        self._partitions = await partition_count(bootstrap, LINKS.name)
        alerts = await read_last(bootstrap, ALERTS, self.room.registry, lambda r: f"{r['alert_id']}")
        self._past = [record for record, _ in alerts.values()]
        health = await read_last(bootstrap, FLAPS, self.room.registry)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=POLL_MS
        )
        await consumer.start()
        try:
            since_ns = self.room.log_clock.now_ns(time.monotonic_ns()) - HORIZON_NS
            ends = await self._seek(consumer, (FLAPS, CONTENTION), since_ns // MS)
            older = sorted((at_ns, key) for key, (_, at_ns) in health.items() if at_ns < since_ns)
            for at_ns, key in older:
                await self._take(FLAPS.name, key, health[key][0], at_ns)
            messages: list[ConsumerRecord[bytes, bytes]] = []
            while ends:
                for batch in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                    messages += batch
                for tp in list(ends):
                    if await consumer.position(tp) >= ends[tp]:
                        del ends[tp]
            await self._take_all(messages)
            tenure.known.set()
            log.info("alerts: %d stand", sum(len(shard.open()) for shard in self._shards.values()))
            behind = False
            while True:
                found = await consumer.getmany(timeout_ms=0 if behind else POLL_MS)
                await self._take_all([message for batch in found.values() for message in batch])
                await self._tick()
                behind = await self._watch_delays()
        finally:
            await consumer.stop()
            if self._delays is not None:
                await self._delays.stop()
                self._delays = None

    async def _watch_delays(self) -> bool:
        """Read what NICs measured, as long as latencies are promised; return whether there is more."""
        if self._rules_of != self.room.config.version:
            rules = self.room.config.latency_rules()
            for name in self.room.inventory.shards() if rules else ():
                self._shard(name)
            self._rules_of = self.room.config.version
            for shard in self._shards.values():
                await self._publish(shard.promise(rules))
        back_s = max((shard.delays_s for shard in self._shards.values()), default=0.0)
        if not back_s:
            if self._delays is not None:
                await self._delays.stop()
                self._delays = None
            return False
        if self._delays is None:
            self._delays = AIOKafkaConsumer(
                bootstrap_servers=self.room.settings.bootstrap, group_id=None, enable_auto_commit=False
            )
            await self._delays.start()
            since_ns = self.room.log_clock.now_ns(time.monotonic_ns()) - round((back_s + MARGIN_S) * S)
            await self._seek(self._delays, (DELAYS,), since_ns // MS)
        found = await self._delays.getmany(timeout_ms=0, max_records=DELAYS_A_TURN)
        await self._take_all([m for batch in found.values() for m in batch if self._wanted(m.key)])
        return sum(map(len, found.values())) >= DELAYS_A_TURN

    def _wanted(self, key: bytes | None) -> bool:
        """Return whether a NIC's delays matter to a rule of a shard here."""
        nic = (key or b"").decode("utf-8", "replace")
        shard = self._shards.get(self.room.inventory.member(nic).shard)
        return shard is not None and shard.wants_delays(nic)

    async def _seek(
        self, consumer: AIOKafkaConsumer, topics: Iterable[Topic], since_ms: int
    ) -> dict[TopicPartition, int]:
        """Set the consumer to a time; return the end offsets of partitions that hold more."""
        bootstrap, tps = self.room.settings.bootstrap, []
        for topic in topics:
            count = await partition_count(bootstrap, topic.name)
            tps += [TopicPartition(topic.name, number) for number in range(count)]
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        starts = await consumer.offsets_for_times(dict.fromkeys(tps, max(0, since_ms)))
        missing = {}
        for tp in tps:
            start = starts.get(tp)
            offset = ends[tp] if start is None else start.offset
            consumer.seek(tp, offset)
            if offset < ends[tp]:
                missing[tp] = ends[tp]
        return missing

    async def _take_all(self, messages: list[ConsumerRecord[bytes, bytes]]) -> None:
        """Take messages in the order in which the log took them."""
        messages.sort(key=lambda m: (m.timestamp, m.topic, m.partition, m.offset))
        for message in messages:
            self.room.log_clock.observe(message.timestamp * MS, time.monotonic_ns())
            key = (message.key or b"").decode("utf-8", "replace")
            record = None
            if message.value is not None:
                try:
                    record = codec.decode(message.value, TOPICS[message.topic].record, self.room.registry)
                except codec.BadRecord as error:
                    await (await send_reject(self.room, message, message.value, "solve", error))
                    continue
            await self._take(message.topic, key, record, message.timestamp * MS)

    async def _take(self, topic: str, key: str, record: codec.Record | None, append_ns: int) -> None:
        if record is not None:
            self._shard(record["shard"])
        for name, shard in self._shards.items():
            if record is None or record["shard"] == name:
                shard.thresholds = self.room.config.thresholds()
                await self._publish(shard.take(topic, key, record, append_ns))

    def _shard(self, name: str) -> ShardAlerts | None:
        """Return a shard's alerts; None where the shard is another worker's."""
        found = self._shards.get(name)
        if found is None and (murmur2(name.encode()) & 0x7FFFFFFF) % self._partitions in self._numbers:
            found = self._shards[name] = ShardAlerts(
                name, self.room.config.thresholds(), self._cables_at, self._groups_of
            )
            found.recover(self._past)
            self._rules_of = -1
        return found

    def _groups_of(self, nic: str) -> frozenset[str]:
        return groups_of(self.room.inventory.member(nic))

    def _cables_at(self, node: str) -> int:
        """Return how many cables a node has, by the paths that are known."""
        version, counted_s = self._cables_of
        now_s = time.monotonic()
        if version != self.room.paths.version and now_s - counted_s >= CABLES_S:
            of_node: dict[str, set[str]] = {}
            for link in self.room.paths.links():
                cable = cable_id(link)
                for end in cable.split("<>"):
                    of_node.setdefault(end.rpartition(":")[0], set()).add(cable)
            self._cables = {node: len(cables) for node, cables in of_node.items()}
            self._cables_of = (self.room.paths.version, now_s)
        return self._cables.get(node, 0)

    async def _tick(self) -> None:
        for name in self.room.inventory.shards():
            records = self.room.offsets.newest(name)
            if records and self._windows.get(name) != records[0]["window"] and self._shard(name) is not None:
                self._windows[name] = records[0]["window"]
                for record in records:
                    end_ns = record["window_end_ns"] - record["log_offset_ns"]
                    await self._take(CLOCK_OFFSETS.name, f"{name}/{record['part']}", record, end_ns)
        now_ns = self.room.log_clock.now_ns(time.monotonic_ns()) - BEHIND_NS
        for shard in self._shards.values():
            if shard.due_ns <= now_ns:
                await self._publish(shard.tick(now_ns))

    async def _publish(self, found: list[tuple[str, codec.Record]]) -> None:
        """Publish alerts, and wait for the log: what is not there is raised by the next owner."""
        sent = []
        for key, record in found:
            log.info("alerts: %s %s: %s", record["state"], record["alert_id"], record["text"])
            value = codec.encode(ALERTS.record, record, self.room.registry)
            sent.append(await self.room.send_raw(ALERTS.name, key, value))
        await asyncio.gather(*sent)

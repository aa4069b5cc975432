"""Alerts as a worker raises them: one writer a shard.

In: the topics of `ordered_inputs`, read without a group: some whole, others from as far back as an alert
may wait; evidence of links as the links stage takes it. Out: `fabric.alerts`. The worker that owns a shard's
evidence (its partition of `fabric.links`) owns its alerts. A new owner takes over what was published and
reads the hour again, which says nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.partitioner import murmur2

from schemas import codec
from schemas.topics import ALERTS, DELAYS, LINK_HEALTH, LINKS, Topic
from streams.alerts.ordered_inputs import MAIN, AlertsFeed, Message, read_from
from streams.delays.latency_slo import groups_of
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import partition_count, read_last
from streams.runtime.rejects import RejectedMessage, send_reject

__all__ = ["AlertsStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
S: Final = 1_000_000_000
POLL_MS: Final = 50
BEHIND_NS: Final = 150 * MS
"""What the log took is judged so long after its time: messages of all partitions have come by then."""
DELAYS_A_TURN: Final = 100
"""Records of delays between two looks at everything else."""


class _Heard(NamedTuple):
    """Evidence that the links stage took."""

    partition: int
    offset: int
    append_ns: int
    event: codec.Record


class AlertsStage:
    """The alerts of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = Ownership(context, "alerts", LINKS, self._follow)
        self._numbers: set[int] = set()
        self._partitions = 0
        self._feed: AlertsFeed | None = None
        self._heard: list[_Heard] = []
        """What was heard before it is known from where on it counts."""
        self._heard_from: dict[int, int] = {}
        """Partition of `fabric.links` to the offset from which on the links stage is listened to."""
        self._delays: AIOKafkaConsumer | None = None
        self._delays_missing: dict[TopicPartition, int] = {}
        self._promises_from_ns = 0
        """Append time from which on the first reader of delays must begin."""
        self._late_told = 0
        context.evidence_tap = self._hear

    async def _follow(self, generation: Generation) -> None:
        self._numbers = {tp.partition for tp in generation.tps}
        self._feed, self._heard, self._heard_from = None, [], {}
        bootstrap, registry = self.context.settings.bootstrap, self.context.registry
        self._partitions = await partition_count(bootstrap, LINKS.name)
        alerts = await read_last(bootstrap, ALERTS, registry, lambda r: f"{r['alert_id']}")
        health = await read_last(bootstrap, LINK_HEALTH, registry)
        thresholds = self.context.config.thresholds()
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns())
        since_of = read_from(now_ns, thresholds, self._longest_s())
        self._promises_from_ns = since_of[DELAYS.name]
        feed = AlertsFeed(
            [record for record, _ in alerts.values()], self._owned,
            default_shard=self.context.settings.default_shard, topology=self.context.topology, registry=registry,
            window_ns=self.context.settings.window_ms * MS, heard_from_ns=since_of[LINKS.name],
            promises_from_ns=since_of[DELAYS.name],
            log_offset_ns=self.context.clocks.log_offset_ns,
        )  # fmt: skip
        for key, (record, at_ns) in health.items():
            if at_ns < since_of[LINK_HEALTH.name]:
                feed.offer(Message(at_ns, LINK_HEALTH.name, -1, -1, key, None, record))
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=POLL_MS
        )
        await consumer.start()
        try:
            wanted = {topic: since_of[topic.name] for topic in MAIN}
            missing = await self._seek(consumer, wanted, self._numbers)
            links = {tp for tp in consumer.assignment() if tp.topic == LINKS.name}
            ends = await consumer.end_offsets(list(links))
            read_ns = {tp: since_of[tp.topic] for tp in missing}
            while missing:
                read_ns |= await self._read(feed, consumer)
                for tp in list(missing):
                    if await consumer.position(tp) >= missing[tp]:
                        del missing[tp]
                # what all have been read up to is judged and let go of: whole topics may be large
                mark_ns = min((read_ns[tp] for tp in missing), default=0)
                await self._publish(feed.advance(min(mark_ns - 1, now_ns - BEHIND_NS)))
            # from here on the links stage, which reads and decodes the same messages, tells of them
            consumer.pause(*links)
            await self._listen(feed, {tp.partition: end for tp, end in ends.items()})
            await self._begin(feed, generation)
            behind = False
            while True:
                await self._read(feed, consumer, 0 if behind else POLL_MS)
                behind = await self._read_delays(feed)
                await self._judge(feed)
        finally:
            await consumer.stop()
            if self._delays is not None:
                await self._delays.stop()
                self._delays = None

    def _owned(self, shard: str) -> bool:
        return (murmur2(shard.encode()) & 0x7FFFFFFF) % self._partitions in self._numbers

    async def _begin(self, feed: AlertsFeed, generation: Generation) -> None:
        """Judge the past, then say that this worker can go on."""
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns()) - BEHIND_NS
        await self._publish(feed.advance(now_ns))
        self._feed = feed
        generation.recovered.set()
        log.info("alerts: %d stand", len(feed.open()))

    async def _listen(self, feed: AlertsFeed, heard_from: dict[int, int]) -> None:
        self._heard_from, heard = heard_from, self._heard
        self._feed, self._heard = feed, []
        for each in heard:
            self._hear(*each)

    def _hear(self, partition: int, offset: int, append_ns: int, event: codec.Record) -> None:
        """Take evidence that the links stage took."""
        heard = _Heard(partition, offset, append_ns, event)
        if self._feed is None:
            self._heard.append(heard)
        elif offset >= self._heard_from.get(partition, offset):
            self._feed.offer(Message(append_ns, LINKS.name, partition, offset, event["shard"], None, event))

    async def _read(
        self, feed: AlertsFeed, consumer: AIOKafkaConsumer, wait_ms: int = POLL_MS
    ) -> dict[TopicPartition, int]:
        """Take in what has come; return up to when, in append time, each partition of it has been read."""
        read_ns = {}
        for tp, found in (await consumer.getmany(timeout_ms=wait_ms)).items():
            for message in found:
                read_ns[tp] = message.timestamp * MS
                if message.topic == LINKS.name and message.offset >= self._heard_from.get(
                    message.partition, message.offset + 1
                ):
                    continue
                self.context.log_clock.observe(message.timestamp * MS, time.monotonic_ns())
                feed.offer(_as_message(message))
        return read_ns

    async def _read_delays(self, feed: AlertsFeed) -> bool:
        """Read what NICs measured, as long as latencies are promised; return whether there is more."""
        back_s = self._longest_s()
        if not back_s:
            self._promises_from_ns = 0
            if self._delays is not None:
                await self._delays.stop()
                self._delays, self._delays_missing = None, {}
            return False
        if self._delays is None:
            self._delays = AIOKafkaConsumer(
                bootstrap_servers=self.context.settings.bootstrap, group_id=None, enable_auto_commit=False
            )
            await self._delays.start()
            now_ns = self.context.log_clock.now_ns(time.monotonic_ns())
            begun_ns, self._promises_from_ns = self._promises_from_ns, 0
            since_ns = begun_ns or read_from(now_ns, self.context.config.thresholds(), back_s)[DELAYS.name]
            self._delays_missing = await self._seek(self._delays, {DELAYS: since_ns}, set())
        found = await self._delays.getmany(timeout_ms=0, max_records=DELAYS_A_TURN)
        for messages in found.values():
            for message in messages:
                if self._wanted(feed, message.key):
                    feed.offer(_as_message(message))
        for tp in list(self._delays_missing):
            if await self._delays.position(tp) >= self._delays_missing[tp]:
                del self._delays_missing[tp]
        return sum(map(len, found.values())) >= DELAYS_A_TURN

    def _longest_s(self) -> float:
        """Return the longest time that a promise may be broken until it is told, in s; 0 without any."""
        return max((rule["for_s"] for rule in self.context.config.latency_rules()), default=0.0)

    def _wanted(self, feed: AlertsFeed, key: bytes | None) -> bool:
        """Return whether a NIC's delays may matter to a promise of now, or to one that is judged still."""
        nic = (key or b"").decode("utf-8", "replace")
        groups = groups_of(self.context.inventory.member(nic))
        rules = self.context.config.latency_rules()
        told = any(rule["from_group"] in groups or rule["to_group"] in groups for rule in rules)
        return told or feed.wants_delays(nic)

    async def _judge(self, feed: AlertsFeed) -> None:
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns()) - BEHIND_NS
        feed.wiring.topology = self.context.topology
        await self._publish(feed.advance(now_ns))
        if not self._delays_missing:
            await self._publish(feed.advance_delays(now_ns))
        for message, error in feed.refused:
            await (await send_reject(self.context, RejectedMessage(message), message.value, "solve", error))
        feed.refused.clear()
        if feed.late > self._late_told:
            log.warning(
                "alerts: %d messages came more than %d ms after the log took them: a replay may tell them"
                " otherwise", feed.late - self._late_told, BEHIND_NS // MS,
            )  # fmt: skip
            self._late_told = feed.late

    async def _seek(
        self, consumer: AIOKafkaConsumer, since_of: dict[Topic, int], links: set[int]
    ) -> dict[TopicPartition, int]:
        """Set the consumer to times, ns; return the end offsets of partitions that hold more. `links`: the
        partitions of `fabric.links` that are read."""
        bootstrap, since_ms = self.context.settings.bootstrap, {}
        for topic, since_ns in since_of.items():
            for number in range(await partition_count(bootstrap, topic.name)):
                if topic is not LINKS or number in links:
                    since_ms[TopicPartition(topic.name, number)] = max(0, since_ns // MS)
        consumer.assign(list(since_ms))
        ends = await consumer.end_offsets(list(since_ms))
        starts = await consumer.offsets_for_times(since_ms)
        missing = {}
        for tp in since_ms:
            start = starts.get(tp)
            offset = ends[tp] if start is None else start.offset
            consumer.seek(tp, offset)
            if offset < ends[tp]:
                missing[tp] = ends[tp]
        return missing

    async def _publish(self, found: list[tuple[str, codec.Record]]) -> None:
        """Publish alerts, and wait for the log: what is not there is raised by the next owner."""
        sent = []
        for key, record in found:
            log.info("alerts: %s %s: %s", record["state"], record["alert_id"], record["text"])
            value = codec.encode(ALERTS.record, record, self.context.registry)
            sent.append(await self.context.send_bytes(ALERTS.name, key, value))
        await asyncio.gather(*sent)


def _as_message(message: ConsumerRecord[bytes, bytes]) -> Message:
    key = (message.key or b"").decode("utf-8", "replace")
    return Message(
        message.timestamp * MS, message.topic, message.partition, message.offset, key, message.value
    )

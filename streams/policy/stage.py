"""Policy in Faust: what is seen of a shard's links, queues and flows in, what flows are to do out.

In: the topics of streams/policy/inputs.py, read without a group. Out: `Decision`s, `Fallbacks`, and the
`PolicyCycles` by which the log gives the same decisions again. The worker that owns a shard's partition of
`fabric.policy-cycles` owns its policy, in an epoch of its own: what an earlier owner still says is older.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.partitioner import murmur2

from schemas import codec
from schemas.sanity import EPOCH_AHEAD_MS
from schemas.topics import DECISIONS, POLICY_CYCLES, TOPICS
from streams.alerts.ordered_inputs import Message
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, Made, PolicyInputs, read_from
from streams.policy.policy import Said
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.faust_compat import set_read_ahead
from streams.runtime.global_tables import partition_count, read_tail
from streams.runtime.rejects import RejectedMessage, send_reject

__all__ = ["PolicyStage"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
S: Final = 1_000_000_000
ROUND_S: Final = 0.1
"""s from one look at everything to the next, where nothing calls for one."""
LEAST_S: Final = 0.02
"""s between two looks that news call for, but for links that died: those are answered at once."""
FETCH_WAIT_MS: Final = 100
READ_AHEAD_S: Final = 0.001


class _Owned(Ownership):
    """Takes part in the group by reading what this stage itself writes."""

    def register(self) -> None:
        """Put the reader on the app."""
        topic = self.context.app.topic(
            self.topic.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        self.context.app.agent(topic, name=self.stage)(self._drain)

    async def _drain(self, stream: Any) -> None:
        async for _ in stream:
            pass


class PolicyStage:
    """The policies of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = _Owned(context, "policy", POLICY_CYCLES, self._follow)

    async def _follow(self, generation: Generation) -> None:
        bootstrap, registry = self.context.settings.bootstrap, self.context.registry
        numbers = {tp.partition for tp in generation.tps}
        count = await partition_count(bootstrap, POLICY_CYCLES.name)
        began_ns = self.context.log_clock.now_ns(time.monotonic_ns())
        since_s = DECISION_LOOKBACK_NS / S
        past = await read_tail(bootstrap, DECISIONS.name, None, registry, since_s=since_s)
        latest = began_ns // MS + EPOCH_AHEAD_MS  # actuators do not believe in later ones either
        past = [decision for decision in past if decision["epoch"] <= latest]
        past.sort(key=lambda decision: (decision["epoch"], decision["seq"]))
        epoch = max((began_ns // MS, *(decision["epoch"] + 1 for decision in past)))
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )  # fmt: skip
        await consumer.start()
        set_read_ahead(consumer, READ_AHEAD_S)
        try:
            missing = await _seek(consumer, bootstrap, epoch)
            feed = PolicyInputs(
                epoch, [(tp.topic, tp.partition) for tp in consumer.assignment()],
                lambda shard: (murmur2(shard.encode()) & 0x7FFFFFFF) % count in numbers,
                default_shard=self.context.settings.default_shard, topology=self.context.topology,
                registry=registry, decisions=past,
            )  # fmt: skip
            while missing:
                await self._read(feed, consumer, FETCH_WAIT_MS)
                for tp in list(missing):
                    if await consumer.position(tp) >= missing[tp]:
                        del missing[tp]
            generation.recovered.set()
            log.info("policy: epoch %d", epoch)
            await self._decide_on(feed, consumer)
        finally:
            await consumer.stop()

    async def _decide_on(self, feed: PolicyInputs, consumer: AIOKafkaConsumer) -> None:
        looked_s = 0.0
        while True:
            await self._read(feed, consumer, round(1000 * _left_s(feed, looked_s)))
            if _left_s(feed, looked_s) > 0:
                continue
            looked_s = time.monotonic()
            feed.take()
            feed.topology = self.context.topology
            log_ns = self.context.log_clock.now_ns(time.monotonic_ns())
            now_ns = log_ns + self.context.clocks.log_offset_ns
            for name in sorted(feed.shards):
                await self._publish(feed.round(name, now_ns, log_ns))
            for message, error in feed.refused:
                await (
                    await send_reject(self.context, RejectedMessage(message), message.value, "solve", error)
                )
            feed.refused.clear()

    async def _read(self, feed: PolicyInputs, consumer: AIOKafkaConsumer, wait_ms: int) -> None:
        for found in (await consumer.getmany(timeout_ms=wait_ms)).values():
            for message in found:
                self.context.log_clock.observe(message.timestamp * MS, time.monotonic_ns())
                key = (message.key or b"").decode("utf-8", "replace")
                feed.offer(
                    Message(
                        message.timestamp * MS, message.topic, message.partition, message.offset, key,
                        message.value,
                    )
                )  # fmt: skip

    async def _publish(self, made: Made) -> None:
        """Publish decisions before all else, and wait for the log."""
        sent = [await self._send(said) for said in made.decisions]
        if sent:
            await asyncio.sleep(0)  # they are on their way before the next is encoded
            for said in made.decisions:
                log.info("policy: %s %s", said.record["action"], said.record["text"])
        sent += [await self._send(said) for said in made.fallbacks]
        for record in made.rounds:
            value = codec.encode(POLICY_CYCLES.record, record, self.context.registry)
            sent.append(await self.context.send_bytes(POLICY_CYCLES.name, record["shard"], value))
        await asyncio.gather(*sent)

    async def _send(self, said: Said) -> Awaitable[Any]:
        value = codec.encode(said.topic.record, said.record, self.context.registry)
        return await self.context.send_bytes(said.topic.name, said.key, value)


def _left_s(feed: PolicyInputs, looked_s: float) -> float:
    """Return s until the next look."""
    if feed.hurries:
        return 0.0
    return max(0.0, looked_s + (LEAST_S if feed.news else ROUND_S) - time.monotonic())


async def _seek(consumer: AIOKafkaConsumer, bootstrap: str, epoch: int) -> dict[TopicPartition, int]:
    """Set the consumer to where the owner of an epoch begins; return the end offsets of the partitions that
    hold more."""
    since_of = read_from(epoch)
    since_ms = {
        TopicPartition(topic.name, number): since_of[topic.name] // MS
        for topic in INPUTS
        for number in range(await partition_count(bootstrap, TOPICS[topic.name].name))
    }
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

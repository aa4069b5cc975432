"""The Faust stage of policy: reads the inputs without a group and publishes decisions, fallbacks and cycles.

The worker that owns a shard's partition of `fabric.policy-cycles` owns the shard's policy, in an epoch of its
own. Actuators refuse decisions of older epochs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, Final

from schemas import codec
from schemas.kafka import since
from schemas.kafka.async_reader import AsyncTopicReader, partition_count
from schemas.records import Decision
from schemas.topics import DECISIONS, POLICY_CYCLES
from schemas.validation import EPOCH_AHEAD_MS
from streams.policy.cycle import Outgoing
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, CycleOutput, PolicyInputs, read_from
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.faust_compat import read_batches, set_read_ahead
from streams.runtime.global_tables import read_tail
from streams.runtime.log_time import LogTime
from streams.runtime.rejects import send_reject
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["PolicyStage"]

log = logging.getLogger(__name__)

CYCLE_S: Final = 0.1
"""Time from one regular cycle to the next, s."""
MIN_CYCLE_S: Final = 0.02
"""Shortest time to a cycle caused by news, s; link health is answered at once."""
CATCH_UP_S: Final = 0.1
"""s between two checks whether the past has been read."""
READ_AHEAD_S: Final = 0.001
"""Pause of aiokafka's fetcher between two fetches, s."""


class _Owned(Ownership):
    """Joins the consumer group by the topic that this stage writes."""

    def register(self) -> None:
        """Make the topic part of the consumer group; its messages are not read."""
        read_batches(self.context.app, self.topic.name, None)


class PolicyStage:
    """The policies of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = _Owned(context, "policy", POLICY_CYCLES, self._follow)

    async def _follow(self, generation: Generation) -> None:
        """Recover the policies of the assigned partitions, then run them."""
        cluster, registry = self.context.settings.kafka, self.context.registry
        count = await partition_count(cluster, POLICY_CYCLES.name)
        began_ns = self.context.log_clock.now_ns(time.monotonic_ns())
        past = await self._earlier_decisions(began_ns)
        epoch = max((began_ns // NS_PER_MS, *(decision["epoch"] + 1 for decision in past)))
        async with AsyncTopicReader(cluster) as reader:
            set_read_ahead(reader.consumer, READ_AHEAD_S)
            starts_ns = read_from(epoch)
            await reader.assign({topic: since(starts_ns[topic.name]) for topic in INPUTS})
            inputs = PolicyInputs(
                epoch,
                list(reader.ends),
                lambda shard: self.partitions.owns(shard, count),
                default_shard=self.context.settings.default_shard,
                topology=self.context.topology,
                registry=registry,
                decisions=past,
            )
            while not await reader.caught_up():
                await self._read(inputs, reader, CATCH_UP_S)
            generation.recovered.set()
            log.info("policy: epoch %d", epoch)
            await self._run_cycles(inputs, reader)

    async def _earlier_decisions(self, began_ns: int) -> list[Decision]:
        """Return the recent decisions of earlier epochs, in their order."""
        since_s = DECISION_LOOKBACK_NS / NS_PER_S
        past = await read_tail(
            self.context.settings.kafka, DECISIONS, None, self.context.registry, since_s=since_s
        )
        latest_epoch = began_ns // NS_PER_MS + EPOCH_AHEAD_MS  # actuators refuse later epochs as well
        decisions = [decision for decision in past if decision["epoch"] <= latest_epoch]
        return sorted(decisions, key=lambda decision: (decision["epoch"], decision["seq"]))

    async def _run_cycles(self, inputs: PolicyInputs, reader: AsyncTopicReader) -> None:
        """Run a cycle of each shard whenever one is due."""
        last_s, began_ns = 0.0, time.monotonic_ns()
        log_time = LogTime(self.context.log_clock.now_ns(began_ns), began_ns)
        while True:
            await self._read(inputs, reader, _until_due_s(inputs, last_s))
            if _until_due_s(inputs, last_s) > 0:
                continue
            last_s = time.monotonic()
            inputs.take()
            inputs.topology = self.context.topology
            monotonic_ns = time.monotonic_ns()
            log_ns = self.context.log_clock.now_ns(monotonic_ns)
            now_ns = log_time.fabric_ns(log_ns, self.context.clocks.log_offset_ns, monotonic_ns)
            for name in sorted(inputs.shards):
                with self.context.survive("policy", POLICY_CYCLES, name):
                    shard_ns = now_ns - self.context.clocks.lost_ns(name, log_ns)
                    await self._publish(inputs.run_cycle(name, shard_ns, log_ns))
            for message, error in inputs.refused:
                await (await send_reject(self.context, message, "solve", error))
            inputs.refused.clear()

    async def _read(self, inputs: PolicyInputs, reader: AsyncTopicReader, wait_s: float) -> None:
        """Read the messages that arrive within `wait_s`."""
        for message in await reader.poll(wait_s):
            self.context.log_clock.observe(message.append_ns, time.monotonic_ns())
            inputs.offer(message)

    async def _publish(self, output: CycleOutput) -> None:
        """Publish the decisions first, then the rest, and wait for acknowledgements."""
        sent = [await self._send(outgoing) for outgoing in output.decisions]
        if sent:
            await asyncio.sleep(0)  # lets the producer send them before the next record is encoded
            for outgoing in output.decisions:
                log.info("policy: %s %s", outgoing.record["action"], outgoing.record["text"])
        sent += [await self._send(outgoing) for outgoing in output.fallbacks]
        for record in output.cycle_records:
            value = codec.encode(POLICY_CYCLES.record, record, self.context.registry)
            sent.append(await self.context.send_bytes(POLICY_CYCLES.name, record["shard"], value))
        await asyncio.gather(*sent)

    async def _send(self, outgoing: Outgoing[Any]) -> Awaitable[Any]:
        value = codec.encode(outgoing.topic.record, outgoing.record, self.context.registry)
        return await self.context.send_bytes(outgoing.topic.name, outgoing.key, value)


def _until_due_s(inputs: PolicyInputs, last_s: float) -> float:
    """Return the time until the next cycle, s."""
    if inputs.needs_urgent_cycle:
        return 0.0
    interval_s = MIN_CYCLE_S if inputs.has_news else CYCLE_S
    return max(0.0, last_s + interval_s - time.monotonic())

"""Alerts stage: publishes the `Alert` records of one worker's shards.

The stage reads its inputs without a consumer group: some topics from their beginning, others from as far back
as an alert may wait. Link evidence comes from the links stage, which has decoded it already. The worker that
owns a shard's partition of `fabric.links` owns its alerts. A new owner restores the published alerts and
reads the past hour again, which raises nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from schemas import codec
from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message, Place
from schemas.kafka.start import since
from schemas.records import Alert
from schemas.topics import ALERTS, DELAYS, LINK_HEALTH, LINKS
from streams.alerts.book import Published
from streams.alerts.latency_slo import groups_of
from streams.alerts.ordered_inputs import MAIN, AlertInputs, read_from
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import partition_count, read_last
from streams.runtime.log_time import LogTime
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.rejects import failed_evaluation, send_reject
from streams.runtime.units import NS_PER_MS

__all__ = ["AlertsStage"]

log = logging.getLogger(__name__)

POLL_MS: Final = 50
"""ms between two evaluations without a new message; short against `INPUT_DELAY_NS`."""
DELAYS_PER_POLL: Final = 100
"""Records of delays between two polls of the other inputs."""


class AlertsStage:
    """The alerts of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = Ownership(context, "alerts", LINKS, self._run)
        self._partition_count = 0
        self._inputs: AlertInputs | None = None
        """Set once evidence from the links stage can be added."""
        self._early_evidence: list[Message] = []
        """Evidence that came before that."""
        self._tap_from: dict[int, int] = {}
        """Partition of `fabric.links` to the offset from which the links stage provides its events."""
        self._delays: AsyncTopicReader | None = None
        self._delays_caught_up = True
        self._delays_from_ns = 0
        """Append time from which the first reader of delays starts."""
        self._late_logged = 0
        self._times: LogTime | None = None
        """Set at the end of recovery."""
        context.evidence_tap = self._add_evidence

    async def _run(self, generation: Generation) -> None:
        """Restore the past of a generation's shards, then follow the inputs."""
        self._inputs, self._early_evidence, self._tap_from, self._times = None, [], {}, None
        cluster, registry = self.context.settings.kafka, self.context.registry
        self._partition_count = await partition_count(cluster, LINKS.name)
        alerts = await read_last(cluster, ALERTS, registry, lambda r: r["alert_id"])
        health = await read_last(cluster, LINK_HEALTH, registry)
        now_ns = self._log_now_ns()
        since_of = read_from(now_ns, self.context.config.thresholds(), self._max_rule_s())
        self._delays_from_ns = since_of[DELAYS.name]
        inputs = self._new_inputs([record for record, _ in alerts.values()], since_of)
        for key, (record, at_ns) in health.items():
            if at_ns < since_of[LINK_HEALTH.name]:
                inputs.add(Message(at_ns, LINK_HEALTH.name, -1, -1, key, None, record))
        try:
            async with AsyncTopicReader(cluster) as reader:
                numbers = {tp.partition for tp in generation.tps}
                starts = {topic: since(since_of[topic.name]) for topic in MAIN}
                await reader.assign(starts, {LINKS: numbers})
                await self._read_past(inputs, reader, since_of, now_ns)
                links = {place for place in reader.ends if place[0] == LINKS.name}
                # From here on, the links stage provides the events, which it reads and decodes anyway.
                reader.pause(links)
                self._start_tap(inputs, {place[1]: reader.ends[place] for place in links})
                await self._finish_recovery(inputs, generation)
                await self._follow(inputs, reader)
        finally:
            await self._stop_delays()

    def _new_inputs(self, alerts: list[Alert], since_of: dict[str, int]) -> AlertInputs:
        settings = self.context.settings
        return AlertInputs(
            alerts,
            lambda shard: self.partitions.owns(shard, self._partition_count),
            default_shard=settings.default_shard,
            topology=self.context.topology,
            registry=self.context.registry,
            window_ns=settings.window_ms * NS_PER_MS,
            events_from_ns=since_of[LINKS.name],
            delays_from_ns=since_of[DELAYS.name],
            log_offset_ns=self.context.clocks.log_offset_ns,
        )

    async def _read_past(
        self, inputs: AlertInputs, reader: AsyncTopicReader, since_of: dict[str, int], now_ns: int
    ) -> None:
        """Read all inputs to their present ends."""
        read_ns = {place: since_of[place[0]] for place in reader.missing}
        while reader.missing:
            read_ns |= await self._read(inputs, reader)
            await reader.caught_up()
            # Process what all partitions have been read up to, to free memory: whole topics may be large.
            mark_ns = min((read_ns[place] for place in reader.missing), default=0)
            await self._publish(inputs.evaluate(min(mark_ns - 1, now_ns - INPUT_DELAY_NS)))

    async def _finish_recovery(self, inputs: AlertInputs, generation: Generation) -> None:
        """Evaluate the past, then report that this worker has recovered."""
        now_ns = self._log_now_ns()
        await self._publish(inputs.evaluate(now_ns - INPUT_DELAY_NS))
        times = self._times = LogTime(now_ns, time.monotonic_ns())
        inputs.offset_of = lambda offset_ns: times.offset_ns(offset_ns, time.monotonic_ns())
        self._inputs = inputs
        generation.recovered.set()
        log.info("alerts: %d active", len(inputs.open_ids()))

    async def _follow(self, inputs: AlertInputs, reader: AsyncTopicReader) -> None:
        has_more = False
        while True:
            await self._read(inputs, reader, 0 if has_more else POLL_MS)
            has_more = await self._read_delays(inputs)
            await self._evaluate(inputs)

    # --------------------------------------------------------------------------------------- link evidence

    def _start_tap(self, inputs: AlertInputs, tap_from: dict[int, int]) -> None:
        """Start to add evidence from the links stage, that which came early first."""
        self._tap_from, early = tap_from, self._early_evidence
        self._inputs, self._early_evidence = inputs, []
        for each in early:
            self._add_evidence(each)

    def _add_evidence(self, message: Message) -> None:
        """Take a `LinkEvent` that the links stage has decoded."""
        if self._inputs is None:
            self._early_evidence.append(message)
        elif message.offset >= self._tap_from.get(message.partition, message.offset):
            self._add_live(self._inputs, message)

    def _add_live(self, inputs: AlertInputs, message: Message) -> None:
        """Add a message, at its steady time once recovery has ended."""
        if self._times is not None:
            now_ns, monotonic_ns = self._steady_now_ns(), time.monotonic_ns()
            message.log_ns = self._times.of(message.place, message.append_ns, now_ns, monotonic_ns)
        inputs.add(message)

    # --------------------------------------------------------------------------------------- reading

    async def _read(
        self, inputs: AlertInputs, reader: AsyncTopicReader, wait_ms: int = POLL_MS
    ) -> dict[Place, int]:
        """Add new messages; return the append time up to which each of their partitions has been read."""
        read_ns: dict[Place, int] = {}
        for message in await reader.poll(wait_ms / 1e3):
            read_ns[message.place] = message.append_ns
            is_tapped = message.topic == LINKS.name and message.offset >= self._tap_from.get(
                message.partition, message.offset + 1
            )
            if not is_tapped:
                self.context.log_clock.observe(message.append_ns, time.monotonic_ns())
                self._add_live(inputs, message)
        return read_ns

    async def _read_delays(self, inputs: AlertInputs) -> bool:
        """Read the delays while there are latency rules; return whether there are more at once."""
        back_s = self._max_rule_s()
        if not back_s:
            self._delays_from_ns = 0
            await self._stop_delays()
            return False
        if self._delays is None:
            self._delays = await self._start_delays(back_s)
        found = await self._delays.poll(0.0, DELAYS_PER_POLL)
        for message in found:
            if self._is_wanted(inputs, message.key):
                if self._times is not None:
                    message.log_ns = self._times.shifted_ns(message.append_ns)
                inputs.add(message)
        self._delays_caught_up = await self._delays.caught_up()
        return len(found) >= DELAYS_PER_POLL

    async def _start_delays(self, back_s: float) -> AsyncTopicReader:
        reader = AsyncTopicReader(self.context.settings.kafka)
        await reader.consumer.start()
        self._delays = reader
        from_ns, self._delays_from_ns = self._delays_from_ns, 0
        if not from_ns:
            from_ns = read_from(self._log_now_ns(), self.context.config.thresholds(), back_s)[DELAYS.name]
        await reader.assign({DELAYS: since(from_ns)})
        return reader

    async def _stop_delays(self) -> None:
        if self._delays is not None:
            await self._delays.consumer.stop()
        self._delays, self._delays_caught_up = None, True

    def _max_rule_s(self) -> float:
        """Return the longest time for which a latency rule may be broken before its alert, in s; 0 without
        any."""
        return max((rule["for_s"] for rule in self.context.config.latency_rules()), default=0.0)

    def _is_wanted(self, inputs: AlertInputs, nic: str) -> bool:
        """Return whether a NIC's delays may matter to a present rule, or to one that is still evaluated."""
        groups = groups_of(self.context.inventory.member(nic))
        rules = self.context.config.latency_rules()
        has_rule = any(rule["from_group"] in groups or rule["to_group"] in groups for rule in rules)
        return has_rule or inputs.wants_delays(nic)

    # --------------------------------------------------------------------------------------- evaluation

    async def _evaluate(self, inputs: AlertInputs) -> None:
        to_ns = self._steady_now_ns() - INPUT_DELAY_NS
        inputs.wiring.topology = self.context.topology
        await self._publish(inputs.evaluate(to_ns))
        if self._delays_caught_up:
            await self._publish(inputs.evaluate_delays(to_ns))
        for message, error in inputs.invalid:
            await (await send_reject(self.context, message, "solve", error))
        inputs.invalid.clear()
        for shard, failure in inputs.failed:
            await (await send_reject(self.context, failed_evaluation(ALERTS.name, shard), "alerts", failure))
        inputs.failed.clear()
        if inputs.late > self._late_logged:
            log.warning(
                "alerts: %d messages came more than %d ms after their append time: a replay may differ",
                inputs.late - self._late_logged,
                INPUT_DELAY_NS // NS_PER_MS,
            )
            self._late_logged = inputs.late

    async def _publish(self, found: Published) -> None:
        """Publish alerts and wait for the log: the next owner raises alerts that are not in the log."""
        sent = []
        for key, record in found:
            log.info("alerts: %s %s: %s", record["state"], record["alert_id"], record["text"])
            value = codec.encode(ALERTS.type, record, self.context.registry)
            sent.append(await self.context.send_bytes(ALERTS.name, key, value))
        await asyncio.gather(*sent)

    def _steady_now_ns(self) -> int:
        log_ns = self._log_now_ns()
        return log_ns if self._times is None else self._times.now_ns(log_ns, time.monotonic_ns())

    def _log_now_ns(self) -> int:
        return self.context.log_clock.now_ns(time.monotonic_ns())

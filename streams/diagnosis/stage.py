"""Diagnosis stage: publishes the `Diagnosis` records of one worker's jobs.

The worker that owns a partition of `fabric.queues` owns the jobs in the partition of the same number of
`fabric.collectives`: the topics have equally many. It reads them without a consumer group. While no job
publishes, it reads nothing else; with the first record it starts to read the network's topics too. A new
owner reads the past minutes again: identities follow from log time, so it repeats no record under another
identity.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.message import Message
from schemas.kafka.start import since
from schemas.records import Diagnosis
from schemas.topics import COLLECTIVES, DIAGNOSES, MAX_MESSAGE_BYTES, PATHS, QUEUES, Topic
from streams.diagnosis.inputs import (
    NETWORK,
    TAKEOVER_NS,
    TICK_NS,
    DiagnosisInputs,
    encoded,
    read_from,
)
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import read_tail
from streams.runtime.log_time import LogTime
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.rejects import failed_evaluation, send_reject

__all__ = ["DiagnosisStage"]

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
"""Longest wait for records while jobs run, s."""
IDLE_POLL_S: Final = 0.5
"""The same while no job publishes."""
PAST_S: Final = 120.0
"""s of published diagnoses from which a new owner learns the jobs' good time."""
LINGER_S: Final = 60.0
"""Time without jobs after which the network's topics are read no more, s."""
MAX_POLL_MESSAGES: Final = 500
"""Messages between two returns to the event loop: other stages share it."""
LIVE_TOPICS: Final[tuple[Topic[Any], ...]] = tuple(topic for topic in NETWORK if topic is not PATHS)
"""Routes of probes are a global table of the worker."""


class DiagnosisStage:
    """The diagnosis of one worker's jobs."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = Ownership(context, "diagnosis", QUEUES, self._run)
        self._network: AsyncTopicReader | None = None
        self._used_s = 0.0
        """Monotonic time at which the network's topics were last needed."""
        self._evaluated_ns = 0

    async def _run(self, generation: Generation) -> None:
        """Read the jobs of a generation's partitions, and diagnose them."""
        now_ns = self._log_now_ns()
        times = LogTime(now_ns, time.monotonic_ns())
        inputs = DiagnosisInputs(
            now_ns - TAKEOVER_NS,
            registry=self.context.registry,
            probes=self.context.routes,
            log_offset_ns=self.context.clocks.log_offset_ns,
            past=await read_tail(
                self.context.settings.kafka, DIAGNOSES, None, self.context.registry, since_s=PAST_S
            ),
        )
        starts_ns = read_from(now_ns)
        self._evaluated_ns = starts_ns[COLLECTIVES.name]
        numbers = {tp.partition for tp in generation.tps}
        try:
            async with AsyncTopicReader(self.context.settings.kafka) as reader:
                await reader.assign({COLLECTIVES: since(starts_ns[COLLECTIVES.name])}, {COLLECTIVES: numbers})
                while not await reader.caught_up():
                    for message in await reader.poll(POLL_S, MAX_POLL_MESSAGES):
                        inputs.add(message)
                inputs.offset_of = lambda offset_ns: times.offset_ns(offset_ns, time.monotonic_ns())
                generation.recovered.set()
                while True:
                    await self._start_or_stop_network(inputs)
                    await self._read(inputs, times, reader)
                    to_ns = self._steady_now_ns(times) - INPUT_DELAY_NS
                    if to_ns // TICK_NS > self._evaluated_ns // TICK_NS:
                        await self._read_to_ends(inputs, times, reader)
                        await self._evaluate(inputs, to_ns)
        finally:
            await self._stop_network()

    # ------------------------------------------------------------------------------------------ reading

    def _add(self, inputs: DiagnosisInputs, times: LogTime, messages: list[Message]) -> None:
        """Add live messages at their steady times."""
        for message in messages:
            monotonic_ns = time.monotonic_ns()
            self.context.log_clock.observe(message.append_ns, monotonic_ns)
            now_ns = self._steady_now_ns(times)
            message.log_ns = times.of(message.place, message.append_ns, now_ns, monotonic_ns)
            inputs.add(message)

    async def _read(self, inputs: DiagnosisInputs, times: LogTime, reader: AsyncTopicReader) -> None:
        """Read what has come, and wait a moment for records of jobs."""
        wait_s = IDLE_POLL_S
        if self._network is not None:
            self._add(inputs, times, await self._network.poll(0.0, MAX_POLL_MESSAGES))
            wait_s = POLL_S
        self._add(inputs, times, await reader.poll(wait_s, MAX_POLL_MESSAGES))

    async def _read_to_ends(self, inputs: DiagnosisInputs, times: LogTime, reader: AsyncTopicReader) -> None:
        """Read all that is in the log now: a slow reader must not evaluate what it has not read."""
        if not inputs.needs_network:
            return
        if self._network is None:
            await self._start_or_stop_network(inputs)
        for each in (reader, self._network):
            if each is None:
                continue
            ends = await each.consumer.end_offsets(each.consumer.assignment())
            while [tp for tp, end in ends.items() if await each.consumer.position(tp) < end]:
                self._add(inputs, times, await each.poll(POLL_S, MAX_POLL_MESSAGES))

    async def _start_or_stop_network(self, inputs: DiagnosisInputs) -> None:
        """Read the network's topics while a job publishes, and a while longer."""
        if inputs.needs_network:
            self._used_s = time.monotonic()
            if self._network is None:
                self._network = await self._start_network(inputs)
        elif time.monotonic() - self._used_s > LINGER_S:
            await self._stop_network()

    async def _start_network(self, inputs: DiagnosisInputs) -> AsyncTopicReader:
        """Read the network's topics to their present ends; return their reader."""
        reader = AsyncTopicReader(self.context.settings.kafka)
        await reader.consumer.start()
        self._network = reader
        starts_ns = read_from(self._log_now_ns())
        await reader.assign({topic: since(starts_ns[topic.name]) for topic in LIVE_TOPICS})
        while not await reader.caught_up():
            for message in await reader.poll(POLL_S, MAX_POLL_MESSAGES):
                inputs.add(message)
        return reader

    async def _stop_network(self) -> None:
        reader, self._network = self._network, None
        if reader is not None:
            await reader.consumer.stop()

    # ------------------------------------------------------------------------------------------ evaluation

    async def _evaluate(self, inputs: DiagnosisInputs, to_ns: int) -> None:
        """Evaluate up to a time, second by second, so that other stages run in between."""
        while self._evaluated_ns < to_ns:
            waits = inputs.needs_network
            self._evaluated_ns = min(self._evaluated_ns + TICK_NS, to_ns) if waits else to_ns
            await self._publish(inputs.evaluate(self._evaluated_ns))
            await asyncio.sleep(0)
        for message, error in inputs.invalid:
            await (await send_reject(self.context, message, "solve", error))
        inputs.invalid.clear()
        for job, failure in inputs.failed:
            failed = failed_evaluation(COLLECTIVES.name, job)
            await (await send_reject(self.context, failed, "diagnosis", failure))
        inputs.failed.clear()

    async def _publish(self, records: list[Diagnosis]) -> None:
        """Publish diagnoses and wait for the log."""
        sent = []
        for record in records:
            log.info("diagnosis: %s: %s: %s", record["job"], record["verdict"], record["text"])
            value = encoded(record, MAX_MESSAGE_BYTES, self.context.registry)
            sent.append(await self.context.send_bytes(DIAGNOSES.name, record["job"], value))
        await asyncio.gather(*sent)

    def _steady_now_ns(self, times: LogTime) -> int:
        return times.now_ns(self._log_now_ns(), time.monotonic_ns())

    def _log_now_ns(self) -> int:
        return self.context.log_clock.now_ns(time.monotonic_ns())

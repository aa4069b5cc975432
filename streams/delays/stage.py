"""The map stage in Faust: probes in, fits and path delays out.

In: `fabric.probes`, this worker's partitions. Out: per source partition and window `ClockFits`, then
`PathDelays` a NIC; once the log has acknowledged them, the window's messages are acknowledged. On a rebalance
what is held is dropped: the next owner reads it again and cuts it by the offset ranges that were published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from faust.types import TP

from native.core import BadBatch, ProbeColumns, decode_probe_batch
from schemas import codec
from schemas.topics import CLOCK_FITS, DELAYS, PATH_QUEUEING, PROBES
from streams.delays.counters import JumpLimit, NicState
from streams.delays.queueing import SUB_SLOTS, SourceQueueing, slot_ns_of
from streams.delays.records import Fitted, Member, clock_fits, fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.delays.windows import Range
from streams.runtime.assignment import Assignment, Message, PartitionState
from streams.runtime.columnar import encode_columnar
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import Inventory, read_tail
from streams.settings import StreamSettings

__all__ = ["DelayStage", "recovered"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.01
QUEUEING_S: Final = 0.01
"""s between two records of what the paths' queueing is."""
TAIL_QUEUEING: Final = 40
"""Newest `PathQueueing` of each partition from which a new owner learns floors."""
TAIL_WINDOWS: Final = 16
"""Published windows of each source that a new owner looks back on: commits are some two windows behind."""


@dataclass(slots=True)
class _Part:
    """What is kept of a source partition."""

    source: Source
    queueing: SourceQueueing
    seen_ns: int
    """When the last message came, or the partition."""


@dataclass(slots=True)
class _Job:
    partition: PartitionState[_Part]
    window: ClosedWindow
    lag_messages: int
    samples: int
    fitted: Fitted | None = None
    sent: list[Awaitable[Any]] = field(default_factory=list)


class _Members(dict[str, Member]):
    """Every NIC's member, also of those that the inventory does not know."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, nic: str) -> Member:
        member = self[nic] = self._inventory.member(nic)
        return member

    def __contains__(self, nic: object) -> bool:
        return True


def source_name(tp: TP) -> str:
    """Return the name of a source partition, as `ClockFits.source` has it."""
    return f"{tp.topic}/{tp.partition}"


def recovered(
    records: Iterable[codec.Record], source: str, position: int | None
) -> tuple[list[Range], dict[str, NicState]]:
    """Return what a new owner of `source` goes on from: the published ranges, and the probers' states as they
    were at `position`, where it begins to read."""
    ranges: dict[int, Range] = {}
    states: dict[str, tuple[int, NicState]] = {}
    begin = 0 if position is None else position
    for record in records:
        if record["source"] != source:
            continue
        window = record["window"]
        ranges[window] = Range(window, record["first_offset"], record["next_offset"])
        if record["next_offset"] <= begin:
            for nic in record["nics"]:
                known = states.get(nic["nic"])
                if known is None or known[0] <= window:
                    states[nic["nic"]] = (window, NicState.of(nic))
    return sorted(ranges.values()), {nic: state for nic, (_, state) in states.items()}


class DelayStage:
    """One worker's source partitions."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.settings: StreamSettings = context.settings
        self.window_ns = self.settings.window_ms * MS
        self.silence_ns = self.settings.silence_ms * MS
        self.limit = JumpLimit(self.settings.clock_jump_us * 1000, self.settings.clock_jump_ppm)
        self.partitions: Assignment[_Part] = Assignment(
            context, "map", PROBES,
            start=self._start, recover=self._recover, take=self._take, on_revoke=self._on_revoke,
        )  # fmt: skip
        self._jobs: list[_Job] = []
        self._job_came = asyncio.Event()
        self._batch_came = asyncio.Event()
        self._room_left = asyncio.Event()
        self._room_left.set()
        self._waiting_samples = 0
        self._pool = ThreadPoolExecutor(1, "map")

    def _start(self) -> None:
        self.context.task("map timer", self._tick_forever())
        self.context.task("map publisher", self._publish_forever())
        self.context.task("map queueing", self._queueing_forever())

    def _on_revoke(self, _: list[PartitionState[_Part]]) -> None:
        """Drop what is not being published."""
        self._jobs.clear()
        self._waiting_samples = 0
        self._room_left.set()

    async def _recover(self, taken: list[PartitionState[_Part]]) -> None:
        bootstrap, registry = self.context.settings.bootstrap, self.context.registry
        tail = TAIL_WINDOWS * max(8, len(taken)) * max(1, len(self.context.inventory.shards()))
        records = await read_tail(bootstrap, CLOCK_FITS.name, tail, registry)
        floors = await read_tail(bootstrap, PATH_QUEUEING.name, TAIL_QUEUEING, registry)
        slot_ns = self.slot_ns()
        for partition in taken:
            name = source_name(partition.tp)
            queueing = SourceQueueing(name, slot_ns)
            queueing.recover(floors)
            ranges, states = recovered(records, name, partition.next_offset)
            source = Source(name, self.window_ns, self.silence_ns, ranges, states)
            partition.state = _Part(source, queueing, time.monotonic_ns())

    async def _take(self, message: Message[_Part]) -> None:
        partition, part, offset = message.partition, message.partition.state, message.offset
        part.seen_ns = time.monotonic_ns()
        self.context.log_clock.observe(message.append_ns, part.seen_ns)
        if message.value is None:
            closed = part.source.skip(message.append_ns, offset, offset)
        else:
            batch = None
            try:
                batch = self._decode(message.key, message.value)
            except (codec.BadRecord, BadBatch) as error:
                await self.partitions.reject(message, error, "map")
            closed = part.source.add(message.append_ns, offset, len(message.value), batch, offset)
            if batch is not None:
                part.queueing.add(batch, message.append_ns, offset, self.context.clocks.models())
                self._batch_came.set()
        if closed:
            self._enqueue(partition, closed)
            await self._room_left.wait()

    def _decode(self, key: bytes | None, value: bytes) -> ProbeColumns:
        batch = decode_probe_batch(value, codec.body_start(value, PROBES.record, self.context.registry))
        if key != batch.nic.encode():
            raise codec.BadRecord("WRONG_KEY", f"key {key!r}, expected the batch's NIC {batch.nic!r}")
        return batch

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            log_now_ns = self.context.log_clock.now_ns(now_ns)
            for partition in self.partitions:
                quiet_ns = now_ns - partition.state.seen_ns
                if quiet_ns < self.silence_ns:
                    continue
                closed = partition.state.source.tick(
                    log_now_ns, quiet_ns, self.partitions.caught_up(partition)
                )
                if closed:
                    self._enqueue(partition, closed)

    def slot_ns(self) -> int:
        """Return ns of a slot of `PathQueueing`: as the settings say, else by the rate of the NICs."""
        if self.settings.queue_slot_us is not None:
            return self.settings.queue_slot_us * 1000 // SUB_SLOTS
        return slot_ns_of(self.context.fastest_bps()) // SUB_SLOTS

    async def _queueing_forever(self) -> None:
        """Send what the paths' queueing is, soon and often; nothing is acknowledged by it."""
        while True:
            await self._batch_came.wait()
            await asyncio.sleep(QUEUEING_S)
            self._batch_came.clear()
            for partition in self.partitions:
                if partition.revoking or not partition.state.queueing.waiting:
                    continue
                records = partition.state.queueing.take(_Members(self.context.inventory))
                encoded = [
                    (r["shard"], encode_columnar(PATH_QUEUEING.record, r, self.context.registry))
                    for r in records
                ]
                sent = [
                    await self.partitions.send(partition, PATH_QUEUEING, shard, value)
                    for shard, value in encoded
                ]
                await asyncio.gather(*sent)

    def _enqueue(self, partition: PartitionState[_Part], closed: list[ClosedWindow]) -> None:
        if partition.revoking:
            return
        highwater = self.context.highwater(partition.tp)
        lag = (
            -1
            if highwater is None or partition.next_offset is None
            else max(0, highwater - partition.next_offset)
        )
        for window in closed:
            job = _Job(partition, window, lag, window.samples)
            self._jobs.append(job)
            self._waiting_samples += job.samples
            if window.duplicates:
                log.info("map: %s: %d batches came twice", window.source, window.duplicates)
        if self._waiting_samples > self.settings.held_samples:
            self._room_left.clear()
        self._job_came.set()

    async def _publish_forever(self) -> None:
        while True:
            await self._job_came.wait()
            self._job_came.clear()
            while self._jobs:
                jobs, self._jobs = self._jobs, []
                async with self.partitions.lock:
                    await self._publish(jobs)

    async def _publish(self, jobs: list[_Job]) -> None:
        """Publish closed windows: the fits of all first, since the solver waits for them, then the delays."""
        loop = asyncio.get_running_loop()
        for job in jobs:
            members = {nic: self.context.inventory.member(nic) for nic in job.window.nics}
            for key, value in await loop.run_in_executor(
                self._pool, self._encode_fits, job, members, self.context.inventory.shards()
            ):
                job.sent.append(await self.partitions.send(job.partition, CLOCK_FITS, key, value))
            if job.fitted is not None:
                job.partition.state.queueing.learn(job.fitted.fits)
                job.fitted = None
        for job in jobs:
            await self._publish_delays(job)
        for job in jobs:
            await asyncio.gather(*job.sent)
            await self.partitions.flush(job.partition)
            if not job.partition.revoking:
                self.partitions.done(job.partition, job.window.tokens)
                self._waiting_samples -= job.samples
                if self._waiting_samples <= self.settings.held_samples:
                    self._room_left.set()

    def _encode_fits(
        self, job: _Job, members: dict[str, Member], shards: list[str]
    ) -> list[tuple[str, bytes]]:
        fitted = fit_window(job.window)
        job.fitted = fitted
        records = clock_fits(fitted, members, shards, self.window_ns, self.limit, job.lag_messages)
        return [(r["shard"], codec.encode(CLOCK_FITS.record, r, self.context.registry)) for r in records]

    async def _publish_delays(self, job: _Job) -> None:
        offsets, window = self.context.clocks, job.window
        models = offsets.models()
        end_ns = (window.cut.window + 1) * self.window_ns
        work = [
            (nic.samples, self.context.inventory.member(name), offsets.state_of(name, end_ns))
            for name, nic in sorted(window.nics.items())
        ]

        def encode() -> list[tuple[str, bytes]]:
            return [
                (member.nic, head + body)
                for samples, member, state in work
                for body in path_delays(
                    samples, member, window.cut.window, self.window_ns, models, state, log_offset_ns
                )
            ]

        head = codec.header(DELAYS.record, self.context.registry)
        log_offset_ns = offsets.log_offset_ns
        for key, value in await asyncio.get_running_loop().run_in_executor(self._pool, encode):
            job.sent.append(await self.partitions.send(job.partition, DELAYS, key, value))
        window.nics.clear()

"""The delay stage: fits probe samples and reduces them to path delays, by source partition.

Reads `fabric.probes`. For each source partition and window it publishes `ClockFits`, then `PathDelays` for
each NIC; once the log has acknowledged them, the window's messages are acknowledged. A rebalance drops
unpublished windows: the next owner reads their messages again and cuts windows by the published offset
ranges.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from faust.types import TP

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ClockFits
from schemas.topics import CLOCK_FITS, DELAYS, PATH_QUEUEING, PROBES
from schemas.unexpected import DATA_ERRORS
from streams.delays.counters import JumpLimit, NicState
from streams.delays.messages import decode_messages
from streams.delays.queueing import SourceQueueing
from streams.delays.records import Fitted, clock_fits, fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.delays.windows import Range
from streams.runtime.assignment import PartitionState
from streams.runtime.columnar import encode_columnar
from streams.runtime.context import WorkerContext
from streams.runtime.global_tables import read_tail
from streams.runtime.log_time import LogClock
from streams.runtime.pipeline_constants import QUEUEING_NS, SUB_SLOTS, slot_ns_of
from streams.runtime.settings import StreamSettings
from streams.runtime.shard_stage import PartitionStage
from streams.runtime.tables import Inventory, Member
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["DelayStage", "recovered"]

log = logging.getLogger(__name__)

CHECK_S: Final = 0.02
"""s between two checks for silent partitions."""
QUIET_NS: Final = 1_000 * NS_PER_MS
"""ns without a message after which windows close by the worker's estimate of the log's clock."""
TAIL_QUEUEING: Final = 40
"""Newest `PathQueueing` of each partition from which a new owner learns delay floors."""
TAIL_WINDOWS: Final = 16
"""Published windows of each source that a new owner reads: commits are about two windows behind."""
MIN_TAIL_PARTITIONS: Final = 8
PART_BYTES: Final = 128 * 1024
"""Bytes of messages after which other stages run: some milliseconds of work."""


@dataclass(slots=True)
class _Source:
    """The state of a source partition."""

    source: Source
    queueing: SourceQueueing
    received_ns: int
    """Monotonic time of the last message, or of the recovery."""
    log_clock: LogClock
    """The clock of the partition's leader."""


_Partition = PartitionState[_Source]


@dataclass(slots=True)
class _Job:
    """A closed window to publish."""

    partition: _Partition
    window: ClosedWindow
    lag_messages: int
    samples: int
    fitted: Fitted | None = None
    sent: list[Awaitable[Any]] = field(default_factory=list)


class _Members(dict[str, Member]):
    """NIC to member, including NICs that the inventory does not know."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, nic: str) -> Member:
        member = self[nic] = self._inventory.member(nic)
        return member

    def __contains__(self, nic: object) -> bool:
        return True


def source_name(tp: TP) -> str:
    """Return the name of a source partition, as in `ClockFits.source`."""
    return f"{tp.topic}/{tp.partition}"


def recovered(
    records: Iterable[ClockFits], source: str, position: int | None
) -> tuple[list[Range], dict[str, NicState]]:
    """Return the past from which a new owner of `source` continues, given its fits in the log's order.

    That is the published offset ranges, and the probers' states at `position`, the first offset to read.
    """
    ranges: dict[Range, None] = {}
    states: dict[str, tuple[int, NicState]] = {}
    begin = 0 if position is None else position
    for record in records:
        if record["source"] != source:
            continue
        window = record["window"]
        ranges[Range(window, record["first_offset"], record["next_offset"])] = None
        if record["next_offset"] <= begin:
            for nic in record["nics"]:
                known = states.get(nic["nic"])
                if known is None or known[0] <= record["next_offset"]:
                    states[nic["nic"]] = (record["next_offset"], NicState.of(nic))
    return list(ranges), {nic: state for nic, (_, state) in states.items()}


def _parts_of(messages: Sequence[Message], size_bytes: int) -> Iterator[Sequence[Message]]:
    """Yield the messages in parts of about so many bytes."""
    begin = filled = 0
    for end, message in enumerate(messages, 1):
        filled += len(message.value or b"")
        if filled >= size_bytes or end == len(messages):
            yield messages[begin:end]
            begin, filled = end, 0


class DelayStage(PartitionStage[_Source]):
    """The source partitions of one worker."""

    name = "map"
    topic = PROBES

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.settings: StreamSettings = context.settings
        self.window_ns = self.settings.window_ms * NS_PER_MS
        self.silence_ns = self.settings.silence_ms * NS_PER_MS
        self.limit = JumpLimit(self.settings.clock_jump_us * 1000, self.settings.clock_jump_ppm)
        self._jobs: list[_Job] = []
        self._job_queued = asyncio.Event()
        self._batch_arrived = asyncio.Event()
        self._capacity = asyncio.Event()
        """Set while fewer than `max_waiting_samples` samples wait to be published."""
        self._capacity.set()
        self._waiting_samples = 0
        self._pool = ThreadPoolExecutor(1, "map")

    def start(self) -> None:
        """Close the windows of silent partitions, publish closed windows, and publish path queueing."""
        self.every(CHECK_S, self._close_silent)
        self.every(None, self._publish_queued, wake=self._job_queued, name="publisher")
        queueing = self._publish_queueing
        self.every(None, queueing, wake=self._batch_arrived, settle_s=QUEUEING_NS / NS_PER_S, name="queueing")

    def on_revoke(self, partitions: list[_Partition]) -> None:
        """Drop the windows that are not being published."""
        self._jobs.clear()
        self._waiting_samples = 0
        self._capacity.set()

    async def recover(self, partitions: list[_Partition]) -> None:
        """Recover sources from published fits, and delay floors from published queueing."""
        cluster, registry = self.context.settings.kafka, self.context.registry
        shards = max(1, len(self.context.inventory.shards()))
        tail = TAIL_WINDOWS * max(MIN_TAIL_PARTITIONS, len(partitions)) * shards
        records = await read_tail(cluster, CLOCK_FITS, tail, registry)
        floors = await read_tail(cluster, PATH_QUEUEING, TAIL_QUEUEING, registry)
        slot_ns = self.slot_ns()
        for partition in partitions:
            name = source_name(partition.tp)
            queueing = SourceQueueing(name, slot_ns)
            queueing.recover(floors)
            ranges, states = recovered(records, name, partition.next_offset)
            source = Source(name, self.window_ns, self.silence_ns, ranges, states)
            now_ns = time.monotonic_ns()
            log_clock = LogClock(self.context.log_clock.now_ns(now_ns), now_ns)
            partition.state = _Source(source, queueing, now_ns - QUIET_NS, log_clock)

    async def process(self, partition: _Partition, message: Message) -> None:
        """Process one message, see `process_batch`."""
        await self.process_batch(partition, [message])

    async def process_batch(self, partition: _Partition, messages: Sequence[Message]) -> None:
        """Add probe batches of one partition to its source; wait while too many samples are unpublished."""
        for part in _parts_of(messages, PART_BYTES):
            if partition.revoking:
                return
            self.partitions.begin(partition, part[-1])
            closed = await self._add(partition, part)
            if closed:
                self._enqueue(partition, closed)
                await self._capacity.wait()
            if part[-1] is not messages[-1]:
                await asyncio.sleep(0)

    async def _add(self, partition: _Partition, messages: Sequence[Message]) -> list[ClosedWindow]:
        """Add messages to the open window and to path queueing; return the windows that they close."""
        state = partition.state
        state.received_ns = time.monotonic_ns()
        self.context.log_clock.observe(messages[-1].append_ns, state.received_ns)
        state.log_clock.observe(messages[-1].append_ns, state.received_ns)
        batches, rejected = decode_messages(messages, self.context.registry)
        for number, error in rejected:
            await self.partitions.reject(partition, messages[number], error, "map")
        try:
            closed = state.source.add_messages(messages, batches)
        except DATA_ERRORS as error:  # not foreseen by any check: which of them caused it is not known
            for message in messages:
                await self.partitions.reject(partition, message, error, self.name)
            self.partitions.done(partition, [message.offset for message in messages])
            return []
        with self.context.survive(self.name, PATH_QUEUEING, state.source.name):
            state.queueing.add_messages(messages, batches, self.context.clocks.models())
        if state.queueing.waiting:
            self._batch_arrived.set()
        return closed

    async def _close_silent(self) -> None:
        now_ns = time.monotonic_ns()
        for partition in self.partitions:
            silent_ns = now_ns - partition.state.received_ns
            if silent_ns < self.silence_ns:
                continue
            caught_up = self.partitions.caught_up(partition)
            # Leaders may have different clocks; the last message of a quiet partition may be before a step.
            clock = partition.state.log_clock if silent_ns < QUIET_NS else self.context.log_clock
            log_now_ns = clock.now_ns(now_ns)
            closed = partition.state.source.tick(log_now_ns, silent_ns, caught_up)
            if closed:
                self._enqueue(partition, closed)

    def slot_ns(self) -> int:
        """Return the slot length of `PathQueueing`: from the settings, else from the fastest rate."""
        if self.settings.queue_slot_us is not None:
            return self.settings.queue_slot_us * 1000 // SUB_SLOTS
        return slot_ns_of(self.context.fastest_bps()) // SUB_SLOTS

    async def _publish_queueing(self) -> None:
        """Publish the newest path queueing; no message is acknowledged by it.

        Slots follow the inventory and the topology file, which may be filled after the start.
        """
        slot_ns = self.slot_ns()
        sent: list[Awaitable[Any]] = []
        for partition in self.partitions:
            if partition.revoking or not partition.state.queueing.waiting:
                continue
            partition.state.queueing.set_slot_ns(slot_ns)
            with self.context.survive(self.name, PATH_QUEUEING, partition.state.source.name):
                for record in partition.state.queueing.take(_Members(self.context.inventory)):
                    value = encode_columnar(PATH_QUEUEING.type, record, self.context.registry)
                    sent.append(await self.partitions.send(partition, PATH_QUEUEING, record["shard"], value))
        await asyncio.gather(*sent)

    def _enqueue(self, partition: _Partition, closed: list[ClosedWindow]) -> None:
        if partition.revoking:
            return
        lag = self._lag_messages(partition)
        for window in closed:
            job = _Job(partition, window, lag, window.samples)
            self._jobs.append(job)
            self._waiting_samples += job.samples
            if window.duplicates:
                log.info("map: %s: %d duplicate batches", window.source, window.duplicates)
        if self._waiting_samples > self.settings.max_waiting_samples:
            self._capacity.clear()
        self._job_queued.set()

    def _lag_messages(self, partition: _Partition) -> int:
        """Return the number of unread messages of a partition; -1: unknown."""
        highwater = self.context.highwater(partition.tp)
        if highwater is None or partition.next_offset is None:
            return -1
        return max(0, highwater - partition.next_offset)

    async def _publish_queued(self) -> None:
        while self._jobs:
            jobs, self._jobs = self._jobs, []
            async with self.partitions.lock:
                await self._publish(jobs)

    async def _publish(self, jobs: list[_Job]) -> None:
        """Publish the fits of all closed windows first, because the solver waits for them; then the
        delays."""
        for publish in (self._publish_fits, self._publish_delays):
            for job in jobs:
                with self.context.survive(self.name, PROBES, job.window.source):
                    await publish(job)
        for job in jobs:
            with self.context.survive(self.name, PROBES, job.window.source):
                await asyncio.gather(*job.sent)
            await self.partitions.flush(job.partition)
            self._acknowledge(job)

    async def _publish_fits(self, job: _Job) -> None:
        inventory = self.context.inventory
        members = {nic: inventory.member(nic) for nic in job.window.nics}
        encoded = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._encode_fits, job, members, inventory.shards()
        )
        for key, value in encoded:
            job.sent.append(await self.partitions.send(job.partition, CLOCK_FITS, key, value))
        if job.fitted is not None:
            job.partition.state.queueing.learn(job.fitted.fits)
            job.fitted = None

    def _acknowledge(self, job: _Job) -> None:
        if job.partition.revoking:
            return
        self.partitions.done(job.partition, job.window.offsets)
        self._waiting_samples -= job.samples
        if self._waiting_samples <= self.settings.max_waiting_samples:
            self._capacity.set()

    def _encode_fits(
        self, job: _Job, members: dict[str, Member], shards: list[str]
    ) -> list[tuple[str, bytes]]:
        fitted = fit_window(job.window)
        job.fitted = fitted
        records = clock_fits(fitted, members, shards, self.window_ns, self.limit, job.lag_messages)
        return [(r["shard"], codec.encode(CLOCK_FITS.type, r, self.context.registry)) for r in records]

    async def _publish_delays(self, job: _Job) -> None:
        clocks, window = self.context.clocks, job.window
        models = clocks.models()
        end_ns = (window.cut.window + 1) * self.window_ns
        work = [
            (nic.samples, self.context.inventory.member(name), clocks.state_of(name, end_ns))
            for name, nic in sorted(window.nics.items())
        ]
        head = codec.header(DELAYS.record, self.context.registry)
        log_offset_ns = clocks.log_offset_ns

        def encode() -> list[tuple[str, bytes]]:
            return [
                (member.nic, head + body)
                for samples, member, state in work
                for body in path_delays(
                    samples, member, window.cut.window, self.window_ns, models, state, log_offset_ns
                )
            ]

        for key, value in await asyncio.get_running_loop().run_in_executor(self._pool, encode):
            job.sent.append(await self.partitions.send(job.partition, DELAYS, key, value))
        window.nics.clear()

"""Runs the operators of one as-read stage on the partitions that Faust's group assigns to this worker.

Whole batches of a partition go to its operator, one advance after another. The position that the operator
needs is committed once all earlier outputs are acknowledged. Each advance is a step of `fabric.steps`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiokafka import ConsumerRecord
from faust.types import TP

from schemas.checks import BadRecord
from schemas.kafka.async_reader import partition_count
from schemas.kafka.message import Message
from schemas.log_time import append_ns_of
from schemas.topics import STEPS
from streams.runtime.digests import build_digest, settings_digest
from streams.runtime.faust.compat import read_batches
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.ownership import Generation, Ownership
from streams.runtime.faust.partition import NO_APPEND_TIME_NS, Partition, Sent
from streams.runtime.faust.publishing import Acknowledgements, Publisher, take
from streams.runtime.faust.restore import read_past
from streams.runtime.log_time import LogClock
from streams.runtime.operator import NEVER_NS, Operator, Output, Owner, Stage
from streams.runtime.steps import Epoch, key_of
from streams.runtime.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

IDLE_S: Final = 0.1
"""Longest wait of a stage, s."""
MIN_WAIT_S: Final = 0.001
STEPS_S: Final = 0.5
"""Interval between two records of steps, s."""
RELEASE_S: Final = 0.25
"""Interval between two checks of acknowledgements, s; commits are a second apart."""
MAX_PENDING: Final = 1_000
"""Number of unacknowledged outputs from which on a partition waits for the log."""
LATE_NS: Final = 100 * NS_PER_MS
"""Time since its last advance after which a due partition without messages no longer waits for others."""
WARN_S: Final = 10.0


class OperatorStage(Ownership):
    """Runs the operators of one stage; as a `Receiver`, it takes messages from the app's consumer."""

    def __init__(self, context: WorkerContext, stage: Stage) -> None:
        super().__init__(context, stage)
        self._publisher = Publisher(context, stage, stage.owner)
        self._partitions: dict[TP, Partition] = {}
        self._early: dict[TP, list[ConsumerRecord]] = {}
        """Messages that came before their partition's operator was restored."""
        self._queued = 0
        self._arrived = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, stage.name)
        self._warned_s = -WARN_S
        self._released_s = self._published_s = 0.0
        self._was_useful = False
        """Whether the last advances took a message or made an output."""

    # ------------------------------------------------------------------------------------------ receiver

    @property
    def has_capacity(self) -> bool:
        """Whether fewer messages wait than the stage's buffer limit."""
        return self._queued < self.context.settings.buffer_messages

    def receive(self, tp: TP, records: Sequence[ConsumerRecord]) -> bool:
        """Queue messages of a partition; return whether the partition is assigned here."""
        if tp not in self.generation.tps or self.generation.revoking:
            return False
        partition = self._partitions.get(tp)
        if partition is None:
            self._early.setdefault(tp, []).extend(records)
        else:
            self._queue(partition, records)
        self._queued += len(records)
        self.received += len(records)
        self._arrived.set()
        return True

    def commit_position(self, tp: TP) -> int | None:
        """Return the offset from which a new owner must read the partition; None to commit nothing."""
        partition = self._partitions.get(tp)
        return None if partition is None or self.generation.revoking else partition.commit

    def register(self) -> None:
        """Make the app deliver the partitions' messages to this stage."""
        read_batches(self.context.app, self.topic.name, self)

    @property
    def operators(self) -> list[Operator]:
        """The operators of the assigned partitions; none once the partitions are being revoked."""
        return [partition.operator for partition in self._active]

    @property
    def skipped(self) -> int:
        """Number of messages of this generation that were skipped because they arrived too late."""
        return sum(partition.skipped for partition in self._partitions.values())

    @property
    def positions(self) -> dict[TP, int]:
        """Maps each partition from which messages were taken to one past its last taken offset."""
        return {each.tp: each.next_offset for each in self._active if each.next_offset is not None}

    @property
    def _active(self) -> list[Partition]:
        return [] if self.generation.revoking else list(self._partitions.values())

    def assign(self, partitions: Iterable[TP]) -> None:
        """Start a generation with exactly these partitions."""
        super().assign(partitions)
        self._drop()

    def _drop(self) -> None:
        for partition in self._partitions.values():
            self._report(partition, "")
            partition.operator.close(self.context.tables)
            self.context.tables.forget_moves(partition.moves)
        self._partitions, self._early, self._queued = {}, {}, 0

    def _queue(self, partition: Partition, records: Iterable[ConsumerRecord]) -> None:
        """Queue the messages that no earlier owner has finished, with their log times."""
        monotonic_ns = time.monotonic_ns()
        for record in records:
            if partition.next_offset is not None and record.offset < partition.next_offset:
                self._queued -= 1
                continue
            message = self._message(partition, record)
            if message.append_ns == NO_APPEND_TIME_NS:
                partition.queue.append(message)
            else:
                partition.add(message, monotonic_ns)

    def _message(self, partition: Partition, record: ConsumerRecord) -> Message:
        """Return the record as a message. If it has no log append time, only its position counts."""
        append_ns = NO_APPEND_TIME_NS
        refused: BadRecord | None = None
        try:
            append_ns = append_ns_of(record.topic, record.timestamp_type, record.timestamp)
        except ValueError as error:
            refused = BadRecord("OUT_OF_RANGE", str(error))
        message = Message(append_ns, record.topic, record.partition, record.offset, record.key, record.value)
        if refused is not None:
            rejected = self._publisher.reject(message, refused)
            partition.sent.append(Sent(partition.sent_position, [rejected]))
        return message

    # ------------------------------------------------------------------------------------------ generation

    async def _serve(self, generation: Generation) -> None:
        """Restore the operators of a generation, then advance them until the generation ends."""
        await self._restore(generation)
        generation.recovered.set()
        numbers = ", ".join(str(tp.partition) for tp in generation.tps)
        log.info("%s: restored partitions %s", self.stage, numbers)
        self._released_s = self._published_s = time.monotonic()
        while True:
            await self._wait()
            await _completed(self._advance_due())

    async def _advance_due(self) -> None:
        """Advance the operators that are due. A revocation waits until the advances have ended."""
        self._was_useful = False
        for partition in self._next_partitions():
            if partition in self._active:
                await self._advance(partition)
        now_s = time.monotonic()
        if now_s - self._released_s >= RELEASE_S:
            self._released_s = now_s
            self._release()
        is_full = any(partition.steps.is_full for partition in self._partitions.values())
        if now_s - self._published_s >= STEPS_S or is_full:
            self._published_s = now_s
            await self._publish_steps()

    def _next_partitions(self) -> list[Partition]:
        """Return the partitions to advance: those with messages or long not advanced, else one that is due.

        The least recently advanced partition comes first. Partitions with messages have precedence: a
        partition's slow work must not delay the evidence of the others.
        """
        due = [partition for partition in self._partitions.values() if partition.is_due]
        due.sort(key=lambda partition: partition.advanced_ns)
        late_ns = time.monotonic_ns() - LATE_NS
        return [each for each in due if each.queue or each.advanced_ns < late_ns] or due[:1]

    async def _restore(self, generation: Generation) -> None:
        context, stage = self.context, self.definition
        committed = {tp: await context.committed(tp) for tp in generation.tps}
        count = await partition_count(context.settings.kafka, stage.owner.name)
        now_ns = time.monotonic_ns()
        log_ns = context.log_clock.now_ns(now_ns)
        restores = stage.restores(context.tables, count)
        past, ends = await read_past(context.settings.kafka, restores, log_ns)
        steady_clock = LogClock(log_ns, now_ns)
        began_ms = context.log_clock.now_ns(now_ns) // NS_PER_MS
        owner = Owner(
            began_ms,
            frozenset(tp.partition for tp in generation.tps),
            count,
            context.settings,
            context.registry,
            {tp.partition: offset for tp, offset in committed.items() if offset is not None},
        )
        partitions = {}
        for tp in generation.tps:
            operator = stage.make(owner, tp.partition, context.tables)
            operator.restore(past, context.tables)
            epoch = Epoch(
                stage.name,
                tp.partition,
                began_ms,
                committed[tp],
                ends,
                settings_digest(context.settings),
                context.topology_digest,
                build_digest(),
            )
            partitions[tp] = Partition(context, stage, tp, operator, epoch, steady_clock, now_ns)
        self._partitions = partitions
        for tp, records in self._early.items():
            self._queue(partitions[tp], records)
        self._early = {}
        self._arrived.set()

    async def _wait(self) -> None:
        """Wait until messages arrive or an operator is due."""
        self._arrived.clear()
        if any(partition.is_due for partition in self._partitions.values()):
            await asyncio.sleep(0 if self._was_useful else MIN_WAIT_S)
            return
        now_ns = time.monotonic_ns()
        due_s = IDLE_S
        for partition in self._partitions.values():
            due_ns = partition.operator.due_ns()
            if due_ns < NEVER_NS and partition.is_caught_up:
                due_s = min(due_s, (due_ns - partition.log_ns(now_ns)) / NS_PER_S)
        try:
            async with asyncio.timeout(max(MIN_WAIT_S, due_s)):
                await self._arrived.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------------------------------ advance

    async def _advance(self, partition: Partition) -> None:
        """Pass queued messages to the operator, advance it, and publish its outputs."""
        futures = partition.unacknowledged
        if len(futures) > MAX_PENDING:
            await asyncio.wait(futures)
            self._release()
            if partition not in self._active:
                return
        monotonic_ns = partition.advanced_ns = time.monotonic_ns()
        queued, skipped = len(partition.queue), partition.skipped
        # Work that is due at once comes first, so that no backlog grows while messages arrive.
        is_busy = partition.operator.due_ns() == 0
        messages = [] if is_busy else list(partition.next_messages(monotonic_ns))
        self._queued -= queued - len(partition.queue)
        self.left_out += partition.skipped - skipped
        if partition.skipped != skipped:
            self._warn("%s: behind the log, %d messages skipped so far", partition.skipped)
        moment = partition.note_step(monotonic_ns)
        operator, tables = partition.operator, self.context.tables
        operator.moment, operator.end_offset = moment, self.context.highwater(partition.tp)
        began_ns = time.monotonic_ns()
        outputs: Sequence[Output] = ()
        is_due = True
        with self._publisher.survive(key_of(self.stage, partition.tp.partition)):
            if not messages or take(operator, messages, tables):  # otherwise a replay does not advance either
                is_due = operator.due_ns() <= moment.log_ns
                result = operator.advance(moment, tables)
                if callable(result):
                    work = result
                    outputs = await asyncio.get_running_loop().run_in_executor(
                        self._pool, lambda: self._publisher.encoded(operator, work())
                    )
                else:
                    outputs = self._publisher.encoded(operator, result)
        self._pass_on(partition, messages)
        if not is_due and not outputs:
            partition.steps.note_idle()
        if outputs and operator.adapts:
            operator.keep_up(time.monotonic_ns() - began_ns, partition.waited_ns)
        self._was_useful = self._was_useful or bool(messages or outputs)
        self._report(partition, operator.status())
        futures = []
        async with self.lock:
            await self._publisher.publish(operator, outputs, futures, lambda: self._may_send(partition))
        needed_from, next_offset = operator.needed_from(), partition.next_offset
        position = partition.commit if next_offset is None else min(needed_from, next_offset)
        partition.sent.append(Sent(position, futures))
        await asyncio.sleep(0)

    def _report(self, partition: Partition, status: str) -> None:
        """Report a change of an operator's status to the service manager and to the service's log."""
        if status == partition.status:
            return
        partition.status = status
        key = key_of(self.stage, partition.tp.partition)
        self.context.note(key, status)
        log.warning("%s: %s", key, status or "well again")

    def _pass_on(self, partition: Partition, messages: Iterable[Message]) -> None:
        """Pass decoded messages to the stage of this worker that also reads this topic."""
        tap, end = self.context.taps.get(self.topic.name), partition.next_offset
        if tap is None or end is None:
            return
        rejected_offsets = {message.offset for message, _ in partition.operator.rejected}
        usable = (
            each for each in messages if each.record is not None and each.offset not in rejected_offsets
        )
        with self._publisher.survive("tap"):
            tap(usable, (self.topic.name, partition.tp.partition), end)

    def _warn(self, text: str, messages: int) -> None:
        """Log a warning, at most once in `WARN_S`."""
        now_s = time.monotonic()
        if now_s - self._warned_s > WARN_S:
            self._warned_s = now_s
            log.warning(text, self.stage, messages)

    def _may_send(self, partition: Partition) -> bool:
        """Return whether no other worker can own the partition yet, so that outputs may be sent."""
        return not self.generation.revoked and self._partitions.get(partition.tp) is partition

    def _release(self) -> None:
        """Allow the positions of acknowledged advances to be committed. Raises the error of a failed send."""
        for partition in self._partitions.values():
            partition.release()

    async def _publish_steps(self) -> None:
        async with self.lock:
            if not self.generation.revoked:
                for sending in await self._send_steps():
                    self.context.task("steps", _acknowledged(sending))

    async def _send_steps(self) -> list[Awaitable[Any]]:
        """Send the steps that are not yet published; return awaitables for their acknowledgements."""
        acknowledgements = []
        for partition in self._partitions.values():
            record = partition.steps.record()
            if record is not None:
                key = key_of(self.stage, partition.tp.partition)
                acknowledgements.append(await self.context.send(STEPS, key, record))
        return acknowledgements

    async def _flush_all(self) -> None:
        """Publish the last steps, and wait until the log has acknowledged all outputs."""
        futures: Acknowledgements = [asyncio.ensure_future(sending) for sending in await self._send_steps()]
        futures += [future for each in self._partitions.values() for future in each.unacknowledged]
        if futures:
            await asyncio.wait(futures)


async def _completed(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, even if this task is cancelled meanwhile."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.result()
        raise


async def _acknowledged(sent: Awaitable[Any]) -> None:
    await sent

"""Runs a stage whose operator reads its inputs without a consumer group, for all partitions of an owner.

Faust's group decides which worker owns the partitions. A new owner restores the published records. It reads
each input from the start that the stage declares to its end, and then follows the log. A timed stage is
advanced to `INPUT_DELAY_NS` behind the log's clock, once it has read up to the log's end at that time. Other
stages are advanced when they are due. An advance is over when the log has acknowledged its outputs: the next
owner continues from the records in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas.kafka.async_reader import AsyncTopicReader, partition_count
from schemas.kafka.message import Message, Place
from schemas.topics import Topic
from streams.runtime.faust.compat import read_batches, set_read_ahead
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.input_lateness import InputLateness
from streams.runtime.faust.needed_reader import NeededReader
from streams.runtime.faust.ownership import Generation, Ownership
from streams.runtime.faust.publishing import Acknowledgements, Publisher, take
from streams.runtime.faust.restore import read_past
from streams.runtime.log_time import LogTime
from streams.runtime.operator import NEVER_NS, Moment, Operator, Order, Output, Owner, Past, Stage, Work
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Interval between two advances of a timed stage without a new message, s; short against `INPUT_DELAY_NS`."""
IDLE_POLL_S: Final = 0.5
"""Interval between two advances of a timed stage that waits for its first message, s."""
MAX_POLL_MESSAGES: Final = 500
"""Largest number of messages processed before control returns to the event loop, which other stages share."""
CATCH_UP_S: Final = 0.1
"""Interval at which the stage checks whether the past has been read, s."""
FAILED_S: Final = 0.1
"""Pause after an evaluation that failed, s: it may be due again at once."""
LATE_S: Final = 5.0
"""Longest time for which a timed stage waits for messages that the log holds, or for the next that another
stage passes on, s: a broker may be down."""
READ_AHEAD_S: Final = 0.001
"""Pause of aiokafka's fetcher between two fetches for a stage that takes its inputs at once, s."""


class GrouplessStage(Ownership):
    """Runs one stage that reads its inputs without a group, over all generations of its partitions."""

    def __init__(self, context: WorkerContext, stage: Stage) -> None:
        super().__init__(context, stage)
        self._owner: _Owner | None = None
        self._sent: Acknowledgements = []
        """The acknowledgements of the last advance's outputs."""
        for each in stage.inputs:
            if each.is_tapped:
                context.taps[each.topic.name] = self._tap

    def register(self) -> None:
        """Make the owner topic part of the consumer group, unless another stage reads it; fetch nothing."""
        if self.topic in self.definition.outputs:
            read_batches(self.context.app, self.topic.name, None)

    async def _serve(self, generation: Generation) -> None:
        self._owner = owner = _Owner(self.context, self.definition, generation, self._sent, self._count)
        await owner.run()

    def _count(self, messages: int) -> None:
        self.received += messages

    def _tap(self, messages: Iterable[Message], place: Place, end: int) -> None:
        """Pass messages that another stage has read and decoded, up to offset `end`, to the present owner."""
        if self._owner is not None:
            self._owner.tap(messages, place, end)

    async def _flush_all(self) -> None:
        """Wait until the log has acknowledged all outputs."""
        if self._sent:
            await asyncio.wait(self._sent)


class _Owner:
    """The operator of a stage and its input readers, from an assignment of partitions to its revocation."""

    def __init__(
        self,
        context: WorkerContext,
        stage: Stage,
        generation: Generation,
        sent: Acknowledgements,
        count: Callable[[int], None],
    ) -> None:
        """Prepare an owner. `sent`: list to which acknowledgements of outputs are added.

        A revocation waits for the acknowledgements. `count` is called with the number of messages taken.
        """
        self._count = count
        self._context, self._stage, self._generation, self._sent = context, stage, generation, sent
        self._tables = context.tables
        self._publisher = Publisher(context, stage, stage.outputs[-1])
        self._is_timed = stage.order is Order.TIMED
        self._operator: Operator
        self._reader: AsyncTopicReader
        self._needed: NeededReader
        self._times: LogTime | None = None
        """The steady times of the log's clock and of partitions; set at the end of recovery."""
        self._log_ns, self._advanced_ns = 0, time.monotonic_ns()
        """Log time of the last advance, and the monotonic time at which it was made."""
        self._tap_from: dict[Place, int] = {}
        """Maps tapped partition to the offset from which another stage passes on its messages."""
        self._tapped: dict[Place, int] = {}
        """Maps tapped partition to the offset up to which its messages were passed on."""
        self._has_tapped = asyncio.Event()
        """Set when messages were passed on."""
        self._read_to_ns = 0
        """Steady log time before which all messages have been read."""
        self._lateness = InputLateness(time.monotonic_ns())
        self._early: list[Message] | None = []
        """Messages passed on by another stage while reading the past or slow work; None at other times."""
        self._late = 0

    async def run(self) -> None:
        """Restore published records, then follow the inputs until the generation ends."""
        cluster = self._context.settings.kafka
        count = await partition_count(cluster, self._stage.owner.name)
        past, epoch = await self._past(self._log_now_ns(), count)
        async with AsyncTopicReader(cluster) as self._reader:
            await self._begin(count, past, epoch)
            try:
                await self._read_past()
                self._follow_tap()
                self._finish_recovery()
                while True:
                    await self._read_and_advance()
            finally:
                await self._needed.stop()

    # ------------------------------------------------------------------------------------------ recovery

    async def _begin(self, count: int, past: Past, epoch: int) -> None:
        """Create the operator from published records and start readers. `count`: owner topic's partitions."""
        stage, context = self._stage, self._context
        if stage.order is Order.AS_READ:
            set_read_ahead(self._reader.consumer, READ_AHEAD_S)
        begin_ns = epoch * NS_PER_MS
        numbers = frozenset(tp.partition for tp in self._generation.tps)
        inputs = [each for each in stage.inputs if each.is_needed is None]
        starts = {each.topic: each.start(begin_ns, self._tables) for each in inputs if each.start}
        only: dict[Topic, Iterable[int]] = {each.topic: numbers for each in inputs if each.is_owned}
        await self._reader.assign(starts, only)
        places = tuple(sorted(self._reader.ends))
        owner = Owner(epoch, numbers, count, context.settings, context.registry, places=places)
        self._operator = stage.make(owner, -1, self._tables)
        self._operator.restore(past, self._tables)
        self._needed = NeededReader(context.settings.kafka, stage, self._operator, self._tables, begin_ns)
        tapped = {each.topic.name for each in inputs if each.is_tapped}
        self._tap_from = {place: end for place, end in self._reader.ends.items() if place[0] in tapped}
        self._tapped |= {place: max(end, self._tapped.get(place, 0)) for place, end in self._tap_from.items()}
        log.info("%s: epoch %d", stage.name, epoch)

    async def _past(self, log_ns: int, count: int) -> tuple[Past, int]:
        """Return the records that the stage restores, and the owner's epoch."""
        restores = self._stage.restores(self._tables, count)
        past, _ = await read_past(self._context.settings.kafka, restores, log_ns)
        return past, self._stage.epoch(log_ns, past, self._context.registry)

    async def _read_past(self) -> None:
        """Read the inputs to the end offsets that they had when the partitions were assigned."""
        begin_ns = self._log_now_ns()
        read_ns = dict.fromkeys(self._reader.missing, 0)
        while self._reader.missing:
            for message in await self._read(CATCH_UP_S):
                read_ns[message.place] = message.append_ns
            await self._reader.caught_up()
            if self._is_timed and not self._stage.reads_to_ends:
                # Process what all partitions have been read up to, to free memory: topics may be large.
                mark_ns = min((read_ns[place] for place in self._reader.missing), default=0)
                await self._advance_to(min(mark_ns - 1, begin_ns - INPUT_DELAY_NS))

    def _follow_tap(self) -> None:
        """Stop reading the inputs that another stage of this worker reads, decodes and passes on."""
        self._reader.pause(self._tap_from)
        self._take_early()

    def _take_early(self) -> None:
        early, self._early = self._early or [], None
        self._take_tapped(early)

    def _finish_recovery(self) -> None:
        """Report that the stage has recovered, before its first advance.

        The stage that passes on messages continues only after this report.
        """
        now_ns = time.monotonic_ns()
        self._lateness = InputLateness(now_ns)
        times = self._times = LogTime(self._log_now_ns(), now_ns)
        self._operator.offset_of = lambda offset_ns: times.offset_ns(offset_ns, time.monotonic_ns())
        self._generation.recovered.set()

    # ------------------------------------------------------------------------------------------ reading

    async def _read_and_advance(self) -> None:
        """Read the new messages, and advance if the stage is due."""
        needed = self._needed
        await needed.update(self._log_now_ns())
        messages = await needed.poll()
        self._take(messages, is_old=bool(self._operator.behind))
        await self._read(0.0 if len(messages) >= needed.MAX_POLL else self._wait_s())
        reached_ns = self._reached_ns()
        if self._operator.due_ns() <= reached_ns:
            if self._stage.reads_to_ends:
                await self._read_to_ends()  # a later moment would pass unread messages
            elif self._is_timed:
                await self._read_due(reached_ns)
            await self._advance_to(reached_ns)

    async def _read(self, wait_s: float) -> list[Message]:
        """Take the messages that arrive within `wait_s`; return them."""
        messages = await self._reader.poll(wait_s, MAX_POLL_MESSAGES if self._is_timed else None)
        if self._tap_from:
            messages = [each for each in messages if each.offset < self._tap_from.get(each.place, NEVER_NS)]
        self._take(messages)
        return messages

    async def _read_to_ends(self) -> None:
        """Read to the end of the log: a slow reader must not advance past messages that it has not read."""
        needed = self._needed
        if not needed.is_needed:
            return
        await needed.update(self._log_now_ns())
        await self._read_to_end(self._reader)
        if needed.reader is not None:
            await self._read_to_end(needed.reader, is_old=bool(self._operator.behind))
        await needed.update(self._log_now_ns())

    async def _read_to_end(self, reader: AsyncTopicReader, *, is_old: bool = False) -> dict[Place, int]:
        """Read to the present end of the log; return the end offsets of partitions read by another stage."""
        ends = await reader.consumer.end_offsets(reader.consumer.assignment())
        tapped = {place: ends.pop(TopicPartition(*place), 0) for place in self._tap_from}
        while not await reader.has_reached(ends):
            self._take(await reader.poll(CATCH_UP_S, MAX_POLL_MESSAGES), is_old=is_old)
        return tapped

    async def _read_due(self, reached_ns: int) -> None:
        """Read to the present end of the log if messages from before `reached_ns` may still be unread."""
        if not self._lateness.is_possible(time.monotonic_ns()) or reached_ns <= self._read_to_ns:
            return
        now_ns = self._reached_ns() + INPUT_DELAY_NS
        late: Iterable[Place] = ()
        try:
            async with asyncio.timeout(LATE_S):
                tapped = await self._read_to_end(self._reader)
                if self._needed.reader is not None and not self._operator.behind:
                    await self._read_to_end(self._needed.reader)
            while late := [place for place, end in tapped.items() if self._tapped.get(place, end) < end]:
                self._has_tapped.clear()
                async with asyncio.timeout(LATE_S):
                    await self._has_tapped.wait()
        except (TimeoutError, KafkaError) as error:
            topics = ", ".join(sorted({topic for topic, _ in late})) or "its inputs"
            log.warning("%s: %s: not read to the end in %g s: %r", self._stage.name, topics, LATE_S, error)
            self._tapped.clear()
        self._read_to_ns = now_ns
        self._lateness.note_question(time.monotonic_ns())

    def _take(self, messages: Sequence[Message], *, is_old: bool = False) -> None:
        """Pass messages to the operator at their log times. `is_old`: maybe far behind the log's clock."""
        monotonic_ns, log_clock = time.monotonic_ns(), self._context.log_clock
        for message in messages:
            if not is_old:
                log_clock.observe(message.append_ns, monotonic_ns, message.place, message.offset)
            self._set_log_time(message, monotonic_ns, is_old)
        if messages:
            self._count(len(messages))
            take(self._operator, messages, self._tables)

    def _set_log_time(self, message: Message, monotonic_ns: int, is_old: bool = False) -> None:
        if self._times is None or not self._is_timed:
            return
        self._lateness.note_message(self._log_now_ns() - message.append_ns, monotonic_ns)
        if is_old:
            message.log_ns = self._times.shifted_ns(message.append_ns)
        else:
            now_ns = self._times.now_ns(self._log_now_ns(), monotonic_ns)
            message.log_ns = self._times.of(message.place, message.append_ns, now_ns, monotonic_ns)

    def tap(self, messages: Iterable[Message], place: Place, end: int) -> None:
        """Take the messages of a partition that another stage has read and decoded, up to offset `end`."""
        if self._early is not None:
            self._early += messages
        else:
            self._take_tapped(messages)
        self._tapped[place] = end
        self._has_tapped.set()

    def _take_tapped(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.offset >= self._tap_from.get(message.place, message.offset):
                place, key = message.place, message.key_bytes
                own = Message(message.append_ns, *place, message.offset, key, message.value, message.record)
                self._set_log_time(own, time.monotonic_ns())
                take(self._operator, [own], self._tables)

    # ------------------------------------------------------------------------------------------ advancing

    def _wait_s(self) -> float:
        """Return how long the next poll may wait for messages, s."""
        if not self._is_timed:
            return max(0.0, (self._operator.due_ns() - self._reached_ns()) / NS_PER_S)
        is_idle = self._operator.due_ns() == NEVER_NS and not self._tap_from
        return IDLE_POLL_S if is_idle else POLL_S

    def _reached_ns(self) -> int:
        """Return the log time up to which the operator may be advanced now."""
        monotonic_ns = time.monotonic_ns()
        if self._times is not None and self._is_timed:
            return self._times.now_ns(self._log_now_ns(), monotonic_ns) - INPUT_DELAY_NS
        return self._log_ns + monotonic_ns - self._advanced_ns

    async def _advance_to(self, log_ns: int) -> None:
        """Advance step by step, so that other stages run in between, and publish the outputs."""
        while (due_ns := self._operator.due_ns()) <= log_ns:
            moment = self._moment(due_ns or log_ns)
            outputs = await self._evaluate(moment)
            await self._publish(outputs or ())
            if outputs is None:
                await asyncio.sleep(FAILED_S)
                break
            if not due_ns or not self._is_timed:  # the present may be before `log_ns`: the log's clock steps
                break
            await asyncio.sleep(0)

    async def _evaluate(self, moment: Moment) -> Sequence[Output] | None:
        """Advance the operator to a moment; return its outputs, or None if the evaluation failed."""
        result: Sequence[Output] | Work | None = None
        with self._publisher.survive(self._stage.name):
            result = self._operator.advance(moment, self._tables)
        return await self._done(result) if callable(result) else result

    async def _done(self, work: Work) -> Sequence[Output] | None:
        """Run an operator's slow work in a thread, and return its outputs; new messages wait meanwhile."""
        is_open, self._early = self._early is None, self._early or []
        outputs: Sequence[Output] | None = None
        with self._publisher.survive(self._stage.name):
            outputs = await asyncio.to_thread(work)
        if is_open:
            self._take_early()
        return outputs

    def _moment(self, log_ns: int) -> Moment:
        """Return the moment of an advance to `log_ns`; a stage that is not timed gets the present time."""
        offset_ns, times = self._tables.clocks.log_offset_ns, self._times
        if self._is_timed or times is None:
            shift_ns = 0 if times is None else times.shifted_ns(0)
            return Moment(log_ns, offset_ns - shift_ns)
        self._log_ns, self._advanced_ns = self._log_now_ns(), time.monotonic_ns()
        fabric_ns = times.fabric_ns(self._log_ns, offset_ns, self._advanced_ns)
        return Moment(self._log_ns, fabric_ns - self._log_ns)

    async def _publish(self, outputs: Sequence[Output]) -> None:
        """Publish outputs and rejects, and wait for their acknowledgements. Raises a failed send's error."""
        operator = self._operator
        self._sent.clear()
        await self._publisher.publish(operator, outputs, self._sent)
        if self._sent:
            done, _ = await asyncio.wait(self._sent, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        if operator.late > self._late:
            text = "%s: %d messages came more than %d ms after their append time: a replay may differ"
            log.warning(text, self._stage.name, operator.late - self._late, INPUT_DELAY_NS // NS_PER_MS)
            self._late = operator.late

    def _log_now_ns(self) -> int:
        return self._context.log_clock.now_ns(time.monotonic_ns())

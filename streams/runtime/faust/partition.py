"""One partition of a worker's stage in one generation: its messages, log time, steps and positions."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from faust.types import TP

from schemas.kafka.message import Message, Place
from schemas.log_time import STEP_NS
from schemas.records import StepChoiceKind
from streams.runtime.faust.context import WorkerContext
from streams.runtime.log_time import LogClock, SteadyTime
from streams.runtime.operator import NEVER_NS, Moment, Operator, Stage
from streams.runtime.steps import Epoch, StepLog
from streams.runtime.units import NS_PER_MS, NS_PER_S

MAX_MESSAGES: Final = 256
MAX_BYTES: Final = 128 * 1024
"""Largest size of an advance's messages, bytes: some milliseconds of work, so that other stages run."""
MAX_MOVES: Final = 1_000
"""Largest number of moves of the tables that a step without a message notes."""
NO_APPEND_TIME_NS: Final = 0
"""Append time given to a message whose time the log did not set; operators do not take such a message."""
QUIET_NS: Final = NS_PER_S
"""Time without a message after which the worker's estimate of the log's clock counts. The partition's last
message may be older than a step of that clock."""


@dataclass(slots=True)
class Sent:
    """Outputs of an advance, and the position that may be committed once the outputs are acknowledged."""

    position: int | None
    futures: list[asyncio.Future[Any]]


def waited_ns(age_ns: int, offset: int, highwater: int | None) -> int:
    """Return for how long a message and later ones have waited, ns; 0 for the newest of the partition.

    The newest message counts as 0, so that a partition leader whose clock is behind does not seem late.
    `highwater` is the offset after the partition's last message; None if it is unknown.
    """
    is_newest = highwater is not None and offset >= highwater - 1
    return 0 if is_newest else max(0, age_ns)


class Partition:
    """One partition during one generation: its operator, queued messages, log time and positions."""

    def __init__(
        self,
        context: WorkerContext,
        stage: Stage,
        tp: TP,
        operator: Operator,
        epoch: Epoch,
        steady_clock: LogClock,
        monotonic_ns: int,
    ) -> None:
        """Begin with an empty queue. `steady_clock`: the log's clock without steps, shared by partitions."""
        self.tp, self.operator = tp, operator
        self.queue: deque[Message] = deque()
        self.steps = StepLog(epoch, (tp.topic, tp.partition))
        topics = {topic.name for topic in stage.tables}
        positions = context.tables.positions.items()
        self.steps.start((place, position) for place, position in positions if place[0] in topics)
        self.moves = context.tables.moves(topics)
        """Moves of the tables that the stage looks up, since the last step."""
        self.next_offset = epoch.committed
        """One past the operator's last message; None if the group has not committed an offset yet."""
        self.commit = epoch.committed
        """The position to commit."""
        self.sent: deque[Sent] = deque()
        self.advanced_ns = 0
        """Monotonic time of the last advance."""
        self.status = ""
        """The operator's status as it was last reported."""
        self.skipped = 0
        """Number of messages that arrived too late."""
        self.waited_ns = 0
        """Time that the newest message has waited, ns; 0 if no other message is behind it."""
        self._context, self._stage = context, stage
        self._steady_clock, self._steady = steady_clock, SteadyTime()
        self._past_ns = epoch.epoch * NS_PER_MS
        """Log time before which messages are of the past; 0 after the first message of the present."""
        self._received_ns = monotonic_ns - QUIET_NS
        """Monotonic time of the newest message."""
        self._received_append_ns = 0
        """Append time of the newest message."""
        self._newest_ns = 0
        """Log time of the newest message that was taken."""
        self._moment_ns = 0
        """Log time of the last advance."""
        self._offset_ns: int | None = None
        """Fabric time minus log time, ns, once it has differed from that of the clock table; None before."""
        self._corrections: deque[tuple[int, int]] = deque()
        """Changes of the correction (log minus append time) that no message has used: first offset, ns."""
        self._level = ""
        self._topology = context.topology

    # ------------------------------------------------------------------------------------------ time

    def add(self, message: Message, monotonic_ns: int) -> None:
        """Queue a message, and determine its log time."""
        place, offset = message.place, message.offset
        self._context.log_clock.observe(message.append_ns, monotonic_ns, place, offset)
        if not self._stage.uses_append_time:
            correction_ns = self._steady.correction_ns
            is_past = message.append_ns < self._past_ns
            if not is_past:
                self._past_ns = 0
            message.log_ns = self._steady.of(message.append_ns, monotonic_ns, is_past=is_past)
            if self._steady.correction_ns != correction_ns:
                self._corrections.append((offset, self._steady.correction_ns))
            self._steady_clock.observe(message.log_ns, monotonic_ns, place, offset)
        self.queue.append(message)
        self._received_ns, self._received_append_ns = monotonic_ns, message.append_ns

    def log_ns(self, monotonic_ns: int) -> int:
        """Return the present log time, ns.

        Partition leaders may have different clocks, and an estimate follows a clock's step late. So append
        time continues from the partition's newest message.
        """
        if not self._stage.uses_append_time:
            return self._steady_clock.now_ns(monotonic_ns)
        quiet_ns = monotonic_ns - self._received_ns
        if quiet_ns >= QUIET_NS:
            return self._context.log_clock.now_ns(monotonic_ns)
        return self._received_append_ns + quiet_ns

    @property
    def is_caught_up(self) -> bool:
        """Whether the operator has taken all messages of its partition that the consumer knows of."""
        if self.queue:
            return False
        highwater = self._context.highwater(self.tp)
        if highwater is None:
            return False
        if self.next_offset is not None:
            return self.next_offset >= highwater
        return highwater == 0 or self._context.position(self.tp) == highwater

    @property
    def is_due(self) -> bool:
        """Whether the operator should advance now."""
        if self.queue or len(self.moves) > MAX_MOVES:
            return True
        due_ns, now_ns = self.operator.due_ns(), self.log_ns(time.monotonic_ns())
        if due_ns > now_ns and not self._steps_back(now_ns, self._moment_ns):
            return False
        return due_ns == 0 or self.is_caught_up

    def _steps_back(self, now_ns: int, before_ns: int) -> bool:
        """Return whether the log's clock stepped back and the stage follows such steps."""
        return self._stage.uses_append_time and now_ns < before_ns - STEP_NS

    # ------------------------------------------------------------------------------------------ steps

    def next_messages(self, monotonic_ns: int) -> Iterator[Message]:
        """Yield messages from the queue, but skip messages that are too old while newer ones wait.

        All messages of a step have the same correction of log time.
        """
        size_bytes, is_begun = 0, False
        for _ in range(min(len(self.queue), MAX_MESSAGES)):
            message = self.queue[0]
            if self._corrections and message.offset >= self._corrections[0][0]:
                if is_begun:
                    return
                correction_ns = self._corrections.popleft()[1]
                self.steps.choose(StepChoiceKind.CORRECTION, message.place, correction_ns)
            is_begun = True
            self.queue.popleft()
            self.next_offset = message.offset + 1
            if message.append_ns == NO_APPEND_TIME_NS:
                continue
            self._newest_ns = message.log_ns
            if self._is_too_old(message, monotonic_ns):
                self.skipped += 1
                self.steps.choose(StepChoiceKind.SKIPPED, message.place, message.offset)
                continue
            yield message
            size_bytes += len(message.value or b"")
            if size_bytes >= MAX_BYTES:
                return

    def _is_too_old(self, message: Message, monotonic_ns: int) -> bool:
        limit_ns = self._stage.inputs[0].skip_after_ns
        if limit_ns == NEVER_NS:
            return False
        age_ns = self._context.log_clock.now_ns(monotonic_ns) - message.append_ns
        self.waited_ns = waited_ns(age_ns, message.offset, self._context.highwater(self.tp))
        return self.waited_ns > limit_ns

    def note_step(self, monotonic_ns: int) -> Moment:
        """Record a step and everything on which its output depends; return the moment of the advance."""
        log_ns, steps = self._newest_ns, self.steps
        if self.is_caught_up:
            now_ns = self.log_ns(monotonic_ns)
            log_ns = now_ns if self._steps_back(now_ns, log_ns) else max(log_ns, now_ns)
        self._moment_ns = log_ns
        offset_ns = self._note_offset(monotonic_ns)
        if self.operator.level() != self._level:
            self._level = self.operator.level()
            steps.choose(StepChoiceKind.LEVEL, text=self._level)
        if self._context.topology is not self._topology:
            self._topology = self._context.topology
            steps.choose(StepChoiceKind.TOPOLOGY, text=self._context.topology_digest)
        positions: list[tuple[Place, int]] = []
        if self.next_offset is not None:
            positions.append(((self.tp.topic, self.tp.partition), self.next_offset))
        positions += self.moves
        self.moves.clear()
        return Moment(steps.note(log_ns, positions), offset_ns)

    def _note_offset(self, monotonic_ns: int) -> int:
        """Return fabric time minus log time, ns; add it to the step if it differs from the clock table's."""
        offset_ns = of_table_ns = self._context.tables.clocks.log_offset_ns
        if not self._stage.uses_append_time:
            offset_ns = self._steady.offset_ns(of_table_ns, monotonic_ns)
        is_own = offset_ns != of_table_ns or self._offset_ns is not None
        if is_own and offset_ns != self._offset_ns:
            self._offset_ns = offset_ns
            self.steps.choose(StepChoiceKind.OFFSET, value=offset_ns)
        return offset_ns

    # ------------------------------------------------------------------------------------------ positions

    @property
    def unacknowledged(self) -> list[asyncio.Future[Any]]:
        """The outputs that were not yet acknowledged at the last `release`."""
        return [future for sent in self.sent for future in sent.futures]

    @property
    def sent_position(self) -> int | None:
        """The position to commit once all outputs are acknowledged."""
        return self.sent[-1].position if self.sent else self.commit

    def release(self) -> None:
        """Allow the positions of acknowledged advances to be committed. Raises the error of a failed send."""
        while self.sent and all(future.done() for future in self.sent[0].futures):
            sent = self.sent.popleft()
            for future in sent.futures:
                future.result()
            self.commit = sent.position

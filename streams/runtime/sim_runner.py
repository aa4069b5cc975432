"""Runs stages in one process over a simulated log: no Kafka, no threads, no clock but the log's.

The log's time passes from one event to the next: a message is appended, or an operator is due. So the result
does not depend on the number of calls in which time passes. All messages of one moment are taken together,
like the messages that a worker reads in one batch. Then the operators advance in the order of their stages
and partitions: as-read operators after each take, all others when they are due.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from schemas import codec
from schemas.kafka import partition_of
from schemas.kafka.message import Message, Place
from schemas.topics import TOPICS, Partitions, Topic
from schemas.topology import Topology
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Order, Output, Owner, Stage
from streams.runtime.pipeline_constants import HOP_NS, INPUT_DELAY_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.units import NS_PER_MS

RETRY_NS: Final = 1 * NS_PER_MS
"""Interval between two advances of an operator that is due but has nothing to do: the pause of a worker."""
POLL_NS: Final = 50 * NS_PER_MS
"""Interval between two advances of a timed operator that is always due; as in `streams/runtime/faust/`."""
FORGET_MESSAGES: Final = 1_000
"""Interval, in messages kept, at which those too old to be needed are forgotten."""
MAX_ADVANCES: Final = 10_000
"""Number of advances of an operator at one moment above which an endless loop is assumed."""


class SimOutput(NamedTuple):
    """An output, and the log time of its advance."""

    log_ns: int
    output: Output


class _Running:
    """One operator. `owner_place`: its owner topic's partition; `delay_ns`: lag behind the log's clock."""

    def __init__(
        self, stage: Stage, operator: Operator, owner_place: Place, delay_ns: int, now_ns: int
    ) -> None:
        self.stage, self.operator, self.owner_place, self.delay_ns = stage, operator, owner_place, delay_ns
        self.advanced_ns = now_ns
        """Log time of the last advance."""
        self.due_ns = NEVER_NS
        """Log time for which the next advance is planned."""
        self._order = {stage_input.topic.name: number for number, stage_input in enumerate(stage.inputs)}
        self._at_times = {
            stage_input.topic.name: stage_input
            for stage_input in stage.inputs
            if stage_input.is_needed is not None
        }
        """Maps topic to those inputs that are needed only at times."""
        self._kept: dict[str, list[Message]] = {name: [] for name in self._at_times}
        """Maps topic to messages of those inputs that were not needed yet."""

    def next_ns(self) -> int:
        """Return the log time of the next advance, ns; 0 if it is due at once."""
        due_ns = self.operator.due_ns()
        if not self.delay_ns:
            return due_ns
        return due_ns + self.delay_ns if due_ns else self.advanced_ns + POLL_NS

    def take(self, messages: Sequence[Message], now_ns: int, tables: FabricTables) -> None:
        """Pass messages to the operator in the order of the inputs; keep those of inputs not needed now."""
        needed: list[Message] = []
        for message in messages:
            kept_messages = self._kept.get(message.topic)
            (needed if kept_messages is None else kept_messages).append(message)
        self._take(needed, tables)
        for name, stage_input in self._at_times.items():
            if self._kept[name] and stage_input.is_needed is not None:
                if stage_input.is_needed(self.operator, tables):
                    self._take(self._needed_again(stage_input, now_ns, tables), tables)
                    self._kept[name] = []
                elif len(self._kept[name]) % FORGET_MESSAGES == 0:
                    self._kept[name] = self._needed_again(stage_input, now_ns, tables)

    def _take(self, messages: list[Message], tables: FabricTables) -> None:
        if messages:
            messages.sort(key=lambda message: (self._order[message.topic], message.partition, message.offset))
            self.operator.take(messages, tables)

    def _needed_again(self, stage_input: Input, now_ns: int, tables: FabricTables) -> list[Message]:
        """Return the kept messages that an owner would read that begins at `now_ns`."""
        start = None if stage_input.start is None else stage_input.start(now_ns, tables)
        since_ns = (start.since_ns or 0) if start else 0
        return [message for message in self._kept[stage_input.topic.name] if message.append_ns >= since_ns]


class SimRunner:
    """A simulated log and the stages that read it, from `start_ns` on.

    `hop_ns`: time between an advance and the append time of its outputs, for all topics or by topic. If it is
    None, outputs are not appended, and recorded messages are the only inputs. `clock`: returns processor
    time, ns, for `busy_ns`.
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        start_ns: int,
        *,
        partition_count: int = 1,
        settings: StreamSettings | None = None,
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        hop_ns: int | Mapping[str, int] | None = HOP_NS,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings or StreamSettings()
        self.tables = FabricTables(
            self.settings.default_shard,
            topology,
            registry,
            holdover_s=self.settings.solve.holdover_s,
            window_ns=self.settings.window_ms * NS_PER_MS,
        )
        self.now_ns = start_ns
        self.rejected: list[tuple[Message, Exception]] = []
        """Messages that an operator or a table could not use."""
        self.failed: list[tuple[str, Exception]] = []
        """Keys whose evaluation failed."""
        self.busy_ns: Counter[str] = Counter()
        """Maps stage to the processor time of its operators and of the encoding of their outputs, ns."""
        self.messages: Counter[str] = Counter()
        """Maps topic to the number of its messages."""
        self.tap: Callable[[Message], None] | None = None
        """Called with each message that is appended."""
        self._partition_count, self._registry, self._hop_ns = partition_count, registry, hop_ns
        self._clock, self._epoch = clock, start_ns // NS_PER_MS
        self._readers: dict[str, list[tuple[int, Stage]]] = {}
        stages = tuple(stages)
        for number, stage in enumerate(stages):
            for stage_input in stage.inputs:
                self._readers.setdefault(stage_input.topic.name, []).append((number, stage))
        self._tables_topics = frozenset(table.topic.name for table in self.tables.tables)
        self._operators: dict[tuple[int, int], _Running] = {}
        """Operators by stage number and partition (-1: all). An operator begins with its first message; one
        without inputs begins at once."""
        self._pending: list[tuple[int, int, Message]] = []
        """Heap of (append time, order of publication, message) of messages that are not yet appended."""
        self._published = 0
        self._next_offsets: dict[Place, int] = {}
        self._due: list[tuple[int, int, int]] = []
        """Heap of (log time, stage, partition) of planned advances; outdated entries are ignored."""
        for number, stage in enumerate(stages):
            if not stage.inputs:
                running = self._begin(number, stage, -1, self.partitions_of(stage.owner))
                self._schedule((number, -1), running, start_ns)

    # ------------------------------------------------------------------------------------------ the log

    def partitions_of(self, topic: Topic[Any]) -> int:
        """Return the number of a topic's partitions."""
        return self._partition_count if topic.partitions == Partitions.DATA else 1

    def publish(self, output: Output, at_ns: int) -> None:
        """Append a message to the log at a time, or now if that time has passed."""
        partition = partition_of(output.key, self.partitions_of(output.topic))
        value = output.value(self._registry)
        self.append(Message(at_ns, output.topic.name, partition, -1, output.key, value))

    def append(self, message: Message) -> None:
        """Append a recorded message at its append time; replace an offset below 0 by the next free offset."""
        if message.append_ns < self.now_ns:
            message.append_ns = message.log_ns = self.now_ns
        if self.tap is not None:
            self.tap(message)
        heapq.heappush(self._pending, (message.append_ns, self._published, message))
        self._published += 1

    def advance(self, to_ns: int) -> list[SimOutput]:
        """Let time pass to `to_ns`, inclusive; return the outputs of the operators in this period."""
        outputs: list[SimOutput] = []
        while (at_ns := self._next_ns()) <= to_ns:
            self.now_ns = max(self.now_ns, at_ns)
            outputs += self._process_moment()
        self.now_ns = max(self.now_ns, to_ns)
        return outputs

    def _next_ns(self) -> int:
        while self._due and self._operators[self._due[0][1:]].due_ns != self._due[0][0]:
            heapq.heappop(self._due)
        due_ns = self._due[0][0] if self._due else NEVER_NS
        return min(due_ns, self._pending[0][0]) if self._pending else due_ns

    # ------------------------------------------------------------------------------------------ operators

    def _process_moment(self) -> list[SimOutput]:
        """Take the messages of this moment, and advance the operators that got messages or are due."""
        messages: dict[tuple[int, int], list[Message]] = {}
        while self._pending and self._pending[0][0] <= self.now_ns:
            message = heapq.heappop(self._pending)[2]
            for place in self._deliver(message):
                messages.setdefault(place, []).append(message)
        due = set(messages)
        while self._due and self._due[0][0] <= self.now_ns:
            at_ns, stage, partition = heapq.heappop(self._due)
            if self._operators[stage, partition].due_ns == at_ns:
                due.add((stage, partition))
        return [output for place in sorted(due) for output in self._run(place, messages.get(place, ()))]

    def _deliver(self, message: Message) -> list[tuple[int, int]]:
        """Store a message; return the operators that read it, as (stage number, partition)."""
        place = message.place
        if message.offset < 0:
            message.offset = self._next_offsets.get(place, 0)
        self._next_offsets[place] = message.offset + 1
        self.messages[message.topic] += 1
        if message.topic in self._tables_topics:
            error = self.tables.take(message)
            if error is not None:
                self.rejected.append((message, error))
        return [
            operator
            for number, stage in self._readers.get(message.topic, ())
            for operator in self._operators_of(number, stage, message)
        ]

    def _operators_of(self, number: int, stage: Stage, message: Message) -> Iterable[tuple[int, int]]:
        count = self.partitions_of(stage.owner)
        if not stage.per_partition:
            partitions: Iterable[int] = (-1,)
        elif self.partitions_of(TOPICS[message.topic]) == count:
            partitions = (message.partition,)
        else:
            partitions = range(count)  # every operator reads a topic of one partition
        for partition in partitions:
            if (number, partition) not in self._operators:
                self._begin(number, stage, partition, count)
            yield number, partition

    def _begin(self, number: int, stage: Stage, partition: int, count: int) -> _Running:
        """Add an operator without restored records, and return it."""
        places = tuple(
            (stage_input.topic.name, number)
            for stage_input in stage.inputs
            for number in range(self.partitions_of(stage_input.topic))
        )
        owner = Owner(
            self._epoch, frozenset(range(count)), count, self.settings, self._registry, places=places
        )
        operator = stage.make(owner, partition, self.tables)
        operator.restore({}, self.tables)
        delay_ns = INPUT_DELAY_NS if stage.order is Order.TIMED else 0
        running = _Running(stage, operator, (stage.owner.name, partition), delay_ns, self.now_ns)
        self._operators[number, partition] = running
        return running

    def _run(self, place: tuple[int, int], messages: Sequence[Message]) -> list[SimOutput]:
        """Let an operator take messages, and advance it while it is due."""
        running, began_ns = self._operators[place], self._clock()
        operator = running.operator
        operator.end_offset = self._next_offsets.get(running.owner_place)
        if messages:
            operator.moment = self._moment(self.now_ns - running.delay_ns)
            running.take(messages, self.now_ns, self.tables)
        outputs: list[SimOutput] = []
        due_ns = running.next_ns()
        is_due = due_ns <= self.now_ns or bool(messages and running.stage.per_partition)
        advances = 0
        while is_due:
            moved = self._advanced(running, min(due_ns, self.now_ns) if running.delay_ns else self.now_ns)
            outputs += moved
            last_ns, due_ns = due_ns, running.next_ns()
            is_due = due_ns == 0 or (due_ns <= self.now_ns and (bool(moved) or due_ns != last_ns))
            advances += 1
            if advances > MAX_ADVANCES:
                raise RuntimeError(f"{running.stage.name}: due again and again at {self.now_ns}")
        self.busy_ns[running.stage.name] += self._clock() - began_ns
        self._schedule(place, running, due_ns if due_ns > self.now_ns else self.now_ns + RETRY_NS)
        return outputs

    def _schedule(self, place: tuple[int, int], running: _Running, due_ns: int) -> None:
        """Set the log time of an operator's next advance."""
        if due_ns != running.due_ns:
            running.due_ns = due_ns
            if due_ns < NEVER_NS:
                heapq.heappush(self._due, (due_ns, *place))

    def _moment(self, log_ns: int) -> Moment:
        return Moment(log_ns, self.tables.clocks.log_offset_ns)

    def _advanced(self, running: _Running, at_ns: int) -> list[SimOutput]:
        """Advance an operator; append its outputs to the log `hop_ns` later, and return them."""
        operator, running.advanced_ns = running.operator, at_ns
        operator.moment = self._moment(at_ns - running.delay_ns)
        result = operator.advance(operator.moment, self.tables)
        outputs = result() if callable(result) else result
        if self._hop_ns is not None:
            for output in outputs:
                self.publish(output, self.now_ns + self._hop_of(output.topic))
        self.rejected += operator.rejected
        self.failed += operator.failed
        operator.rejected.clear()
        operator.failed.clear()
        return [SimOutput(self.now_ns, output) for output in outputs]

    def _hop_of(self, topic: Topic[Any]) -> int:
        if isinstance(self._hop_ns, int):
            return self._hop_ns
        return (self._hop_ns or {}).get(topic.name, HOP_NS)

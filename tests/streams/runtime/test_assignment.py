"""Assignments: no message is early or duplicated, and nothing is sent after another owner began."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import LINKS, REJECTS, R, Topic
from streams.runtime import assignment as module
from streams.runtime.assignment import Assignment, Generation, KeyedState, Ownership, PartitionState
from streams.runtime.rejects import RejectBudget
from streams.runtime.settings import StreamSettings

TP0, TP1 = TP(LINKS.name, 0), TP(LINKS.name, 1)
ERRORS = {b"bad": ValueError("bad"), b"lost": ConnectionError("lost")}
"""Values whose processing fails, by the record's fault or by the log's."""


class FakeContext:
    """A worker's shared state, with a log that acknowledges when the test allows it."""

    def __init__(self) -> None:
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.log_takes = asyncio.Event()
        self.log_takes.set()
        self.committed_offsets: dict[TP, int] = {}
        self.sent: list[tuple[str, str, bytes | None]] = []
        self.aborted: list[str] = []
        self.rejected = 0
        self.reject_budget = RejectBudget()
        self.ends: dict[TP, int] = {}
        self.settings = StreamSettings(buffer_messages=4)
        self.app = SimpleNamespace(
            topics=set[str](),
            topic=lambda name, **_: name,
            transport=SimpleNamespace(receivers=dict[str, Any]()),
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def tables_caught_up(self) -> None:
        await self.caught_up.wait()

    async def committed(self, tp: TP) -> int | None:
        return self.committed_offsets.get(tp)

    def task(self, name: str, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def survive(self, stage: str, topic: Topic[Any], key: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def abort(self, reason: str, error: BaseException | None = None) -> None:
        self.aborted.append(reason)

    async def send(self, topic: Topic[R], key: str, record: R) -> Awaitable[Any]:
        return await self.send_bytes(topic.name, key, codec.encode(topic.type, record))

    async def send_bytes(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        self.sent.append((topic, key, value))
        return self.log_takes.wait()

    def highwater(self, tp: TP) -> int | None:
        return self.ends.get(tp)

    def position(self, tp: TP) -> int | None:
        return None


@dataclass(frozen=True)
class Record:
    """A message as the client library delivers it."""

    offset: int
    tp: TP = TP0
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    timestamp: int = 1_700_000_000_500
    timestamp_type: int = 1

    @property
    def topic(self) -> str:
        return self.tp.topic

    @property
    def partition(self) -> int:
        return self.tp.partition


async def give(assignment: Assignment[Any], *records: Record) -> None:
    """Deliver messages one by one, and wait until the stage has processed them."""
    for record in records:
        assignment.receive(record.tp, [record])
    await until(lambda: not assignment._queued)


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the stage runs in the same loop
            await asyncio.sleep(0)


def position(assignment: Assignment[Any], tp: TP = TP0) -> int | None:
    return assignment.commit_position(tp)


class Stage:
    """A minimal stage: it notes its calls."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self.taken: list[int] = []
        self.recovering: list[list[TP]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.on_revoke: list[TP] = []
        self.starts = 0
        self.partitions: Assignment[list[int]] = Assignment(
            context,
            "stage",
            LINKS,
            start=self._start,
            recover=self._recover,
            process=self._process,
            on_revoke=lambda parts: self.on_revoke.extend(partition.tp for partition in parts),
        )

    def _start(self) -> None:
        self.starts += 1

    async def _recover(self, taken: list[PartitionState[list[int]]]) -> None:
        self.recovering.append([partition.tp for partition in taken])
        go_on = self.go_on
        await go_on.wait()
        for partition in taken:
            partition.state = []

    async def _process(self, partition: PartitionState[list[int]], messages: Sequence[Message]) -> None:
        for message in messages:
            self.partitions.begin(partition, message)
            if message.value in ERRORS:
                raise ERRORS[message.value]
            partition.state.append(message.offset)
            self.taken.append(message.offset)

    async def give(self, *records: Record) -> None:
        await give(self.partitions, *records)

    async def recover(self, *tps: TP) -> None:
        self.partitions.assign(tps)
        await asyncio.wait_for(self.partitions.ready(), 5)


@pytest.fixture
async def context() -> AsyncIterator[FakeContext]:
    context = FakeContext()
    yield context
    await context.stop()


@pytest.fixture
async def stage(context: FakeContext) -> Stage:
    return Stage(context)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_messages_wait_for_recovery_and_continue_at_the_committed_offset(
    context: FakeContext, stage: Stage
) -> None:
    context.committed_offsets[TP0] = 7
    stage.go_on.clear()
    stage.partitions.assign([TP0])
    given = asyncio.ensure_future(stage.give(*map(Record, (5, 6, 7, 8))))
    await settle()
    assert (stage.taken, stage.partitions.positions, list(stage.partitions)) == ([], {}, [])
    assert not stage.partitions.has_capacity, "what waits is limited"
    stage.go_on.set()
    await given
    assert stage.partitions.has_capacity
    assert stage.taken == [7, 8]
    assert stage.partitions.positions == {TP0: 9}
    assert [partition.state for partition in stage.partitions] == [[7, 8]]


async def test_recovery_starts_after_the_global_tables_and_the_committed_offset(
    context: FakeContext, stage: Stage
) -> None:
    context.caught_up.clear()
    stage.partitions.assign([TP0, TP1])
    await settle()
    assert stage.recovering == []
    context.caught_up.set()
    await stage.partitions.ready()
    assert stage.recovering == [[TP0, TP1]]


async def test_a_message_of_an_unassigned_partition_is_ignored(stage: Stage) -> None:
    await stage.recover(TP0)
    await stage.give(Record(0, TP1))
    assert stage.taken == []


async def test_recovery_of_one_generation_does_not_release_the_next(
    context: FakeContext, stage: Stage
) -> None:
    """A generation without partitions has nothing to read and ends at once."""
    context.caught_up.clear()
    for tps in ([], [TP0], []):
        stage.partitions.assign(tps)
        await stage.partitions.revoke()
    stage.go_on.clear()
    stage.partitions.assign([TP0])
    first = asyncio.ensure_future(stage.give(Record(0)))
    context.caught_up.set()
    await settle()
    assert (stage.recovering, stage.taken) == ([[TP0]], [])
    await stage.partitions.revoke()
    overtaken, stage.go_on = stage.go_on, asyncio.Event()
    stage.partitions.assign([TP0])
    second = asyncio.ensure_future(stage.give(Record(0)))
    overtaken.set()
    await settle()
    assert first.done()
    assert (stage.taken, list(stage.partitions)) == ([], [])
    stage.go_on.set()
    await second
    assert stage.taken == [0]


async def test_positions_are_committed_in_order_and_not_after_revocation(stage: Stage) -> None:
    await stage.recover(TP0)
    assert position(stage.partitions) is None
    await stage.give(*map(Record, range(4)))
    (partition,) = stage.partitions
    stage.partitions.done(partition, [1])
    assert position(stage.partitions) == 0
    stage.partitions.done(partition, [0])
    assert position(stage.partitions) == 2
    stage.partitions.done(partition, [2, 3])
    assert position(stage.partitions) == 4
    await stage.partitions.revoke()
    assert position(stage.partitions) is None
    assert (stage.on_revoke, stage.partitions.positions, list(stage.partitions)) == ([TP0], {}, [])
    await stage.give(Record(4))
    assert stage.taken == [0, 1, 2, 3]
    await stage.recover(TP1)
    assert stage.on_revoke == [TP0], "told once"
    assert position(stage.partitions) is None, "not owned"


async def test_a_partition_that_is_assigned_again_starts_from_scratch(
    context: FakeContext, stage: Stage
) -> None:
    await stage.recover(TP0)
    await stage.give(*map(Record, range(3)))
    await stage.partitions.revoke()
    context.committed_offsets[TP0] = 1
    await stage.recover(TP0)
    await stage.give(*map(Record, range(1, 4)))
    assert [partition.state for partition in stage.partitions] == [[1, 2, 3]]


async def test_a_revocation_waits_for_running_work_and_acknowledgements(
    context: FakeContext, stage: Stage
) -> None:
    await stage.recover(TP0)
    (partition,) = stage.partitions
    context.log_takes.clear()
    async with stage.partitions.lock:
        revoking = asyncio.ensure_future(stage.partitions.revoke())
        await settle()
        assert partition.revoking
        await stage.partitions.publish(partition, LINKS, "a", b"1")
    await settle()
    assert (revoking.done(), context.sent) == (False, [(LINKS.name, "a", b"1")])
    context.log_takes.set()
    await asyncio.wait_for(revoking, 1)


async def test_nothing_is_sent_after_a_revocation_timed_out(
    context: FakeContext, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REVOKE_S", 0.05)
    await stage.recover(TP0)
    (partition,) = stage.partitions
    async with stage.partitions.lock:
        await stage.partitions.revoke()
        await stage.partitions.publish(partition, LINKS, "a", b"1")
        await (await stage.partitions.send(partition, LINKS, "a", b"2"))
    await stage.partitions.flush(partition)
    assert context.sent == []


async def test_a_second_assignment_without_revocation_has_one_generation(
    context: FakeContext, stage: Stage
) -> None:
    await stage.recover(TP0)
    (before,) = stage.partitions
    await stage.recover(TP0)
    (after,) = stage.partitions
    assert (before.revoking, after.revoking, stage.on_revoke) == (True, False, [TP0])
    await stage.partitions.publish(before, LINKS, "a", b"1")
    await stage.partitions.publish(after, LINKS, "a", b"2")
    assert context.sent == [(LINKS.name, "a", b"2")]
    await stage.partitions.revoke()


async def test_flush_waits_for_all_records_published_before(context: FakeContext, stage: Stage) -> None:
    await stage.recover(TP0)
    (partition,) = stage.partitions
    context.log_takes.clear()
    await stage.partitions.publish(partition, LINKS, "a", b"1")
    flush = asyncio.ensure_future(stage.partitions.flush(partition))
    await settle()
    await stage.partitions.publish(partition, LINKS, "a", b"2")
    assert not flush.done()
    context.log_takes.set()
    await flush
    await stage.partitions.flush(partition)
    assert partition.sent == []


async def test_a_bad_message_is_done_once_its_reject_is_acknowledged(
    context: FakeContext, stage: Stage
) -> None:
    await stage.recover(TP0)
    texts = []

    def decode(message: Message, value: bytes) -> str:
        if value == b"bad":
            raise codec.BadRecord("MALFORMED", "no")
        return value.decode()

    async def process(partition: PartitionState[list[int]], messages: Sequence[Message]) -> None:
        for message in messages:
            stage.partitions.begin(partition, message)
            assert message.append_ns == 1_700_000_000_500_000_000
            texts.append(await stage.partitions.read(partition, message, decode))

    stage.partitions._process = process
    context.log_takes.clear()
    records = Record(0, value=b"good"), Record(1, value=None), Record(2, value=b"bad")
    giving = asyncio.ensure_future(stage.give(*records))
    (partition,) = stage.partitions
    await settle()
    stage.partitions.done(partition, [0])
    assert (texts, position(stage.partitions), giving.done()) == (["good", None], 2, False)
    context.log_takes.set()
    await giving
    assert (texts[2:], position(stage.partitions)) == ([None], 3)
    ((topic, key, value),) = context.sent
    assert (topic, key) == (REJECTS.name, LINKS.name)
    assert value is not None
    record = codec.decode(value, REJECTS.record)
    assert (record["offset"], record["head"], record["reader"]) == (2, b"bad", "solve")


async def test_caught_up_compares_with_the_known_end_offset(context: FakeContext, stage: Stage) -> None:
    await stage.recover(TP0)
    (partition,) = stage.partitions
    assert not stage.partitions.caught_up(partition)
    context.ends[TP0] = 0
    assert stage.partitions.caught_up(partition)
    context.ends[TP0] = 2
    assert not stage.partitions.caught_up(partition)
    await stage.give(Record(1))
    assert stage.partitions.caught_up(partition)


async def test_a_partition_with_queued_messages_has_not_caught_up(
    context: FakeContext, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library has handed over all messages, and the group has never committed."""
    await stage.recover(TP0)
    (partition,) = stage.partitions
    context.ends[TP0] = 3
    monkeypatch.setattr(context, "position", lambda tp: 3)
    stage.partitions.receive(TP0, [Record(offset) for offset in range(3)])
    assert not stage.partitions.caught_up(partition)
    await stage.give()
    assert stage.partitions.caught_up(partition)


async def test_an_error_costs_one_message_of_a_batch(context: FakeContext, stage: Stage) -> None:
    await stage.recover(TP0)
    foreign = Record(3, timestamp_type=0)  # a timestamp that the log did not set
    batch = [Record(0), Record(1, value=b"bad"), Record(2), foreign, Record(4)]
    stage.partitions.receive(TP0, batch)
    await stage.give()
    assert stage.taken == [0, 2, 4]
    offsets = [codec.decode(value or b"", REJECTS.record)["offset"] for _, _, value in context.sent]
    assert sorted(offsets) == [1, 3]
    (partition,) = stage.partitions
    stage.partitions.done(partition, stage.taken)
    assert position(stage.partitions) == 5


async def test_timers_start_once_and_an_error_of_the_log_ends_the_task(
    context: FakeContext, stage: Stage
) -> None:
    stage.partitions.register()
    assert context.app.topics == {LINKS.name}
    assert context.app.transport.receivers == {LINKS.name: stage.partitions}
    await stage.recover(TP0)
    await stage.recover(TP0)
    stage.partitions.receive(TP0, [Record(0), Record(1), Record(2, value=b"lost"), Record(3)])
    (serving,) = [task for task in context.tasks if task.get_name() == "stage"]
    with pytest.raises(ConnectionError, match="lost"):
        await asyncio.wait_for(serving, 5)
    assert (stage.starts, stage.taken) == (1, [0, 1])


async def test_one_task_serves_a_generation_and_ends_with_it(context: FakeContext) -> None:
    at_work: list[Generation] = []

    async def serve(generation: Generation) -> None:
        at_work.append(generation)
        try:
            generation.recovered.set()
            await asyncio.Event().wait()
        finally:
            at_work.remove(generation)

    owned = Ownership(context, "stage", LINKS, serve)
    context.caught_up.clear()
    for _ in range(2):  # the same partitions twice, before any task could run
        owned.assign([TP0])
        await settle()
        await owned.revoke()
    owned.assign([TP0])
    context.caught_up.set()
    await owned.ready()
    assert at_work == [owned.generation]
    await owned.revoke()
    assert at_work == []
    owned.assign([])
    await owned.ready()
    assert (at_work, owned.positions) == ([], {})


def test_keyed_state_makes_each_value_once() -> None:
    made: list[str] = []
    named: KeyedState[str] = KeyedState(lambda name: made.append(name) or name.upper())
    assert [named["a"], named["b"], named["a"]] == ["A", "B", "A"]
    assert made == ["a", "b"]
    assert list(named) == ["a", "b"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("done"), st.integers(0, 8)),
        st.tuples(st.just("revoke"), st.integers(0, 3)),
        st.tuples(st.just("die"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_revocations_and_crashes_skip_no_message_and_acknowledge_none_early(
    steps: list[tuple[str, int]],
) -> None:
    async def play() -> None:
        out: set[int] = set()
        """Offsets with published results, as a crash leaves them."""
        context = FakeContext()
        stage = Stage(context)
        context.committed_offsets[TP0] = committed = 0
        await stage.recover(TP0)
        reads = 0

        def commit() -> int:
            to_commit = position(stage.partitions)
            assert to_commit is not None
            assert set(range(committed, to_commit)) <= out
            return max(committed, to_commit)

        for step, number in steps:
            (partition,) = stage.partitions
            if step == "take":
                stage.partitions.receive(TP0, [Record(reads + i) for i in range(number)])
                await stage.give()
                reads += number
            elif step == "done" and partition.state:
                offset = partition.state.pop(number % len(partition.state))
                out.add(offset)
                stage.partitions.done(partition, [offset])
            elif step in ("revoke", "die"):
                committed = commit()
                if step == "revoke":
                    await stage.partitions.revoke()
                else:
                    await context.stop()
                    stage = Stage(context)
                context.committed_offsets[TP0] = committed
                reads = max(0, committed - number)  # some committed messages may be read again
                await stage.recover(TP0)
            committed = commit()
            assert sorted(set(range(reads)) - out) == sorted(
                offset for partition in stage.partitions for offset in set(partition.state) - out
            ), "whatever is not out is in somebody's hands"
        await context.stop()

    asyncio.run(play())

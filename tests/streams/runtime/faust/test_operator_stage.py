"""The worker's runner: no message is early or lost, and nothing is sent after another owner began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ClockOffsets, FlowReports, Steps
from schemas.topics import CLOCK_OFFSETS, DELAYS, FLOWS, LINKS, REJECTS, STEPS, Topic
from streams.runtime import assignment
from streams.runtime.faust import operator_stage as module
from streams.runtime.faust.operator_stage import OperatorStage, waited_ns
from streams.runtime.operator import NEVER_NS, Past
from streams.runtime.step_runner import StepRunner
from tests.records import make
from tests.streams.runtime.fake_context import MS, START_NS, TP0, TP1, FakeContext, Record, settle, until
from tests.streams.runtime.noting_operator import (
    HastyNotingStage,
    NotingOperator,
    NotingStage,
    SteppedNotingStage,
)

S = 1_000 * MS


class Owned(OperatorStage):
    """A stage of a worker, with what tests look at."""

    def __init__(self, context: FakeContext, stage: NotingStage) -> None:
        super().__init__(context, stage)
        self.noting = stage
        self.fake = context

    @property
    def operator(self) -> NotingOperator:
        """The operator of the only partition."""
        (operator,) = (each.operator for each in self._partitions.values())
        assert isinstance(operator, NotingOperator)
        return operator

    def give(self, *offsets: int, **fields: Any) -> None:
        """Deliver messages in one batch."""
        records = [Record(offset, **fields) for offset in offsets]
        self.receive(records[0].tp, records)

    async def take(self, *offsets: int, **fields: Any) -> None:
        """Deliver messages, and wait until they are taken and their outputs passed to the producer."""
        self.give(*offsets, **fields)
        await self.idle()

    async def idle(self) -> None:
        """Wait until all messages are taken, and what they gave is passed to the producer."""
        await until(lambda: not self._queued)
        await settle()
        async with self.lock:
            pass

    async def restore(self, *tps: TP) -> None:
        self.assign(tps)
        await asyncio.wait_for(self.ready(), 5)

    async def commit(self, tp: TP = TP0) -> int | None:
        """Return the position that is committed next."""
        await settle()
        self._release()
        return self.commit_position(tp)

    def taken(self) -> list[list[int]]:
        """Return the offsets that each operator has taken, by partition."""
        return [each.taken for each in self.operators if isinstance(each, NotingOperator)]

    def steps(self) -> list[Steps]:
        """Return the published steps."""
        return [codec.decode(value, STEPS.record) for value in self.fake.values(STEPS)]


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(*_: object) -> int:
        return 4

    async def past(*_: object) -> tuple[Past, dict[tuple[str, int], int]]:
        return {}, {}

    monkeypatch.setattr(module, "partition_count", count)
    monkeypatch.setattr(module, "read_past", past)
    monkeypatch.setattr(module, "IDLE_S", 0.01)


@pytest.fixture
async def context() -> AsyncIterator[FakeContext]:
    context = FakeContext()
    yield context
    await context.stop()


@pytest.fixture
async def stage(context: FakeContext) -> Owned:
    return Owned(context, NotingStage())


async def heavy(context: FakeContext) -> Owned:
    """Return a stage whose operator works in its thread on message 0."""
    stage = Owned(context, NotingStage())
    stage.noting.is_heavy = True
    await stage.restore(TP0)
    stage.give(0)
    assert await asyncio.to_thread(stage.noting.working.wait, 10)
    return stage


# -------------------------------------------------------------------------------------------- begin


async def test_messages_wait_for_restoration_and_continue_at_the_committed_offset(
    context: FakeContext, stage: Owned
) -> None:
    context.committed_offsets[TP0] = 7
    context.caught_up.clear()
    stage.assign([TP0])
    for offset in (5, 6, 7, 8):
        stage.give(offset)
    await settle()
    assert (stage.noting.restored, stage.positions, stage.operators) == ([], {}, [])
    assert not stage.has_capacity, "what waits is limited"
    context.caught_up.set()
    await stage.ready()
    await stage.idle()
    assert stage.has_capacity
    assert stage.taken() == [[7, 8]]
    assert stage.positions == {TP0: 9}
    assert stage.operator.owner.committed == {0: 7}


async def test_restoration_follows_the_tables(context: FakeContext, stage: Owned) -> None:
    context.caught_up.clear()
    stage.assign([TP0, TP1])
    await settle()
    assert stage.noting.restored == []
    context.caught_up.set()
    await stage.ready()
    assert stage.noting.restored == [0, 1]
    assert stage.operators[0].owner.partitions == {0, 1}


async def test_a_message_of_a_partition_of_others_is_refused(stage: Owned) -> None:
    await stage.restore(TP0)
    assert not stage.receive(TP1, [Record(0, TP1)])
    await settle()
    assert stage.taken() == [[]]


async def test_the_restoration_of_one_generation_does_not_serve_the_next(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation without partitions has nothing to read and ends at once."""
    gates: list[asyncio.Event] = []

    async def past(*_: object) -> tuple[Past, dict[tuple[str, int], int]]:
        gates.append(asyncio.Event())
        await gates[-1].wait()
        return {}, {}

    monkeypatch.setattr(module, "read_past", past)
    for tps in ([], [TP0], []):
        stage.assign(tps)
        await stage.revoke()
    stage.assign([TP0])
    stage.give(0)
    await settle()
    assert (len(gates), stage.operators) == (1, [])
    await stage.revoke()
    stage.assign([TP0])
    stage.give(0)
    gates[0].set()
    await settle()
    assert (len(gates), stage.operators) == (2, [])
    gates[1].set()
    await stage.ready()
    await stage.idle()
    assert stage.taken() == [[0]]


async def test_the_app_delivers_a_topic_to_its_stage(context: FakeContext, stage: Owned) -> None:
    stage.register()
    assert context.app.topics == {LINKS.name}
    assert context.app.transport.receivers == {LINKS.name: stage}


# -------------------------------------------------------------------------------------------- positions


async def test_a_position_is_committed_after_its_outputs_in_order(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    assert await stage.commit() is None
    context.log_takes.clear()
    await stage.take(0)
    await stage.take(1)
    assert len(context.values(DELAYS)) == 2
    assert await stage.commit() is None
    context.log_takes.set()
    assert await stage.commit() == 2
    context.log_takes.clear()
    await stage.take(2)
    first, context.log_takes = context.log_takes, asyncio.Event()
    await stage.take(3)
    context.log_takes.set()
    assert await stage.commit() == 2, "the output of message 2 is not acknowledged"
    first.set()
    assert await stage.commit() == 4


async def test_a_position_stays_where_the_operator_needs_its_messages(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    stage.operator.needed = 1
    await stage.take(0, 1, 2)
    assert await stage.commit() == 1
    stage.operator.needed = 3
    assert await stage.commit() == 1, "until the next advance"
    await stage.take(3)
    assert await stage.commit() == 3


async def test_no_position_is_committed_after_a_revocation(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1)
    assert await stage.commit() == 2
    operator = stage.operator
    await stage.revoke()
    assert (stage.commit_position(TP0), stage.positions, stage.operators) == (None, {}, [])
    assert not stage.receive(TP0, [Record(2)])
    await stage.restore(TP1)
    assert (operator.is_closed, stage.noting.closed) == (True, [0]), "told once"
    assert stage.commit_position(TP0) is None, "not owned"
    assert operator.taken == [0, 1]


async def test_a_partition_that_is_assigned_again_starts_from_scratch(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1, 2)
    await stage.revoke()
    context.committed_offsets[TP0] = 1
    await stage.restore(TP0)
    await stage.take(1, 2, 3)
    assert stage.taken() == [[1, 2, 3]]


# -------------------------------------------------------------------------------------------- revocation


async def test_a_revocation_waits_for_work_and_acknowledgements_and_publishes_the_last_steps(
    context: FakeContext,
) -> None:
    stage = await heavy(context)
    context.log_takes.clear()
    revoking = asyncio.ensure_future(stage.revoke())
    await asyncio.sleep(0.05)
    assert (revoking.done(), context.values(DELAYS), stage.steps()) == (False, [], [])
    stage.noting.go_on.set()
    await until(lambda: stage.steps() != [])
    await settle()
    assert (revoking.done(), len(context.values(DELAYS))) == (False, 1)
    assert [record["messages"] for record in stage.steps()] == [[1]]
    context.log_takes.set()
    await asyncio.wait_for(revoking, 5)


async def test_a_revocation_waits_for_outputs_that_the_producer_has_not_taken(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    context.space.clear()
    stage.give(0)
    await settle()
    revoking = asyncio.ensure_future(stage.revoke())
    await settle()
    assert not revoking.done()
    context.log_takes.clear()
    context.space.set()
    await settle()
    assert (revoking.done(), len(context.values(DELAYS))) == (False, 1)
    context.log_takes.set()
    await asyncio.wait_for(revoking, 5)
    assert len(stage.steps()) == 1


async def test_nothing_is_sent_after_a_revocation_timed_out(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "REVOKE_S", 0.05)
    stage = await heavy(context)
    await stage.revoke()
    stage.noting.go_on.set()
    await asyncio.sleep(0.05)
    assert context.sent == []


async def test_no_further_output_is_sent_once_a_revocation_timed_out(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first output waits for the producer when the revocation begins."""
    monkeypatch.setattr(assignment, "REVOKE_S", 0.05)
    stage = Owned(context, NotingStage())
    await stage.restore(TP0)
    operator, advance = stage.operator, stage.operator.advance
    monkeypatch.setattr(operator, "advance", lambda *given: [*advance(*given)] * 3)
    context.space.clear()
    stage.give(0)
    await settle()
    await stage.revoke()
    context.space.set()
    await asyncio.sleep(0.05)
    assert len(context.sent) == 1


async def test_messages_that_wait_at_a_revocation_are_left_to_the_next_owner(context: FakeContext) -> None:
    stage = await heavy(context)
    stage.give(1, 2)
    operator = stage.operator
    revoking = asyncio.ensure_future(stage.revoke())
    await settle()
    stage.noting.go_on.set()
    await revoking
    assert (operator.taken, stage.commit_position(TP0)) == ([0], None)


async def test_a_second_assignment_without_revocation_has_one_generation(context: FakeContext) -> None:
    stage = await heavy(context)
    before = stage.operator
    stage.noting.is_heavy = False
    await stage.restore(TP0)
    assert stage.operator is not before
    stage.noting.go_on.set()
    await stage.take(0)
    await asyncio.sleep(0.05)
    assert stage.noting.closed == [0]
    assert len(context.values(DELAYS)) == 1, "that of the second generation"
    await stage.revoke()


# -------------------------------------------------------------------------------------------- errors


async def test_a_bad_message_costs_itself_and_is_done_once_its_reject_is_acknowledged(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    context.log_takes.clear()
    foreign = Record(3, timestamp_type=0)  # a timestamp that the log did not set
    stage.receive(TP0, [Record(0), Record(1, value=b"bad"), Record(2), foreign, Record(4)])
    await stage.idle()
    assert stage.taken() == [[0, 2, 4]]
    assert await stage.commit() is None
    context.log_takes.set()
    assert await stage.commit() == 5
    assert context.rejected_offsets() == [1, 3]
    rejects = [codec.decode(value, REJECTS.record) for value in context.values(REJECTS)]
    assert {(each["offset"], each["head"], each["reader"], each["reason"]) for each in rejects} == {
        (1, b"bad", "solve", "MALFORMED"),
        (3, b"value", "solve", "OUT_OF_RANGE"),
    }


async def test_an_unexpected_error_does_not_end_the_stage(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(0, value=b"broken")
    await stage.take(1)
    assert [str(error) for error in context.failures] == ["broken"]
    assert (stage.taken(), await stage.commit()) == ([[1]], 2)


async def test_an_error_of_the_log_ends_the_task(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1)
    stage.give(2, value=b"lost")
    (serving,) = [task for task in context.tasks if task.get_name() == "noting ownership"]
    with pytest.raises(ConnectionError, match="lost"):
        await asyncio.wait_for(serving, 5)
    assert stage.taken() == [[0, 1]]


async def test_a_send_that_fails_ends_the_task(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELEASE_S", 0.001)
    await stage.restore(TP0)

    async def refuse(topic: str, key: str, value: bytes | None) -> Any:
        async def acknowledgement() -> None:
            raise ConnectionError("no leader")

        return acknowledgement()

    monkeypatch.setattr(context, "send_bytes", refuse)
    stage.give(0)
    (serving,) = [task for task in context.tasks if task.get_name() == "noting ownership"]
    with pytest.raises(ConnectionError, match="no leader"):
        await asyncio.wait_for(serving, 5)
    assert stage.commit_position(TP0) is None


async def test_an_output_that_the_log_would_refuse_costs_no_other(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.restore(TP0)
    send_bytes = context.send_bytes

    async def send(topic: str, key: str, value: bytes | None) -> Any:
        if topic == DELAYS.name and b"0@" in (value or b""):
            raise ValueError("20000000 bytes")
        return await send_bytes(topic, key, value)

    monkeypatch.setattr(context, "send_bytes", send)
    await stage.take(0)
    await stage.take(1)
    assert len(context.values(DELAYS)) == 1
    (value,) = context.values(REJECTS)
    reject = codec.decode(value, REJECTS.record)
    assert (reject["key"], reject["reader"]) == (b"key", "noting")
    assert await stage.commit() == 2


# -------------------------------------------------------------------------------------------- pace


@pytest.mark.parametrize(
    ("age_ns", "offset", "highwater", "expected_ns"),
    [
        (501, 10, 100, 501),
        (501, 98, 100, 501),
        (501, 99, 100, 0),
        (501, 99, 99, 0),
        (501, 10, None, 501),
        (-501, 10, 100, 0),
    ],
)
def test_a_message_waits_while_newer_ones_wait_behind_it(
    age_ns: int, offset: int, highwater: int | None, expected_ns: int
) -> None:
    assert waited_ns(age_ns, offset, highwater) == expected_ns


@pytest.mark.parametrize(("age_ms", "skipped"), [(499, []), (501, [0, 1])])
async def test_old_messages_are_skipped_while_newer_ones_wait(
    context: FakeContext, age_ms: int, skipped: list[int]
) -> None:
    stage = Owned(context, HastyNotingStage())
    await stage.restore(TP0)
    context.now_ns += age_ms * MS
    context.ends[TP0] = 3
    await stage.take(0, 1, 2)
    assert stage.taken() == [[offset for offset in range(3) if offset not in skipped]], "the newest is taken"
    assert stage.skipped == len(skipped)
    await stage.revoke()
    choices = [choice for record in stage.steps() for choice in record["choices"]]
    assert [choice["value"] for choice in choices if choice["kind"] == "SKIPPED"] == skipped
    assert stage.commit_position(TP0) is None


async def test_a_stage_that_keeps_up_is_told_how_long_messages_wait(context: FakeContext) -> None:
    stage = Owned(context, HastyNotingStage())
    await stage.restore(TP0)
    context.now_ns += 300 * MS
    context.ends[TP0] = 9
    await stage.take(0)
    context.ends[TP0] = 2
    await stage.take(1)
    assert stage.operator.paces == [300 * MS, 0]


async def test_an_operator_takes_nothing_while_it_works(context: FakeContext) -> None:
    stage = await heavy(context)
    stage.give(1, 2)
    await asyncio.sleep(0.05)
    assert stage.operator.taken == [0]
    stage.noting.go_on.set()
    await stage.idle()
    assert stage.operator.batches == [1, 2]


async def test_a_message_that_comes_during_work_is_committed_after_the_next(context: FakeContext) -> None:
    stage = await heavy(context)
    stage.give(1)
    context.log_takes.clear()
    stage.noting.go_on.set()
    await until(lambda: len(context.values(DELAYS)) == 2)
    first, context.log_takes = context.log_takes, asyncio.Event()
    assert await stage.commit() is None
    first.set()
    await settle()
    assert await stage.commit() == 2


async def test_many_messages_are_taken_in_parts(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(*range(600))
    assert max(stage.operator.batches) == module.MAX_MESSAGES
    assert stage.operator.taken == list(range(600))
    await stage.take(*range(600, 604), value=bytes(module.MAX_BYTES // 2))
    assert stage.operator.batches[-2:] == [2, 2]


async def test_a_partition_with_many_unacknowledged_outputs_waits(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 1)
    await stage.restore(TP0)
    context.log_takes.clear()
    await stage.take(0)
    await stage.take(1)
    stage.give(2)
    await asyncio.sleep(0.05)
    assert stage.taken() == [[0, 1]]
    context.log_takes.set()
    await stage.idle()
    assert stage.taken() == [[0, 1, 2]]


async def test_a_revocation_ends_the_wait_for_acknowledgements(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 0)
    await stage.restore(TP0)
    context.log_takes.clear()
    await stage.take(0)
    stage.give(1)
    operator = stage.operator
    await settle()
    revoking = asyncio.ensure_future(stage.revoke())
    await settle()
    context.log_takes.set()
    await asyncio.wait_for(revoking, 5)
    assert operator.taken == [0]


# -------------------------------------------------------------------------------------------- time


async def test_an_operator_is_advanced_when_it_is_due(context: FakeContext) -> None:
    stage = Owned(context, SteppedNotingStage())
    context.ends[TP0] = 0
    await stage.restore(TP0)
    stage.operator.due = START_NS + 50 * MS
    await asyncio.sleep(0.05)
    assert stage.operator.advances == []
    context.now_ns += 60 * MS
    await until(lambda: stage.operator.advances != [])
    assert [moment.log_ns for moment in stage.operator.advances] == [START_NS + 60 * MS]


@pytest.mark.parametrize(
    ("end", "position", "is_caught_up"),
    [(None, None, False), (0, None, True), (2, None, False), (2, 2, True)],
)
async def test_time_passes_only_at_the_end_of_a_partition(
    context: FakeContext, end: int | None, position: int | None, is_caught_up: bool
) -> None:
    """The group has never committed; the position is that of the client library."""
    stage = Owned(context, SteppedNotingStage())
    context.ends = {} if end is None else {TP0: end}
    context.positions = {} if position is None else {TP0: position}
    await stage.restore(TP0)
    stage.operator.due = START_NS
    await asyncio.sleep(0.05)
    assert bool(stage.operator.advances) == is_caught_up


async def test_a_partition_with_queued_messages_is_not_at_its_end(context: FakeContext) -> None:
    """The client library has handed over all messages, and the group has never committed."""
    stage = Owned(context, SteppedNotingStage())
    context.ends, context.positions = {TP0: 2}, {TP0: 2}
    stage.assign([TP0])
    context.now_ns += 60 * S
    stage.receive(TP0, [Record(0, value=bytes(module.MAX_BYTES)), Record(1, timestamp=START_NS // MS + 7)])
    await stage.ready()
    await stage.idle()
    first, second = stage.operator.advances[:2]
    assert first.log_ns == START_NS, "as far as the message"
    assert second.log_ns >= START_NS + 7 * MS


async def test_messages_that_have_come_are_taken_together(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    for offset in range(4):
        stage.give(offset)
    await stage.idle()
    assert stage.operator.batches == [4]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("need"), st.integers(0, 8)),
        st.tuples(st.just("acknowledge"), st.booleans()),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("revoke"), st.integers(0, 3)),
        st.tuples(st.just("die"), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(MOVES)
def test_revocations_and_crashes_skip_no_message_and_acknowledge_none_early(
    moves: list[tuple[str, int]],
) -> None:
    """An operator needs its messages from some offset on; the log acknowledges when it likes."""

    async def play() -> None:
        context, committed, reads = FakeContext(), 0, 0
        context.committed_offsets[TP0] = 0
        stage = Owned(context, NotingStage())
        await stage.restore(TP0)
        floor = stage.operator.needed = 0

        async def commit() -> int:
            position = await stage.commit()
            assert position is not None
            assert position <= floor, "a message that is needed is not committed"
            return max(committed, position)

        for move, number in moves:
            if move == "take":
                await stage.take(*range(reads, reads + number))
                reads += number
                floor = stage.operator.needed
            elif move == "need":
                stage.operator.needed = min(reads, floor + number)
            elif move == "acknowledge":
                if number:
                    context.log_takes.set()
                else:
                    context.log_takes = asyncio.Event()
            elif move == "commit":
                committed = context.committed_offsets[TP0] = await commit()
            else:
                committed = context.committed_offsets[TP0] = await commit()
                if move == "revoke":
                    context.log_takes.set()
                    await stage.revoke()
                else:
                    await context.stop()
                    stage = Owned(context, NotingStage())
                reads = max(0, committed - number)  # some committed messages may be read again
                await stage.restore(TP0)
                floor = stage.operator.needed = committed
            assert stage.operator.taken == list(range(committed_at_begin(stage), max(reads, committed)))
        await context.stop()

    def committed_at_begin(stage: Owned) -> int:
        return stage.operator.owner.committed[0]

    asyncio.run(play())


# -------------------------------------------------------------------------------------------- steps


def clock_offsets(log_offset_ns: int) -> ClockOffsets:
    """Return a record without clocks."""
    start_ns = START_NS // S * S + log_offset_ns
    return make(
        "ClockOffsets", shard="fabric", window=START_NS // S, part=0, parts=1, log_offset_ns=log_offset_ns,
        window_start_ns=start_ns, window_end_ns=start_ns + S, clocks=[],
    )  # fmt: skip


def flow_report(host: str) -> FlowReports:
    """Return a report of a host without flows."""
    return make("FlowReports", host=host, shard="fabric", flows=[], whole=True)


async def test_published_steps_replay_word_for_word(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append time steps by an hour, fabric time follows, a table grows, and the operator adapts."""
    monkeypatch.setattr(module, "STEPS_S", 0.0)
    context.ends[TP0] = 0
    context.committed_offsets[TP0] = 3
    await stage.restore(TP0)
    records: list[Record | Message] = []

    async def give(*given: Record) -> None:
        records.extend(given)
        context.ends[TP0] = given[-1].offset + 1
        stage.receive(TP0, given)
        await stage.idle()

    def fill(topic: Topic[Any], offset: int, key: str, record: Any) -> None:
        message = Message(START_NS, topic.name, 1, offset, key, codec.encode(topic.type, record))
        assert context.tables.take(message) is None
        records.append(message)

    await give(*(Record(offset) for offset in (1, 2, 3, 4)))
    fill(CLOCK_OFFSETS, 0, "fabric/0", clock_offsets(5 * S))
    fill(FLOWS, 0, "h0", flow_report("h0"))
    await give(Record(5, value=b"quiet"))
    await give(Record(6, value=b"quiet"), Record(7))
    now_ms = START_NS // MS
    await give(Record(8), Record(9, timestamp=now_ms + 3_600_000), Record(10, timestamp=now_ms + 3_600_001))
    fill(FLOWS, 1, "h1", flow_report("h1"))
    fill(CLOCK_OFFSETS, 1, "fabric/0", clock_offsets(5 * S - 3600 * S))
    fill(FLOWS, 2, "h2", flow_report("h2"))
    await give(Record(11, timestamp=now_ms + 3_600_002), Record(12, value=b"bad"), Record(13, value=None))
    await give(Record(14, value=b"later", timestamp=now_ms + 3_600_003))
    await until(lambda: stage.operator.due == NEVER_NS)
    for offset in range(15, 20):
        await give(Record(offset, timestamp=now_ms + 3_600_000 + offset))
    await stage.revoke()
    kinds = {choice["kind"] for record in stage.steps() for choice in record["choices"]}
    assert kinds == {"CORRECTION", "OFFSET", "LEVEL"}
    assert len(stage.steps()) > 5

    runner = StepRunner(NotingStage(), stage.steps(), context.settings, 4)
    for each in records:
        if isinstance(each, Record):
            runner.offer(Message(each.timestamp * MS, *each.tp, each.offset, each.key, each.value))
        else:
            runner.offer(Message(each.append_ns, *each.place, each.offset, each.key, each.value))
    replayed = [each.output.value() for each in runner.run(is_complete=True)]
    assert replayed == context.values(DELAYS)
    assert len(replayed) > 8

"""A partition of the runner: when its operator is advanced, and how that is noted as steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ClockOffsets, FlowReports
from schemas.topics import CLOCK_OFFSETS, DELAYS, FLOWS, INVENTORY, Topic
from streams.runtime.faust import operator_stage as module
from streams.runtime.faust import partition as partition_module
from streams.runtime.faust.partition import waited_ns
from streams.runtime.log_runner import StepRunner
from streams.runtime.operator import NEVER_NS
from streams.runtime.steps import recording_of
from tests.examples import examples
from tests.records import make, make_part
from tests.streams.runtime.fake_context import MS, START_NS, TP0, FakeContext, Record, settle, until
from tests.streams.runtime.faust.owned import Owned, heavy
from tests.streams.runtime.noting_operator import (
    HastyNotingStage,
    NotingStage,
    SteppedNotingStage,
)

S = 1_000 * MS

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


async def test_a_stage_that_keeps_up_learns_how_long_messages_wait(context: FakeContext) -> None:
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
    assert max(stage.operator.batches) == partition_module.MAX_MESSAGES
    assert stage.operator.taken == list(range(600))
    await stage.take(*range(600, 604), value=bytes(partition_module.MAX_BYTES // 2))
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
    stage.receive(
        TP0, [Record(0, value=bytes(partition_module.MAX_BYTES)), Record(1, timestamp=START_NS // MS + 7)]
    )
    await stage.ready()
    await stage.idle()
    first, second = stage.operator.advances[:2]
    assert first.log_ns == START_NS, "as far as the message"
    assert second.log_ns >= START_NS + 7 * MS


async def test_a_message_without_append_time_at_the_end_of_a_partition_is_passed_in_order(
    context: FakeContext,
) -> None:
    stage = await heavy(context)
    context.ends[TP0] = 3
    stage.give(1)
    stage.give(2, timestamp_type=0)
    await settle()
    assert stage.positions == {TP0: 1}, "message 1 waits"
    stage.noting.is_heavy = False
    stage.noting.go_on.set()
    await stage.idle()
    assert (stage.taken(), stage.positions, await stage.commit()) == ([[0, 1]], {TP0: 3}, 3)
    assert context.rejected_offsets() == [2]
    stage.operator.due = START_NS + 50 * MS
    context.now_ns += 60 * MS
    await until(lambda: stage.operator.due == NEVER_NS)
    stage.give(3, timestamp_type=0)
    await stage.idle()
    assert stage.operator.advances[-1].log_ns >= START_NS, "log time does not go back"
    await stage.revoke()
    assert sum(count for record in stage.steps() for count in record["messages"]) == 4


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


@settings(max_examples=examples(60))
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
                stage.operator.needed = max(floor, min(reads, floor + number))
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
    """Return a report of one flow."""
    flow = make_part(
        "FlowReports", "Flow", flow_id=f"{host}/b/qp:d:1:1", state="OPEN", nic=f"{host}/eth0", peer="h0/eth0"
    )
    return make("FlowReports", host=host, shard="fabric", flows=[flow], whole=True)


async def test_steps_have_the_positions_of_the_tables_of_the_stage_alone(context: FakeContext) -> None:
    class Narrow(NotingStage):
        tables = (FLOWS,)

    def fill(topic: Topic[Any], offset: int) -> None:
        context.tables.take(Message(START_NS, topic.name, offset % 2, offset // 2, "key", b"-"))

    fill(INVENTORY, 0)
    fill(FLOWS, 0)
    stage = Owned(context, Narrow())
    await stage.restore(TP0)
    for offset in range(1, 10_001):
        fill(INVENTORY, offset)
    (partition,) = stage._partitions.values()
    max_moves = partition_module.MAX_MOVES
    for offset in range(1, 5 * max_moves):
        fill(FLOWS, offset)
        if offset % (max_moves // 2) == 0:  # an idle partition notes them
            await until(lambda: len(partition.moves) <= max_moves)
    stage.give(0)
    await stage.idle()
    await stage.revoke()
    inputs = {name for record in stage.steps() for name in record["inputs"]}
    assert inputs == {f"{FLOWS.name}/0", f"{FLOWS.name}/1", f"{TP0.topic}/0"}


async def test_a_gap_that_a_new_owner_reads_late_is_no_step_of_the_log_clock(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition got no message for 15 s before the owner began: the former worker was dead."""
    monkeypatch.setattr(module, "STEPS_S", 0.0)
    await stage.restore(TP0)
    now_ms = START_NS // MS
    for offset, ahead_ms in enumerate((-16_000, -15_900, -900, 0, 10)):
        stage.give(offset, timestamp=now_ms + ahead_ms)
    await stage.idle()
    (partition,) = stage._partitions.values()
    assert partition._steady.correction_ns == 0
    stage.give(5, timestamp=now_ms + 3_600_000)
    await stage.idle()
    await stage.revoke()
    choices = [choice for record in stage.steps() for choice in record["choices"]]
    corrections = [choice["value"] for choice in choices if choice["kind"] == "CORRECTION"]
    assert len(corrections) == 1, "the real step"
    assert corrections[0] == pytest.approx(-3_600 * S, abs=60 * S)


async def test_published_steps_replay_to_the_byte(
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
    fill(INVENTORY, 0, "h0/eth0", make("Nic", nic="h0/eth0", host="h0", shard="fabric"))
    fill(CLOCK_OFFSETS, 0, "fabric/0", clock_offsets(5 * S))
    fill(FLOWS, 0, "h0", flow_report("h0"))
    await give(Record(5, value=b"quiet"))
    await give(Record(6, value=b"quiet"), Record(7))
    now_ms = START_NS // MS
    await give(Record(8), Record(9, timestamp=now_ms + 3_600_000), Record(10, timestamp=now_ms + 3_600_001))
    fill(FLOWS, 1, "h1", flow_report("h1"))  # of a NIC that the inventory does not have yet
    fill(INVENTORY, 1, "h1/eth0", make("Nic", nic="h1/eth0", host="h1", shard="fabric"))
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

    runner = StepRunner(NotingStage(), recording_of(stage.steps()), context.settings, 4)
    for each in records:
        if isinstance(each, Record):
            runner.offer(Message(each.timestamp * MS, *each.tp, each.offset, each.key, each.value))
        else:
            runner.offer(Message(each.append_ns, *each.place, each.offset, each.key, each.value))
    replayed = [output.value() for _, output in runner.run()]
    assert replayed == context.values(DELAYS)
    assert len(replayed) > 8

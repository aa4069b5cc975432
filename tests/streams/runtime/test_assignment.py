"""Assignments: no message is early or duplicated, and nothing is sent after another owner began."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.topics import LINKS, REJECTS, R, Topic
from streams.runtime import assignment as module
from streams.runtime.assignment import Assignment, Generation, KeyedState, Message, Ownership, PartitionState
from streams.runtime.rejects import RejectBudget

TP0, TP1 = TP(LINKS.name, 0), TP(LINKS.name, 1)


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
        self.agents: dict[str, Any] = {}
        self.app = SimpleNamespace(consumer=SimpleNamespace(), topic=lambda name, **_: name, agent=self.agent)

    def agent(self, topic: str, name: str) -> Any:
        def put(work: Any) -> None:
            self.agents[name] = work

        return put

    async def tables_caught_up(self) -> None:
        await self.caught_up.wait()

    async def committed(self, tp: TP) -> int | None:
        return self.committed_offsets.get(tp)

    def task(self, name: str, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

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


@dataclass(eq=False)
class Raw:
    """A Faust message."""

    offset: int
    tp: TP = TP0
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    timestamp: float = 1_700_000_000.5
    timestamp_type: int = 1
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def topic(self) -> str:
        return self.tp.topic

    @property
    def partition(self) -> int:
        return self.tp.partition

    @property
    def acked(self) -> bool:
        return self.acknowledged.is_set()

    def ack(self, consumer: Any) -> None:
        assert not self.acked
        self.acknowledged.set()


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
            take=self._take,
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

    async def _take(self, message: Message[list[int]]) -> None:
        if message.value == b"bad":
            raise ConnectionError("bad")
        message.partition.state.append(message.offset)
        self.taken.append(message.offset)

    async def give(self, raw: Raw) -> None:
        message = await self.partitions.receive(raw)
        if message is not None:
            await self._take(message)

    async def recover(self, *tps: TP) -> None:
        self.partitions.assign(tps)
        await asyncio.wait_for(self.partitions.ready(), 5)


@pytest.fixture
async def context() -> FakeContext:
    return FakeContext()


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
    given = [asyncio.ensure_future(stage.give(Raw(offset))) for offset in (5, 6, 7, 8)]
    await settle()
    assert (stage.taken, stage.partitions.positions, list(stage.partitions)) == ([], {}, [])
    stage.go_on.set()
    await asyncio.gather(*given)
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
    await stage.give(Raw(0, TP1))
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
    first = asyncio.ensure_future(stage.give(Raw(0)))
    context.caught_up.set()
    await settle()
    assert (stage.recovering, stage.taken) == ([[TP0]], [])
    await stage.partitions.revoke()
    overtaken, stage.go_on = stage.go_on, asyncio.Event()
    stage.partitions.assign([TP0])
    second = asyncio.ensure_future(stage.give(Raw(0)))
    overtaken.set()
    await settle()
    assert first.done()
    assert (stage.taken, list(stage.partitions)) == ([], [])
    stage.go_on.set()
    await second
    assert stage.taken == [0]


async def test_acknowledgements_are_in_order_and_stop_at_revocation(stage: Stage) -> None:
    await stage.recover(TP0)
    raws = [Raw(offset) for offset in range(4)]
    for raw in raws:
        await stage.give(raw)
    assert [raw.value for raw in raws] == [None] * 4, "what is not acknowledged takes no memory"
    (partition,) = stage.partitions
    stage.partitions.done(partition, [1])
    assert not any(raw.acked for raw in raws)
    stage.partitions.done(partition, [0])
    assert [raw.acked for raw in raws] == [True, True, False, False]
    await stage.partitions.revoke()
    stage.partitions.done(partition, [2])
    assert [raw.acked for raw in raws] == [True, True, False, False]
    assert (stage.on_revoke, stage.partitions.positions, list(stage.partitions)) == ([TP0], {}, [])
    await stage.give(Raw(4))
    assert stage.taken == [0, 1, 2, 3]
    await stage.recover(TP1)
    assert stage.on_revoke == [TP0], "told once"


async def test_a_partition_that_is_assigned_again_starts_from_scratch(
    context: FakeContext, stage: Stage
) -> None:
    await stage.recover(TP0)
    for offset in range(3):
        await stage.give(Raw(offset))
    await stage.partitions.revoke()
    context.committed_offsets[TP0] = 1
    await stage.recover(TP0)
    for offset in range(1, 4):
        await stage.give(Raw(offset))
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

    def decode(message: Message[list[int]], value: bytes) -> str:
        if value == b"bad":
            raise codec.BadRecord("MALFORMED", "no")
        return value.decode()

    async def read(raw: Raw) -> str | None:
        message = await stage.partitions.receive(raw)
        assert message is not None
        assert message.append_ns == 1_700_000_000_500_000_000
        return await stage.partitions.read(message, decode)

    good, nothing, bad = Raw(0, value=b"good"), Raw(1, value=None), Raw(2, value=b"bad")
    assert await read(good) == "good"
    assert await read(nothing) is None
    context.log_takes.clear()
    reading = asyncio.ensure_future(read(bad))
    (partition,) = stage.partitions
    await settle()
    stage.partitions.done(partition, [0])
    assert (good.acked, nothing.acked, bad.acked, reading.done()) == (True, True, False, False)
    context.log_takes.set()
    assert await reading is None
    assert bad.acked
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
    await stage.give(Raw(1))
    assert stage.partitions.caught_up(partition)


async def test_the_agent_starts_timers_once_and_an_error_aborts_the_worker(
    context: FakeContext, stage: Stage
) -> None:
    stage.partitions.register()
    await stage.recover(TP0)
    raws = [Raw(0), Raw(1), Raw(2, value=b"bad"), Raw(3)]

    class Stream:
        def noack(self) -> Stream:
            return self

        async def events(self) -> Any:
            for raw in raws:
                yield SimpleNamespace(message=raw, value=raw.value)

    with pytest.raises(ConnectionError, match="bad"):
        await context.agents["stage"](Stream())
    assert (stage.starts, stage.taken) == (1, [0, 1])
    assert context.aborted == ["stage: ConnectionError: bad"]


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
        reads, raws = 0, list[Raw]()

        def commit() -> int:
            acked = [raw.offset for raw in raws if raw.acked]
            assert acked == list(range(acked[0], acked[0] + len(acked)) if acked else ())
            assert set(range(committed, acked[-1] + 1 if acked else committed)) <= out
            return max([committed, *(offset + 1 for offset in acked)])

        for step, number in steps:
            (partition,) = stage.partitions
            if step == "take":
                for _ in range(number):
                    raws.append(Raw(reads))
                    await stage.give(raws[-1])
                    reads += 1
            elif step == "done" and partition.state:
                offset = partition.state.pop(number % len(partition.state))
                out.add(offset)
                stage.partitions.done(partition, [offset])
            elif step in ("revoke", "die"):
                committed = commit()
                if step == "revoke":
                    await stage.partitions.revoke()
                else:
                    stage = Stage(context)
                context.committed_offsets[TP0] = committed
                raws = []
                reads = max(0, committed - number)  # some committed messages may be read again
                await stage.recover(TP0)
            committed = commit()
            assert sorted(set(range(reads)) - out) == sorted(
                offset for partition in stage.partitions for offset in set(partition.state) - out
            ), "whatever is not out is in somebody's hands"

    asyncio.run(play())

"""The consumer delivers whole batches to receivers with capacity, and commits their positions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from schemas.kafka.settings import KafkaSettings
from streams.runtime.faust import compat
from streams.runtime.faust.compat import PromptWorker, _Consumer
from tests.streams.runtime.fake_context import TP0, TP1, Record

OTHER = TP("other", 0)
UNREAD = TP("unread", 0)


class Receiver:
    """Takes messages while it has capacity; its position is set by the test."""

    def __init__(self) -> None:
        self.has_capacity = True
        self.batches: list[tuple[TP, list[int]]] = []
        self.positions: dict[TP, int] = {}
        self.assigned = True

    def receive(self, tp: TP, records: Sequence[Any]) -> bool:
        if self.assigned:
            self.batches.append((tp, [record.offset for record in records]))
        return self.assigned

    def commit_position(self, tp: TP) -> int | None:
        return self.positions.get(tp)


class Consumer(_Consumer):
    """A consumer without a broker: `fetched` is what the client library returns next."""

    abstract = False

    def __init__(self, receivers: dict[str, Receiver | None]) -> None:
        self.transport = SimpleNamespace(
            receivers=receivers, app=SimpleNamespace(should_stop=False), cluster=KafkaSettings()
        )
        self.flow_active = True
        self.fetched: list[dict[TP, list[Record]]] = []
        self.seeks: list[tuple[TP, int]] = []
        self._thread = SimpleNamespace(seek=lambda tp, offset: self.seeks.append((tp, offset)))
        self._read_offset: dict[TP, int | None] = {TP0: None, TP1: None, OTHER: None}
        self._fetcher = SimpleNamespace(_stopped=SimpleNamespace(is_set=lambda: not self.fetched))
        self.at_fetch = lambda: None

    @property
    def _stopped(self) -> Any:
        return SimpleNamespace(is_set=lambda: False)

    def assignment(self) -> set[TP]:
        return {TP0, TP1, UNREAD}

    async def _wait_next_records(self, timeout: float) -> tuple[Any, Any]:
        records = self.fetched.pop(0)
        self.at_fetch()
        return records, {TP0, OTHER}

    async def drain(self, *fetched: dict[TP, list[Record]]) -> None:
        self.fetched = list(fetched)
        await self._drain_messages(self._fetcher)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def other() -> Receiver:
    return Receiver()


@pytest.fixture
def consumer(receiver: Receiver, other: Receiver) -> Consumer:
    return Consumer({TP0.topic: receiver, OTHER.topic: other, UNREAD.topic: None})


@pytest.mark.parametrize(("assignments", "batches"), [(0, [(TP0, [0])]), (1, [])])
async def test_messages_wait_for_their_schemas_unless_partitions_are_assigned_meanwhile(
    consumer: Consumer,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    assignments: int,
    batches: list[Any],
) -> None:
    """Faust has then sought the committed offsets: older messages must not come after newer ones."""

    async def arrive(cluster: KafkaSettings, values: Sequence[bytes | None]) -> None:
        assert receiver.batches == []
        consumer._generation += assignments

    monkeypatch.setattr(compat, "arrive", arrive)
    await consumer.drain({TP0: [Record(0)]})
    assert receiver.batches == batches


async def test_a_partition_is_delivered_as_one_batch_without_messages_read_before(
    consumer: Consumer, receiver: Receiver, other: Receiver
) -> None:
    consumer._read_offset[TP0] = 5  # Faust sets it to the committed offset
    foreign = {TP1: [Record(3, TP1)]}  # paused meanwhile
    await consumer.drain(
        {TP0: [Record(offset) for offset in (3, 4, 5, 6)], OTHER: [Record(8, OTHER)], **foreign},
        {TP0: [Record(7), Record(9)]},
        {TP0: [Record(2), Record(3)]},
    )
    assert receiver.batches == [(TP0, [5, 6]), (TP0, [7, 9])]
    assert other.batches == [(OTHER, [8])]
    assert consumer.seeks == [(TP1, 3)], "it is fetched again"


async def test_messages_that_a_rebalance_overtakes_are_fetched_again(
    consumer: Consumer, receiver: Receiver
) -> None:
    """Faust seeks to committed offsets only, and a partition may have none yet."""

    def suspend() -> None:
        consumer.flow_active = False

    consumer.at_fetch = suspend
    await consumer.drain({TP0: [Record(3), Record(4)], OTHER: [Record(0, OTHER)]})
    assert receiver.batches == []
    assert consumer.seeks == [(TP0, 3)], "the other partition is not assigned any more"
    consumer.flow_active, consumer.at_fetch = True, lambda: None
    receiver.assigned = False
    await consumer.drain({TP0: [Record(3), Record(4)]})
    assert consumer.seeks == [(TP0, 3), (TP0, 3)], "the stage does not know of the partition yet"
    receiver.assigned = True
    await consumer.drain({TP0: [Record(3), Record(4)]})
    assert receiver.batches == [(TP0, [3, 4])]


async def test_messages_that_follow_a_rebalance_are_delivered(consumer: Consumer, receiver: Receiver) -> None:
    def rebalance() -> None:
        consumer.flow_active = True

    consumer.flow_active = False  # the consumer waits for the end of the rebalance, then fetches
    consumer.at_fetch = rebalance
    await consumer.drain({TP0: [Record(0)]})
    assert (receiver.batches, consumer.seeks) == ([(TP0, [0])], [])


async def test_topics_without_capacity_are_not_read(
    consumer: Consumer, receiver: Receiver, other: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[set[TP], float]] = []

    async def getmany(_: Any, active: set[TP], timeout: float) -> dict[TP, Any]:
        calls.append((active, timeout))
        return {}

    monkeypatch.setattr(driver.Consumer, "_getmany", getmany)
    active = {TP0, TP1, OTHER, UNREAD}
    await consumer._getmany(active, 1.0)
    receiver.has_capacity = False
    await consumer._getmany(active, 1.0)
    other.has_capacity = False
    assert await consumer._getmany(active, 1.0) == {}
    assert calls == [({TP0, TP1, OTHER}, 1.0), ({OTHER}, compat.CAPACITY_CHECK_S)]


class Replaced:
    """The client library with partitions of a log that was replaced: their ends."""

    def __init__(self, committed: dict[TP, int | None], ends: dict[TP, int]) -> None:
        self.offsets, self.ends = committed, ends
        self.at: dict[TP, int] = {}
        self.is_reachable = True
        self._consumer = self

    async def call_thread(self, function: Any, *args: Any) -> Any:
        return await function(*args)

    async def committed(self, tp: TopicPartition) -> int | None:
        return self.offsets[TP(*tp)]

    async def seek_to_committed(self) -> dict[TP, int | None]:
        self.at |= {tp: offset for tp, offset in self.offsets.items() if offset}
        return dict(self.offsets)

    async def highwaters(self, *tps: TP) -> dict[TP, int]:
        if not self.is_reachable:
            raise KafkaTimeoutError
        return {tp: self.ends[tp] for tp in tps}

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return dict.fromkeys(tps, 1)

    def seek(self, tp: TP, offset: int) -> None:
        self.at[tp] = offset


@pytest.mark.parametrize(
    ("is_reachable", "expected"),
    [(True, {TP0: None, TP1: 3, OTHER: None, UNREAD: 0}), (False, {TP0: 9, TP1: 3, OTHER: None, UNREAD: 0})],
)
async def test_a_committed_offset_beyond_the_end_of_a_replaced_log_counts_as_none(
    consumer: Consumer, receiver: Receiver, is_reachable: bool, expected: dict[TP, int | None]
) -> None:
    replaced = Replaced({TP0: 9, TP1: 3, OTHER: None, UNREAD: 0}, {TP0: 3, TP1: 3, OTHER: 3, UNREAD: 0})
    replaced.is_reachable = is_reachable
    app = SimpleNamespace(consumer=SimpleNamespace(_thread=replaced))
    assert {tp: await compat.committed_offset(app, tp) for tp in expected} == expected
    consumer._thread = replaced
    consumer._committed_offset = defaultdict(lambda: None)
    await consumer.perform_seek()
    assert replaced.at == {TP0: 1 if is_reachable else 9, TP1: 3}
    await consumer.drain({TP0: [Record(1), Record(2)]})
    assert receiver.batches == ([(TP0, [1, 2])] if is_reachable else [])
    assert consumer._should_commit(TP0, 3) == is_reachable


def test_the_positions_of_the_receivers_are_committed(consumer: Consumer, receiver: Receiver) -> None:
    receiver.positions = {TP0: 7}
    assert set(consumer._filter_tps_with_pending_acks()) == {TP0, TP1, UNREAD}
    assert set(consumer._filter_tps_with_pending_acks({TP1, UNREAD.topic})) == {TP1, UNREAD}
    assert [consumer._new_offset(tp) for tp in (TP0, TP1, UNREAD)] == [7, None, None]


def test_a_worker_without_tasks_closes_its_loop_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    loop = asyncio.new_event_loop()
    PromptWorker(faust.App("test"), loop=loop)._shutdown_loop()
    assert (pauses_s, loop.is_closed()) == ([], True)


def test_a_worker_awaits_the_cleanup_of_cancelled_tasks() -> None:
    loop, cleaned = asyncio.new_event_loop(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.set()

    async def cancelled() -> None:
        task = loop.create_task(work())
        await asyncio.sleep(0)
        task.cancel()

    worker = PromptWorker(faust.App("test"), loop=loop)
    loop.run_until_complete(cancelled())
    loop.run_until_complete(worker._sentinel_task())
    loop.close()
    assert cleaned.is_set()

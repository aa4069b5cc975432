"""The base class of stages: retention, timers and state by shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from faust.types import TP

from schemas.kafka.message import Message
from schemas.topics import LINKS
from streams.runtime import shard_stage as module
from streams.runtime.assignment import KeyedState, PartitionState
from streams.runtime.shard_stage import ShardStage
from tests.streams.runtime.test_assignment import FakeContext, Record, give, position, until

Partition = PartitionState[KeyedState[list[int]]]


class Stage(ShardStage[list[int]]):
    """Keeps the offsets of each shard; a message names its shard and is retained until released."""

    name = "stage"
    topic = LINKS

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.released: set[int] = set()
        self.dropped: list[list[int]] = []

    async def recover_shards(self) -> Callable[[Partition, str], list[int]]:
        return lambda partition, name: []

    def drop(self, state: list[int]) -> None:
        self.dropped.append(state)

    async def process(self, partition: Partition, message: Message) -> None:
        partition.state[message.key].append(message.offset)
        self.retain(partition, message, until=lambda: message.offset in self.released)

    async def give(self, offset: int, shard: str) -> None:
        await give(self.partitions, Record(offset, key=shard.encode()))

    def position(self) -> int | None:
        return position(self.partitions)

    async def wait_for_position(self, offset: int) -> None:
        await until(lambda: self.position() == offset)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(module, "RELEASE_S", 0.001)
    context = FakeContext()
    stage = Stage(context)
    stage.partitions.assign([TP(LINKS.name, 0)])
    await stage.partitions.ready()
    yield stage
    await context.stop()


async def test_retained_messages_are_acknowledged_in_order_once_their_condition_holds(stage: Stage) -> None:
    await stage.give(0, "a")
    await stage.give(1, "b")
    stage.released = {1}
    await asyncio.sleep(0.05)
    assert stage.position() == 0
    stage.released = {0, 1}
    await stage.wait_for_position(2)


async def test_a_retained_message_waits_for_published_records(stage: Stage) -> None:
    context: Any = stage.context
    context.log_takes.clear()
    await stage.give(0, "a")
    (partition,) = stage.partitions
    await stage.partitions.publish(partition, LINKS, "a", b"1")
    stage.released = {0}
    await asyncio.sleep(0.05)
    assert stage.position() == 0
    context.log_takes.set()
    await stage.wait_for_position(1)


async def test_a_revocation_drops_the_shards_and_acknowledges_nothing(stage: Stage) -> None:
    await stage.give(0, "a")
    await stage.give(1, "b")
    assert [(name, state) for _, name, state in stage.shards()] == [("a", [0]), ("b", [1])]
    assert (stage.owns("a"), stage.owns("c")) == (True, False)
    await stage.partitions.revoke()
    stage.released = {0, 1}
    await asyncio.sleep(0.05)
    assert (stage.dropped, stage.position(), stage.owns("a")) == ([[0], [1]], None, False)


async def test_timers_run_by_period_and_by_event(stage: Stage) -> None:
    runs: list[str] = []
    wake, ran = asyncio.Event(), asyncio.Event()

    async def note(name: str) -> None:
        runs.append(name)
        ran.set()

    stage.every(0.005, lambda: note("period"))
    await asyncio.wait_for(ran.wait(), 5)
    await asyncio.sleep(0.05)
    assert runs.count("period") > 1
    stage.every(None, lambda: note("event"), wake=wake, settle_s=0.02)
    await asyncio.sleep(0.03)
    assert "event" not in runs, "only when it is set"
    wake.set()
    await asyncio.sleep(0.01)
    wake.set()
    await asyncio.sleep(0.1)
    assert runs.count("event") == 1, "events in quick succession share one run"

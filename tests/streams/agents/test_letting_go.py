"""Stages whose partitions are taken from them at a bad moment, without a log: what each does of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from schemas import codec
from schemas.topics import LINK_HEALTH, LINKS, PATH_QUEUEING, PROBES, QUEUES, REJECTS
from streams.alerts.stage import AlertsStage
from streams.delays import stage as map
from streams.links import stage as links
from streams.queues import stage as queues
from streams.runtime import assignment
from streams.runtime.live_config import LiveConfig
from streams.runtime.route_table import PathBook
from streams.settings import StreamSettings
from tests.streams.agents.test_partitions import FakeRoom, Raw, settle

START_NS = 1_700_000_000_000_000_000
S = 1_000_000_000


class StageRoom(FakeRoom):
    """With what stages ask for, a log whose time the test sets, and a producer that may have no space."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = StreamSettings()
        self.registry = None
        self.inventory = SimpleNamespace(members={}, shards=lambda: ["fabric"], speeds_bps={})
        self.config = LiveConfig()
        self.offsets = SimpleNamespace(log_offset_ns=0, lines=dict)
        self.paths = PathBook()
        self.flows = SimpleNamespace(forget=lambda flows: None)
        self.now_ns = START_NS
        self.log_clock = SimpleNamespace(observe=lambda *_: None, now_ns=lambda _: self.now_ns)
        self.hear = lambda *evidence: None
        self.space = asyncio.Event()
        self.space.set()
        self.tasks: list[asyncio.Task[None]] = []

    def task(self, what: str, work: Any) -> asyncio.Task[None]:
        self.tasks.append(super().task(what, work))
        return self.tasks[-1]

    def fastest_bps(self) -> int:
        return 0

    async def send_raw(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        await self.space.wait()
        return await super().send_raw(topic, key, value)

    def topics(self) -> list[str]:
        return [topic for topic, _, _ in self.sent]


@pytest.fixture
async def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def nothing(*_: Any) -> Any:
        return {}

    monkeypatch.setattr(links, "read_last", nothing)
    monkeypatch.setattr(map, "read_tail", nothing)
    monkeypatch.setattr(assignment, "REVOKE_S", 0.05)
    room = StageRoom()
    yield room
    for task in room.tasks:
        task.cancel()
    await asyncio.gather(*room.tasks, return_exceptions=True)


async def give(stage: Any, raw: Raw) -> None:
    message = await stage.partitions.receive(raw)
    if message is not None:
        await stage._take(message)


def carrier(offset: int, up: bool) -> Raw:
    event = {
        "nic": "h1/eth1", "shard": "fabric", "run": 7, "event": offset, "kind": "CARRIER", "clock_ns": 0,
        "system_ns": 0, "interval_ns": 0, "carrier": up,
    }  # fmt: skip
    value = codec.encode(LINKS.record, event)
    return Raw(offset, TP(LINKS.name, 0), value, b"fabric", START_NS / S)


async def links_stage(room: StageRoom) -> links.LinksStage:
    stage = links.LinksStage(room)
    stage.partitions.assigned([TP(LINKS.name, 0)])
    await stage.partitions.ready()
    return stage


async def test_evidence_is_not_acknowledged_before_what_it_led_to_could_be_sent(
    room: StageRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_TICK_S", 0.001)
    stage = await links_stage(room)
    stage._start()
    room.space.clear()
    raw = carrier(0, up=False)
    giving = asyncio.ensure_future(give(stage, raw))
    await asyncio.sleep(0.01)
    room.now_ns += 60 * S
    await asyncio.sleep(0.05)
    assert not raw.acked
    room.log_takes.clear()
    room.space.set()
    await giving
    await asyncio.sleep(0.05)
    assert set(room.topics()) == {LINK_HEALTH.name}
    assert not raw.acked
    room.log_takes.set()
    await asyncio.wait_for(raw.acknowledged.wait(), 10)


async def test_evidence_that_waits_for_its_turn_does_not_grow_old(
    room: StageRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_TICK_S", 0.001)
    stage = await links_stage(room)
    raw = carrier(0, up=False)
    async with stage.partitions.working:
        stage._start()
        await asyncio.sleep(0.05)  # whoever acknowledges waits first in line
        giving = asyncio.ensure_future(give(stage, raw))
        await settle()
        room.now_ns += 60 * S
        room.space.clear()
    await asyncio.sleep(0.05)
    assert (giving.done(), raw.acked) == (False, False)
    room.space.set()
    await asyncio.wait_for(raw.acknowledged.wait(), 10)
    assert set(room.topics()) == {LINK_HEALTH.name}


async def test_evidence_that_waited_for_its_turn_when_its_partition_went_is_its_next_owners(
    room: StageRoom,
) -> None:
    stage = await links_stage(room)
    raw = carrier(0, up=False)
    async with stage.partitions.working:
        giving = asyncio.ensure_future(give(stage, raw))
        await settle()
        await stage.partitions.revoked()
    await giving
    assert (room.sent, raw.acked) == ([], False)


async def test_a_window_that_closes_after_its_partition_went_holds_no_room(room: StageRoom) -> None:
    stage = map.MapStage(room)
    stage.partitions.assigned([TP(PROBES.name, 0)])
    await stage.partitions.ready()

    def bad(offset: int) -> Raw:
        return Raw(offset, TP(PROBES.name, 0), b"hello", b"h1/eth1", START_NS / S + 5 * offset)

    await give(stage, bad(0))
    room.space.clear()
    closing = asyncio.ensure_future(give(stage, bad(1)))
    await settle()
    await stage.partitions.revoked()
    room.space.set()
    await asyncio.wait_for(closing, 1)
    assert stage._jobs == []
    assert set(room.topics()) == {REJECTS.name}


class Shard:
    """Has one block of queues to solve, and takes its time."""

    def __init__(self) -> None:
        self.solving, self.go_on = threading.Event(), threading.Event()

    def ready(self) -> bool:
        return not self.solving.is_set()

    def solve(self, now_ns: int) -> list[codec.Record]:
        self.solving.set()
        assert self.go_on.wait(10)
        return [{
            "shard": "fabric", "window": 1, "part": 0, "parts": 1, "window_start_ns": START_NS, "slot_ns": 1,
            "slots": 1, "synced": True, "paths": 1, "solved_ns": 1, "links": [],
        }]  # fmt: skip


async def solving_queues(room: StageRoom) -> tuple[queues.QueuesStage, Any, Shard]:
    stage = queues.QueuesStage(room)
    stage.partitions.assigned([TP(PATH_QUEUEING.name, 0)])
    await stage.partitions.ready()
    (held,) = stage.partitions
    shard = Shard()
    held.state.shards["fabric"] = queues._Shard(shard, None)
    stage._start()
    stage._came.set()
    assert await asyncio.to_thread(shard.solving.wait, 10)
    return stage, held, shard


async def test_a_block_that_is_solved_after_its_partition_went_is_not_sent(room: StageRoom) -> None:
    stage, _, shard = await solving_queues(room)
    await stage.partitions.revoked()
    shard.go_on.set()
    async with stage.partitions.working:
        assert room.topics() == []


async def test_what_came_during_a_solve_is_acknowledged_with_the_next(
    room: StageRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "KEPT_NS", 0)
    stage, held, shard = await solving_queues(room)
    raw = Raw(3, TP(PATH_QUEUEING.name, 0))
    held.acks.read(raw)
    held.state.kept.append((time.monotonic_ns(), raw.offset))
    shard.go_on.set()
    async with stage.partitions.working:
        assert (room.topics(), raw.acked) == ([QUEUES.name], False)
    stage._came.set()
    await asyncio.wait_for(raw.acknowledged.wait(), 10)


async def test_alerts_follow_their_evidence_once_however_often_it_was_assigned(
    room: StageRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    following: list[str] = []

    async def count(bootstrap: str, topic: str) -> int:
        following.append(topic)
        try:
            await asyncio.Event().wait()
        finally:
            following.remove(topic)
        return 1

    monkeypatch.setattr("streams.alerts.stage.partition_count", count)
    stage = AlertsStage(room)
    room.caught_up.clear()
    for _ in range(2):
        stage.partitions.assigned([TP(LINKS.name, 0)])
        await settle()
        await stage.partitions.revoked()
    stage.partitions.assigned([TP(LINKS.name, 0)])
    room.caught_up.set()
    await settle()
    assert following == [LINKS.name]
    await stage.partitions.revoked()
    assert following == []

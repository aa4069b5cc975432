"""Each stage at a revocation at a bad moment, without a log."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from schemas import codec
from schemas.topics import LINK_HEALTH, LINKS, PATH_QUEUEING, PROBES, QUEUES, REJECTS
from schemas.topology import Topology
from streams.alerts.stage import AlertsStage
from streams.delays import stage as map
from streams.links import stage as links
from streams.queues import stage as queues
from streams.runtime import assignment, shard_stage
from streams.runtime.faust.groupless_stage import GrouplessStage
from streams.runtime.live_config import LiveConfig
from streams.runtime.route_table import RouteTable
from streams.runtime.settings import StreamSettings
from tests.streams.runtime.test_assignment import FakeContext, Record, give, position, settle, until

START_NS = 1_700_000_000_000_000_000
S = 1_000_000_000
MS = 1_000_000


class StageContext(FakeContext):
    """A context with tables, a log whose time the test sets, and a producer that may be full."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = StreamSettings()
        self.registry = None
        self.inventory = SimpleNamespace(members={}, shards=lambda: ["fabric"], speeds_bps={})
        self.config = LiveConfig()
        self.clocks = SimpleNamespace(log_offset_ns=0, models=dict)
        self.routes, self.topology = RouteTable(), Topology()
        self.flows = SimpleNamespace(forget=lambda flows: None)
        self.now_ns = START_NS
        self.log_clock = SimpleNamespace(observe=lambda *_: None, now_ns=lambda _: self.now_ns)
        self.taps: dict[str, Any] = {}
        self.tables = SimpleNamespace(clocks=self.clocks)
        self.space = asyncio.Event()
        self.space.set()

    def fastest_bps(self) -> int:
        return 0

    def note(self, subject: str, text: str) -> None:
        """Take a note for the service manager, which these tests do not have."""

    async def send_bytes(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        await self.space.wait()
        return await super().send_bytes(topic, key, value)

    def topics(self) -> list[str]:
        return [topic for topic, _, _ in self.sent]


@pytest.fixture
async def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def nothing(*_: Any) -> Any:
        return {}

    monkeypatch.setattr(links, "read_last", nothing)
    monkeypatch.setattr(map, "read_tail", nothing)
    monkeypatch.setattr(assignment, "REVOKE_S", 0.05)
    context = StageContext()
    yield context
    await context.stop()


def carrier(offset: int, up: bool) -> Record:
    event = {
        "nic": "h1/eth1",
        "shard": "fabric",
        "run": 7,
        "event": offset,
        "kind": "CARRIER",
        "clock_ns": 0,
        "system_ns": 0,
        "interval_ns": 0,
        "carrier": up,
    }
    value = codec.encode(LINKS.record, event)
    return Record(offset, TP(LINKS.name, 0), value, b"fabric", START_NS // MS)


async def wait_for_position(stage: Any, offset: int) -> None:
    await until(lambda: position(stage.partitions, TP(stage.topic.name, 0)) == offset)


async def links_stage(context: StageContext) -> links.LinksStage:
    stage = links.LinksStage(context)
    stage.partitions.assign([TP(LINKS.name, 0)])
    await stage.partitions.ready()
    return stage


async def test_evidence_is_acknowledged_after_its_records(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_stage, "RELEASE_S", 0.001)
    stage = await links_stage(context)
    context.space.clear()
    giving = asyncio.ensure_future(give(stage.partitions, carrier(0, up=False)))
    await asyncio.sleep(0.01)
    context.now_ns += 60 * S
    await asyncio.sleep(0.05)
    assert position(stage.partitions) == 0
    context.log_takes.clear()
    context.space.set()
    await giving
    await asyncio.sleep(0.05)
    assert set(context.topics()) == {LINK_HEALTH.name}
    assert position(stage.partitions) == 0
    context.log_takes.set()
    await wait_for_position(stage, 1)


async def test_evidence_that_waits_for_the_lock_is_retained_for_the_full_time(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_stage, "RELEASE_S", 0.001)
    stage = await links_stage(context)
    async with stage.partitions.lock:
        await asyncio.sleep(0.05)  # the acknowledgement waits for the lock first
        giving = asyncio.ensure_future(give(stage.partitions, carrier(0, up=False)))
        await settle()
        context.now_ns += 60 * S
        context.space.clear()
    await asyncio.sleep(0.05)
    assert (giving.done(), position(stage.partitions)) == (False, 0)
    context.space.set()
    await wait_for_position(stage, 1)
    assert set(context.topics()) == {LINK_HEALTH.name}


async def test_evidence_that_waits_at_a_revocation_is_left_to_the_next_owner(
    context: StageContext,
) -> None:
    stage = await links_stage(context)
    async with stage.partitions.lock:
        giving = asyncio.ensure_future(give(stage.partitions, carrier(0, up=False)))
        await settle()
        await stage.partitions.revoke()
    await giving
    assert (context.sent, position(stage.partitions)) == ([], None)


async def test_a_window_that_closes_after_a_revocation_uses_no_capacity(context: StageContext) -> None:
    stage = map.DelayStage(context)
    stage.partitions.assign([TP(PROBES.name, 0)])
    await stage.partitions.ready()

    def bad(offset: int) -> Record:
        return Record(offset, TP(PROBES.name, 0), b"hello", b"h1/eth1", START_NS // MS + 5_000 * offset)

    await give(stage.partitions, bad(0))
    context.space.clear()
    closing = asyncio.ensure_future(give(stage.partitions, bad(1)))
    await settle()
    await stage.partitions.revoke()
    context.space.set()
    await asyncio.wait_for(closing, 1)
    assert stage._jobs == []
    assert set(context.topics()) == {REJECTS.name}


async def test_a_window_that_cannot_be_published_costs_no_other(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are done as well: the next owner would fail the same way."""
    stage = map.DelayStage(context)
    stage.partitions.assign([TP(PROBES.name, 0)])
    await stage.partitions.ready()
    (partition,) = stage.partitions
    published = []

    async def publish(job: Any) -> None:
        if job.window.source == "bad":
            raise ValueError("bad")
        published.append(job.window.source)

    monkeypatch.setattr(context, "survive", lambda *_: contextlib.suppress(ValueError))
    monkeypatch.setattr(stage, "_publish_fits", publish)
    monkeypatch.setattr(stage, "_publish_delays", publish)
    partition.undone, partition.next_offset = dict.fromkeys(range(3)), 3
    windows = [SimpleNamespace(source=name, offsets=[n]) for n, name in enumerate(("good", "bad", "better"))]
    stage._waiting_samples = 30
    stage._jobs = [map._Job(partition, window, 0, 10) for window in windows]
    stage._job_queued.set()
    await until(lambda: partition.commit_position == 3)
    assert published == ["good", "better"] * 2
    assert stage._waiting_samples == 0


class Shard:
    """Has one block of queues to solve, and solves it slowly."""

    shard, fold, usual_slot_ns = "fabric", 1, 1

    def __init__(self) -> None:
        self.solving, self.go_on = threading.Event(), threading.Event()

    def skip_late(self, max_late_ns: int) -> int:
        """Return that nothing is late."""
        return 0

    def keep_up(self, spent_ns: int, waited_ns: int) -> None:
        """Take the cost of the block."""

    def ready(self) -> bool:
        return not self.solving.is_set()

    def solve(self, now_ns: int) -> list[dict[str, Any]]:
        self.solving.set()
        assert self.go_on.wait(10)
        return [
            {
                "shard": "fabric",
                "window": 1,
                "part": 0,
                "parts": 1,
                "window_start_ns": START_NS,
                "slot_ns": 1,
                "slots": 1,
                "synced": True,
                "paths": 1,
                "solved_ns": 1,
                "links": [],
            }
        ]


async def solving_queues(context: StageContext) -> tuple[queues.QueuesStage, Any, Shard]:
    stage = queues.QueuesStage(context)
    stage.partitions.assign([TP(PATH_QUEUEING.name, 0)])
    await stage.partitions.ready()
    (partition,) = stage.partitions
    shard = Shard()
    partition.state["fabric"] = queues._Shard(shard, None)
    stage._arrived.set()
    assert await asyncio.to_thread(shard.solving.wait, 10)
    return stage, partition, shard


async def test_a_block_that_is_solved_after_a_revocation_is_not_sent(context: StageContext) -> None:
    stage, _, shard = await solving_queues(context)
    await stage.partitions.revoke()
    shard.go_on.set()
    async with stage.partitions.lock:
        assert context.topics() == []


async def test_a_message_received_during_a_solve_is_acknowledged_after_the_next(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "RETAIN_NS", 0)
    stage, partition, shard = await solving_queues(context)
    partition.undone[3] = None
    partition.next_offset = 4
    received_ns = time.monotonic_ns()
    stage.retain(
        partition,
        SimpleNamespace(offset=3),
        lambda: stage._is_solved(partition, received_ns),
    )
    shard.go_on.set()
    async with stage.partitions.lock:
        assert (context.topics(), partition.commit_position) == ([QUEUES.name], 3)
    stage._arrived.set()
    await wait_for_position(stage, 4)


async def test_alerts_follow_only_the_last_assignment_of_their_evidence(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    following: list[str] = []

    async def count(bootstrap: str, topic: str) -> int:
        following.append(topic)
        try:
            await asyncio.Event().wait()
        finally:
            following.remove(topic)
        return 1

    monkeypatch.setattr("streams.runtime.faust.groupless_stage.partition_count", count)
    stage = GrouplessStage(context, AlertsStage())
    context.caught_up.clear()
    for _ in range(2):
        stage.partitions.assign([TP(LINKS.name, 0)])
        await settle()
        await stage.partitions.revoke()
    stage.partitions.assign([TP(LINKS.name, 0)])
    context.caught_up.set()
    await settle()
    assert following == [LINKS.name]
    await stage.partitions.revoke()
    assert following == []

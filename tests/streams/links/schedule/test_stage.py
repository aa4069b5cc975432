"""The probe-schedule stage: when it plans and publishes, as routes and clocks change."""

from __future__ import annotations

from typing import Any

from schemas import codec
from schemas.kafka import partition_of
from schemas.records import ProbeSchedule
from schemas.topics import CLOCK_OFFSETS, INVENTORY, PATHS, PROBE_SCHEDULES, Topic
from streams.links.schedule.stage import REPUBLISH_NS, ScheduleStage
from streams.runtime.operator import Output, Owner
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimRunner
from tests.records import make, make_part

S = 1_000_000_000
START_NS = 1_800_000_000 * S
NICS = ("h0/eth1", "h1/eth1")


class Fabric:
    """Two NICs with two paths, whose schedules one worker plans."""

    def __init__(self) -> None:
        self.runner = SimRunner([ScheduleStage()], START_NS)
        for nic in NICS:
            self.put(INVENTORY, nic, make("Nic", nic=nic, host=nic[:2], shard="fabric", clock=nic,
                                          slot_ns=5_000_000, slot_probes=2, probe_port=9000))  # fmt: skip
        for nic, peer in (NICS, NICS[::-1]):
            self.route(nic, peer, (1, 2))

    def put(self, topic: Topic[Any], key: str, record: Any) -> None:
        self.runner.publish(Output(topic, key, record), self.runner.now_ns)

    def route(self, nic: str, peer: str, paths: tuple[int, ...]) -> None:
        maps = [
            make_part("PathMaps", "PathMap", path=path, leg=leg, links=[f"{nic[:2]}:eth1>s{path}:p1"],
                      found="TRACED", complete=True)
            for path in paths
            for leg in ("REQUEST", "ANSWER")
        ]  # fmt: skip
        record = make("PathMaps", nic=nic, peer=peer, shard="fabric", paths=maps)
        self.put(PATHS, f"{nic}>{peer}", record)

    def clocks(self, offset_ns: int = 0) -> None:
        now_ns = self.runner.now_ns
        states = [
            make_part(
                "ClockOffsets", "ClockState", clock=nic, state="SYNCED", at_ns=now_ns, offset_ns=offset_ns
            )
            for nic in NICS
        ]
        record = make("ClockOffsets", shard="fabric", window=now_ns // S, part=0, parts=1, clocks=states,
                      window_start_ns=now_ns // S * S, window_end_ns=(now_ns // S + 1) * S)  # fmt: skip
        self.put(CLOCK_OFFSETS, "fabric/0", record)

    def after(self, seconds: float) -> list[ProbeSchedule]:
        outputs = self.runner.advance(self.runner.now_ns + round(seconds * S))
        assert self.runner.rejected == []
        assert {each.output.topic for each in outputs} <= {PROBE_SCHEDULES}
        for each in outputs:
            codec.encode("ProbeSchedule", each.output.record)
        return [each.output.record for each in outputs]


def test_schedules_wait_for_clocks_and_follow_routes_once_they_are_calm() -> None:
    fabric = Fabric()
    assert fabric.after(5.5) == []
    fabric.clocks()
    assert sorted(each["nic"] for each in fabric.after(1)) == sorted(NICS)
    assert fabric.after(10) == []
    for _ in range(3):
        fabric.route(*NICS, (1, 2))
        assert fabric.after(1) == [], "the same routes"
    fabric.route(*NICS, (1, 2, 3))
    assert fabric.after(1.5) == []
    (first, *_) = fabric.after(4)
    assert set(first["path"]) == {1, 2, 3}


def test_a_change_without_an_end_is_planned_after_some_seconds() -> None:
    fabric = Fabric()
    fabric.clocks()
    fabric.after(5)
    published = []
    for path in range(3, 16):
        fabric.route(*NICS, (1, 2, path))
        published += fabric.after(1)
    assert published


def test_a_schedule_is_published_again_when_it_is_old_or_its_clock_has_drifted() -> None:
    fabric = Fabric()
    fabric.clocks()
    assert len(fabric.after(5)) == 2
    fabric.clocks(offset_ns=10_000)
    assert fabric.after(5) == []
    fabric.clocks(offset_ns=30_000)
    assert [each["offset_ns"] for each in fabric.after(5)] == [30_000, 30_000]
    published = []
    for _ in range(REPUBLISH_NS // S // 50 + 1):
        fabric.clocks(offset_ns=30_000)
        published.append(len(fabric.after(50)))
    assert published[-2:] == [2, 0]
    assert sum(published) == 2


def test_only_shards_of_own_partitions_are_planned() -> None:
    fabric = Fabric()
    fabric.clocks()
    fabric.after(0.1)
    number = partition_of("fabric", 4)
    for numbers, is_own in (({number}, True), ({0, 1, 2, 3} - {number}, False)):
        owner = Owner(0, frozenset(numbers), 4, StreamSettings())
        operator = ScheduleStage().make(owner, -1, fabric.runner.tables)
        made = operator.advance(fabric.runner._moment(fabric.runner.now_ns), fabric.runner.tables)
        outputs = made() if callable(made) else made
        assert [each.key for each in outputs] == (sorted(NICS) if is_own else [])

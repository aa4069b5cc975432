"""Probe schedules of a shard, by known routes, slots and clocks."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth import LeafSpine
from fabrictime.bench.detect.shared_fabric import route_table
from native.core import ClockLine
from schemas import codec
from schemas.topics import PROBE_SCHEDULES
from streams.links.schedule.probe_schedule import plan_shard, records_of
from streams.runtime.route_table import RouteTable, pair_key

MS = 1_000_000
T0 = 1_800_000_000 * 1000 * MS
PORTS = 4


NICS = LeafSpine(16).nic_names()


@pytest.fixture(scope="module")
def book() -> RouteTable:
    fabric = LeafSpine(16)
    nic = np.repeat(np.arange(16), 5 * PORTS)
    peer = (nic + 1 + np.tile(np.repeat(np.arange(5), PORTS), 16) * 3) % 16
    spine = np.tile(np.arange(PORTS), 16 * 5)
    there, back = fabric.routes(nic, peer, spine), fabric.routes(peer, nic, spine)
    return route_table(fabric, nic, peer, 9320 + spine, there, back)


def test_every_prober_gets_slots_of_its_own_rate_over_all_its_paths(book):
    paces = dict.fromkeys(NICS, (5 * MS, 4)) | {NICS[3]: (2 * MS, 1)}
    plans = plan_shard(paces, book)
    assert plans.keys() == set(NICS)
    assert plan_shard(dict(reversed(paces.items())), book) == plans
    for nic, plan in plans.items():
        assert (plan.slot_ns, plan.probes_per_slot) == paces[nic]
        assert len(plan.paths) % plan.probes_per_slot == 0
        assert len(set(plan.paths)) == 5 * PORTS
    phases = sorted(plan.phase for nic, plan in plans.items() if paces[nic][1] == 4)
    assert phases == pytest.approx(np.arange(15) / 15)


def test_a_nic_without_slots_or_paths_gets_no_schedule_but_is_probed(book):
    quiet = NICS[5]
    plans = plan_shard({nic: (5 * MS, 2) for nic in NICS if nic != quiet} | {"new/eth1": (5 * MS, 2)}, book)
    assert plans.keys() == set(NICS) - {quiet}
    assert any(peer == quiet for plan in plans.values() for peer, _ in plan.paths)
    assert plan_shard({}, book) == {}
    assert plan_shard(dict.fromkeys(NICS, (MS, 1)), RouteTable()) == {}


def test_paths_with_unknown_links_are_probed_too():
    book = RouteTable()
    for nic, peer in (("a/e", "b/e"), ("b/e", "a/e")):
        paths = [
            {"path": port, "leg": "REQUEST", "links": [], "found": "UNKNOWN", "complete": False,
             "since_ns": 0, "changes": 0, "contradiction": None}
            for port in (7, 8, 9)
        ]  # fmt: skip
        record = {"nic": nic, "peer": peer, "shard": "fabric", "run": 1, "traced_ns": 0, "paths": paths}
        book.take(pair_key(nic, peer).encode(), codec.encode("PathMaps", record))
    plans = plan_shard({"a/e": (MS, 1), "b/e": (MS, 1)}, book)
    for nic, peer in (("a/e", "b/e"), ("b/e", "a/e")):
        counts = [plans[nic].paths.count((peer, port)) for port in (7, 8, 9)]
        assert counts == [2, 2, 2]


def test_records_carry_the_clock_s_line_and_begin_at_round_times(book):
    plans = plan_shard(dict.fromkeys(NICS, (5 * MS, 4)), book)
    nic = NICS[0]
    line = ClockLine(T0 - 5_000, 4_321, -17.25, 40.0, 0.5)
    first = records_of(plans, "fabric", {nic: line}, T0 + 123_456)
    assert first.keys() == {nic}, "those whose clock is not known wait"
    record = codec.decode(codec.encode(PROBE_SCHEDULES.record, first[nic]), PROBE_SCHEDULES.record)
    assert (record["clock_at_ns"], record["offset_ns"], record["drift_ppb"]) == (T0 - 5_000, 4_321, -17.25)
    slots = [(record["peers"][peer], path) for peer, path in zip(record["peer"], record["path"], strict=True)]
    assert tuple(slots) == plans[nic].paths
    round_ns = 5 * MS * len(slots) // 4
    later = records_of(plans, "fabric", {nic: line}, T0 + 987_654_321)[nic]
    assert (later["begin_ns"] - record["begin_ns"]) % round_ns == 0

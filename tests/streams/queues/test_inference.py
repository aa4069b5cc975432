"""A shard's queues from its sources' records: of queues that are known, and with inconsistent records."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fabrictime.bench._truth import LeafSpine
from fabrictime.bench.detect.queues import INCASTS, WARM_UP_SLOTS
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, SLOT_NS, draw, link_numbers
from fabrictime.bench.detect.shared_queues import depths
from schemas import codec
from schemas.codec import BadRecord
from streams.queues.inference import ShardQueues
from streams.queues.slot_fold import Fold
from streams.queues.utilisation import busy_shares
from streams.queues.validation import validate_queueing
from streams.runtime.pipeline_constants import SUB_SLOTS, slot_ns_of
from streams.runtime.route_table import RouteTable

NOW_NS = EPOCH_NS


@pytest.fixture(scope="module")
def simulated():
    traffic = replace(INCASTS, load=(0.6, 0.6), idle=0.0)
    scene = draw(LeafSpine(16), traffic, 11, 0.25, 4_000)
    return scene, [record for _, record in scene.infer()]


def queues_of(scene, records):
    """Return true depth, inferred depth and bound after the warm-up, [slots, links behind a send stamp]."""
    inferred, bound, used = depths(scene, records)
    used[:WARM_UP_SLOTS] = False
    cells = np.ix_(used, np.flatnonzero(scene.crossed))
    return scene.slots.depth_bytes[cells], inferred[cells], bound[cells]


def test_depths_match_the_simulated_queues(simulated):
    true, inferred, bound = queues_of(*simulated)
    assert np.sqrt(((inferred - true) ** 2).mean()) < 0.4 * np.sqrt((true**2).mean())
    deep = true.mean(axis=0) > 20_000
    assert np.corrcoef(true[:, deep].ravel(), inferred[:, deep].ravel())[0, 1] > 0.9
    seen = bound > 0
    assert (np.abs(inferred - true)[seen] <= bound[seen]).mean() > 0.9


def test_records_are_complete_and_valid(simulated):
    _, records = simulated
    assert records
    for record in records:
        assert codec.decode(codec.encode("LinkQueues", record), "LinkQueues")["shard"] == "fabric"
        assert record["window_start_ns"] % (record["slot_ns"] * record["slots"]) == 0
        for link in record["links"]:
            assert len(link["slot"]) == len(link["depth_bytes"])
            assert all(0 <= slot < record["slots"] for slot in link["slot"])
            assert link["bound_bytes"] > 0
    windows = [(r["slot_ns"], r["window"], r["part"]) for r in records]
    assert len(set(windows)) == len(windows)
    assert {r["slot_ns"] for r in records} >= {SLOT_NS}


def test_utilisation_follows_from_idle_probes_alone():
    rng = np.random.default_rng(3)
    share = rng.uniform(0.05, 0.8, 20)
    hops = np.stack([rng.permutation(20)[:3] for _ in range(200)]).astype(np.int32)
    free = np.prod(1 - share[hops], axis=1)
    singles = np.full(200, 2_000)
    found, sigma = busy_shares(np.arange(0, 601, 3), hops.ravel(), singles, rng.binomial(singles, free), 20)
    assert np.abs(found - share).max() < 0.03
    assert np.mean(np.abs(found - share) <= 2.5 * sigma) > 0.8


def queueing(**changes):
    record = {
        "shard": "fabric",
        "source": "fabric.probes/0",
        "first_offset": 0,
        "next_offset": 5,
        "part": 0,
        "parts": 1,
        "start_ns": NOW_NS,
        "slot_ns": 250_000,
        "complete_ns": NOW_NS + 40_000_000,
        "synced": True,
        "nics": ["a/eth0", "b/eth0"],
        "nic": [0],
        "peer": [1],
        "path": [9320],
        "direction": [1],
        "floor_ns": [5e3],
        "noise_ns": [8.0],
        "singles": [3],
        "idle": [1],
        "lost": [0],
        "cells": [2],
        "slot": [0, 9],
        "count": [1, 2],
        "min_ns": [0.0, 5.0],
        "mean_ns": [0.0, 9.0],
        "at_ns": [7, 249_999],
        "dscp": [26],
        "ce": [0, 1],
    }
    return record | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peer": []}, "peer: 0 elements, expected 1"),
        ({"count": [1]}, "count: 1 elements, expected 2"),
        ({"cells": [3]}, "cells: 3 together, expected 2"),
        ({"nic": [2]}, "nic: 2, expected below 2"),
        ({"count": [0, 1]}, "count: 0, expected at least 1"),
        ({"mean_ns": [0.0, 1e12]}, "mean_ns"),
        ({"slot": [0, 2**31 - 1]}, "slot: 2147483647"),
        ({"slot_ns": 0}, "slot_ns"),
        ({"at_ns": [0]}, "at_ns: 1 elements, expected 2, or none"),
        ({"at_ns": [0, 250_000]}, "at_ns: 250000"),
        ({"dscp": [0, 0]}, "dscp: 2 elements, expected 1, or none"),
        ({"ce": [1]}, "ce: 1 elements, expected 2, or none"),
        ({"ce": [2, 0]}, "ce: more marks than samples"),
        ({"complete_ns": NOW_NS + 3_600 * 10**9}, "complete_ns"),
    ],
)
def test_inconsistent_records_are_refused(changes, reason):
    assert validate_queueing(queueing(), NOW_NS)
    with pytest.raises(BadRecord, match=reason):
        validate_queueing(queueing(**changes), NOW_NS)


def test_paths_without_a_route_are_only_counted():
    shard = ShardQueues("fabric", lambda link: 0)
    for n in range(20):
        shard.take(
            queueing(
                first_offset=5 * n,
                next_offset=5 * n + 5,
                start_ns=NOW_NS + 50_000_000 * n,
                complete_ns=NOW_NS + 50_000_000 * n,
            ),
            RouteTable(),
        )
        while shard.ready():
            assert shard.solve(0) == []
    assert shard.unknown_paths == 1


def test_a_clock_error_is_no_queue(simulated, monkeypatch):
    """One NIC's clock falls back by 0.2 ms, 250 kB at this rate: all its packets seem to wait."""
    scene, records = simulated
    true, inferred, _ = queues_of(scene, records)
    nic = scene.fabric.nic_names()[3]

    def off(when, batch):
        if when < EPOCH_NS + 120_000_000:
            return when, batch
        back = np.repeat([-1 if peer == nic else 0 for peer in batch.peers], np.diff(batch.start))
        shift = (1 if batch.nic == nic else back) * np.int64(200_000)
        return when, replace(batch, forward=batch.forward + shift, reverse=batch.reverse - shift)

    batches = [off(*each) for each in scene.batches()]
    monkeypatch.setattr(type(scene), "batches", lambda scene: batches)
    _, shifted, _ = queues_of(scene, [record for _, record in scene.infer()])
    ours, theirs = (np.sqrt(((each - true) ** 2).mean()) for each in (inferred, shifted))
    assert theirs < 2 * ours


def test_repeated_offsets_of_a_source_are_skipped(simulated):
    shard = ShardQueues("fabric", lambda link: 0)
    book = RouteTable()
    shard.take(queueing(), book)
    shard.take(queueing(first_offset=3, next_offset=9, complete_ns=NOW_NS + 10**9), book)
    assert shard._sources["fabric.probes/0"].complete_ns == NOW_NS + 40_000_000


def take(shard, n, **changes):
    """Take the n-th record of the source; return the time up to which the source is complete."""
    number = {"first_offset": 5 * n, "next_offset": 5 * n + 5, "complete_ns": NOW_NS + 50_000_000 * n}
    shard.take(queueing(**number | changes), RouteTable())
    return (shard._sources["fabric.probes/0"].complete_ns - NOW_NS) // 50_000_000


@pytest.mark.parametrize("wrong", [{"next_offset": 2**40}, {"first_offset": 2**40, "next_offset": 2**40 + 5}])
def test_one_record_with_wrong_offsets_does_not_hide_the_records_after_it(wrong):
    shard = ShardQueues("fabric", lambda link: 0)
    assert [take(shard, n) for n in range(3)] == [0, 1, 2]
    assert take(shard, 3, **wrong) == 2
    assert [take(shard, n) for n in (3, 4)] == [3, 4]


def test_a_source_that_left_out_many_messages_is_followed_from_its_second_record_on():
    shard = ShardQueues("fabric", lambda link: 0)
    take(shard, 1)
    assert [take(shard, n) for n in (100_000, 100_001, 100_002)] == [1, 100_001, 100_002]


def test_one_record_with_another_slot_length_changes_none():
    """Slots of 1 us instead of 250 us take a hundred times as long to solve."""
    shard = ShardQueues("fabric", lambda link: 0)
    take(shard, 0)
    for n in (1, 3, 5):
        take(shard, n, slot_ns=1_000)
        assert take(shard, n + 1) == n + 1
        assert shard._slot_ns == 250_000
    take(shard, 7, slot_ns=1_000_000)
    take(shard, 8, slot_ns=1_000_000)
    assert shard._slot_ns == 1_000_000


def test_slots_follow_the_rate_of_the_links():
    assert slot_ns_of(1_000_000_000) == 10_000_000
    assert slot_ns_of(10_000_000_000) == 1_000_000
    assert slot_ns_of(400_000_000_000) == 250_000


def test_a_backlog_makes_slots_longer_and_loses_none(simulated, monkeypatch):
    scene, _ = simulated
    waits_ns = iter([0] * 12 + [260_000_000] + [0] * 1_000)
    solve = ShardQueues.solve

    def kept_up(shard, solved_ns):
        made = solve(shard, solved_ns)
        shard.keep_up(2 * shard._solved_in_ns, next(waits_ns))
        return made

    monkeypatch.setattr(ShardQueues, "solve", kept_up)
    coarse = [record for _, record in scene.infer() if record["slots"] > 1]
    assert [each["fold"] for each in coarse] == sorted(each["fold"] for each in coarse)
    assert {each["fold"] for each in coarse} == {1, 4}
    assert all(each["slot_ns"] == each["fold"] * SLOT_NS for each in coarse)
    spans = sorted((each["window_start_ns"], each["slot_ns"] * each["slots"]) for each in coarse)
    assert all(begin + length == after for (begin, length), (after, _) in itertools.pairwise(spans))
    number = link_numbers(scene.fabric)
    errors, true_depths = [], []
    for record in coarse:
        first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
        true = scene.slots.depth_bytes[first : first + record["fold"] * record["slots"]]
        if record["fold"] == 1 or len(true) < record["fold"] * record["slots"]:
            continue
        for link in record["links"]:
            of_slots = true[:, number[link["link"]]].reshape(record["slots"], -1).mean(axis=1)
            errors += (np.asarray(link["depth_bytes"]) - of_slots[link["slot"]]).tolist()
            true_depths += of_slots[link["slot"]].tolist()
    assert len(true_depths) > 50
    assert np.sqrt(np.mean(np.square(errors))) < 0.5 * np.sqrt(np.mean(np.square(true_depths)))


def test_blocks_with_longer_slots_are_whole_blocks_without() -> None:
    for slot_ns in (31_250, 125_000, 1_250_000):
        for links in (10, 1_001):
            queues = ShardQueues("fabric", lambda link: 10**10)
            queues._slot_ns = slot_ns
            for number in range(links):
                queues._routes.link_number(f"a:{number}>b:{number}")
            for fold in (2, 4, 8):
                block_ns = queues._block_ns(fold)
                assert block_ns % queues._block_ns(1) == 0
                assert block_ns % (slot_ns * SUB_SLOTS * fold) == 0
                assert block_ns >= 5 * slot_ns * SUB_SLOTS * fold
                assert block_ns <= 8 * queues._block_ns(1)


@pytest.mark.parametrize(("slot_ms", "fold"), [(1, 8), (10, 8), (25, 4), (100, 1), (250, 1)])
def test_slots_are_combined_up_to_a_tenth_of_a_second(slot_ms: int, fold: int) -> None:
    queues = ShardQueues("fabric", lambda link: 10**9)
    queues._slot_ns, queues._pace = slot_ms * 1_000_000 // SUB_SLOTS, Fold(8)
    queues._set_block_ns()
    assert queues.fold == fold


def test_the_newest_of_late_blocks_comes_first() -> None:
    queues = ShardQueues("fabric", lambda link: 10**10)
    take(queues, 1)
    queues._next_block = NOW_NS
    assert queues.ready()
    block_ns = queues._solved_in_ns
    assert queues.skip_late(0) == 4 * block_ns, "50 ms are complete: five blocks"
    take(queues, 20)
    assert queues.skip_late(10**9 + 10**6) == 0, "not late enough"
    skipped_ns = queues.skip_late(10**8)
    assert skipped_ns == queues.skipped_ns - 4 * block_ns > 9 * 10**8
    assert queues.next_block_ns + block_ns == NOW_NS + 50_000_000 * 20
    assert queues.ready()
    assert queues.skip_late(10**8) == 0


def test_blocks_are_longer_with_many_links_and_none_is_solved_twice() -> None:
    queues = ShardQueues("fabric", lambda link: 10**10)
    queues._slot_ns, queues._next_block = 250_000, 101
    queues._solved_in_ns = before_ns = queues._block_ns(1)
    for number in range(1001):
        queues._routes.link_number(f"a:{number}>b:{number}")
    queues._set_block_ns()
    after_ns = queues._solved_in_ns
    assert after_ns > 2 * before_ns
    assert 101 * before_ns <= queues._next_block * after_ns < 101 * before_ns + after_ns
    before = queues._next_block
    queues._set_block_ns()
    assert queues._next_block == before

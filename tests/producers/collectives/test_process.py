"""A traced process: budget, reasons of kept operations, hangs, acknowledgements and restarts."""

from __future__ import annotations

import numpy as np
import pytest

from native.collectives.reader import QUEUE_PAIR, SOURCES, SPLIT, TRANSFER
from schemas.records import CollectiveSource
from tests.producers.collectives.segments import MPI, Segment, Traced, begun, ended


@pytest.fixture
def segment():
    made = Segment()
    made.communicator()
    yield made
    made.close()


def summed(records):
    return sum(each["count"] for record in records for each in record["summaries"])


def kept(records, reason=None):
    found = [each for record in records for each in record["operations"]]
    return [each for each in found if reason in (None, each["kept"])]


@pytest.mark.parametrize(("rate", "seconds", "tick"), [(10, 900, 1.0), (1000, 600, 1.0), (100_000, 20, 0.25)])
def test_a_rank_stays_within_its_budget(segment, rate, seconds, tick):
    """All operations are in summaries; encoded records stay within 1.5 MB an hour at any rate."""
    traced, sequence = Traced(segment), 0
    count = int(rate * tick)
    for now in np.arange(0, seconds, tick):
        ends = ended(np.arange(sequence, sequence + count))
        sequence += count
        assert segment.put(np.concatenate([begun(ends), ends])) == 2 * count
        traced.step(float(now))
    traced.step(seconds + 3600)
    assert summed(traced.records) == sequence
    for begin in range(0, seconds, 10):
        for end in range(begin + 10, seconds + 1, 10):
            size = sum(size for at, size in traced.sizes if begin <= at < end)
            assert size <= 250_000 + (end - begin) * 1_250_000 / 3600, "at most 1.5 MB in any hour"
    last = [record for record in traced.records if record["summaries"]][-10:]
    assert kept(last), "some operations are always kept"
    inside = [at for at, _ in traced.sizes if at < seconds]
    assert max(np.diff(inside)) <= 4


def test_ranks_choose_the_same_operations():
    chosen = []
    for rank in (0, 1):
        segment = Segment()
        segment.communicator(rank=rank)
        traced = Traced(segment, f"{rank}-1")
        for now in range(20):
            segment.put(ended(np.arange(now * 2000, now * 2000 + 2000)))
            traced.step(float(now))
        chosen.append({each["seq"] for each in kept(traced.records, "SAMPLED")})
        segment.close()
    assert chosen[0] == chosen[1]
    assert 50 < len(chosen[0]) < 20_000


def test_few_operations_are_all_kept(segment):
    traced = Traced(segment)
    segment.put(ended(np.arange(5), ns=np.arange(5) * 1000 + 1000))
    traced.step(0.0)
    traced.step(1.0)
    assert [each["kept"] for each in kept(traced.records)] == ["ALL"] * 5
    (summary,) = traced.records[0]["summaries"]
    wanted = {
        "count": 5,
        "bytes": 5 * 65536,
        "busy_ns": 15_000,
        "min_ns": 1000,
        "max_ns": 5000,
        "first_seq": 0,
    }
    assert wanted.items() <= summary.items()
    assert (summary["last_seq"], summary["p50_ns"]) == (4, pytest.approx(3000, rel=0.02))


def test_a_slow_operation_is_published_at_once(segment):
    traced = Traced(segment)
    for now in range(30):
        segment.put(ended(np.arange(now * 5000, now * 5000 + 5000)))
        traced.step(float(now))
    before = len(traced.records)
    segment.put(ended([200_000], ns=5_000_000))
    traced.step(30.5)
    traced.step(31.0)
    slow = kept(traced.records[before:], "SLOW") or [
        each for each in kept(traced.records[before:]) if each["seq"] == 200_000
    ]
    assert [(each["seq"], each["end_ns"] - each["begin_ns"]) for each in slow] == [(200_000, 5_000_000)]


def test_a_hang_shows_within_seconds_and_is_repeated_seldom(segment):
    traced = Traced(segment, running_s=2, repeat_s=5)
    event = ended([9], ns=3_000_000_000, channel=4)
    segment.put(begun(event))
    for now in np.arange(0, 30, 0.25):
        traced.step(float(now))
    shown = [at for (at, _), record in zip(traced.sizes, traced.records, strict=True) if record["operations"]]
    assert shown[0] <= 1.0
    assert 3 <= shown[1] - shown[0] <= 4, "soon for the first time: a stall is named with it"
    assert min(np.diff(shown[1:])) >= 5
    assert len(shown) >= 5
    running = kept(traced.records)[0]
    assert (running["kept"], running["end_ns"], running["seq"], running["channels"]) == (
        "RUNNING",
        None,
        9,
        4,
    )
    segment.put(event)
    for now in np.arange(30, 45, 0.25):
        traced.step(float(now))
    assert summed(traced.records) == 1
    assert all(each["kept"] != "RUNNING" for each in kept(traced.records[-2:]))


def test_a_process_that_dies_in_mid_collective_leaves_its_operation(segment):
    traced = Traced(segment)
    segment.put(begun(ended([3], ns=1_000_000)))
    traced.step(0.0)
    traced.process.gone = True
    traced.step(0.1)
    (record,) = traced.records
    assert (record["ended"], [each["kept"] for each in record["operations"]]) == (True, ["RUNNING"])
    assert traced.process.ended


def test_transfers_and_queue_pairs_are_published_with_their_operation(segment):
    segment.device("mlx5_0")
    traced = Traced(segment)
    end = ended([1], ns=900_000, flags=SPLIT, steps=64, sampled=16, network_late_ns=500_000, launch_ns=7)
    rows = np.repeat(end, 40)
    rows["kind"], rows["peer"], rows["channel"] = TRANSFER, 3, np.arange(40)
    rows["end_raw_ns"] = rows["begin_raw_ns"] + np.arange(40) * 1000
    pairs = ended(np.zeros(2, int))
    pairs["kind"], pairs["device"], pairs["communicator"] = QUEUE_PAIR, 0, 0xFFFF
    pairs["queue_pair"], pairs["completed"], pairs["created"] = 33, [10, 30], 77
    pairs["min_ns"], pairs["max_ns"], pairs["sum_ns"], pairs["p99_ns"] = (
        [10, 5],
        [90, 80],
        [500, 900],
        [80, 70],
    )
    segment.put(np.concatenate([begun(end), rows, end, pairs]))
    traced.step(0.0)
    traced.step(1.0)
    (record,) = traced.records
    (operation,) = record["operations"]
    assert (operation["network_late_ns"], operation["flush_ns"], operation["launch_ns"]) == (500_000, 0, 7)
    assert operation["sampled_share"] == 0.25
    assert [each["channel"] for each in record["transfers"]] == list(range(39, 23, -1)), "the longest"
    assert {each["operation"] for each in record["transfers"]} == {0}
    (pair,) = record["queue_pairs"]
    assert (pair["nic"], pair["count"], pair["mean_ns"], pair["p99_ns"]) == ("h1/eth0", 40, 35, 80)
    assert pair["flow_id"].endswith("/qp:mlx5_0:33:77"), "as in fabric.flows"
    assert record["communicators"][0]["nics"] == ["h1/eth0"]


def test_batches_continue_and_unacknowledged_events_are_read_again(segment):
    first = Traced(segment)
    segment.put(ended(np.arange(10)))
    first.step(0.0)
    first.step(1.0)
    segment.put(ended(np.arange(10, 30)))
    first.step(2.5, acknowledge=False)
    assert [(record["batch"], summed([record])) for record in first.records] == [(0, 10), (1, 20)]
    first.process.close()
    second = Traced(segment)
    segment.put(ended(np.arange(30, 35)))
    second.step(0.0)
    second.step(1.0)
    assert [(record["batch"], summed([record])) for record in second.records] == [(1, 25)], "the same record"


def test_without_the_log_the_job_loses_no_events():
    segment = Segment(ring_events=256)
    segment.communicator()
    traced = Traced(segment)
    for now in range(50):
        assert segment.put(ended(np.arange(now * 100, now * 100 + 100))) == 100
        traced.step(float(now), acknowledge=False)
    assert len(traced.records) == 1
    traced.process.acknowledged()
    traced.step(60.0)
    assert summed(traced.records) == 5000
    assert traced.records[-1]["events_dropped"] == 0
    segment.close()


def test_a_closed_segment_may_be_opened_again(segment):
    traced = Traced(segment)
    segment.put(ended([1]))
    segment.close_last()
    traced.step(1.0)
    traced.step(2.0)
    assert [record["ended"] for record in traced.records] == [True]
    segment.close_last(0)
    segment.put(ended([2]))
    traced.step(3.0)
    traced.step(5.0)
    assert [record["ended"] for record in traced.records] == [True, False]


def test_a_job_without_a_name_has_that_of_its_communicator():
    segment = Segment(source=MPI, job="")
    traced = Traced(segment)
    traced.step(0.0)
    traced.step(20.0)
    assert traced.process.job is None
    assert not traced.records
    segment.communicator(number=0xAB)
    segment.put(ended([1]))
    traced.step(40.0)
    record = traced.records[0]
    assert (record["job"], record["source"]) == ("communicator-00000000000000ab", "MPI")
    segment.close()


def test_a_row_that_is_used_again_is_another_communicator(segment):
    """Operations of the former one that are not published yet stay its own."""
    traced = Traced(segment)
    traced.step(0.0)
    for generation in range(1, 21):
        segment.communicator(number=100 + generation, generation=generation)
        segment.put(ended(np.arange(generation)))
        traced.process.drain()
        segment.communicator(number=100 + generation, generation=generation, ready=2)
        traced.step(0.0, acknowledge=False)
        traced.process._commit()
    for now in (2.0, 30.0, 60.0):  # two heartbeats later
        if traced.process.in_flight:
            traced.process.acknowledged()
        traced.step(now)
    counts = {}
    for record in traced.records:
        for each in record["summaries"]:
            name = record["communicators"][each["communicator"]]["id"]
            counts[name] = counts.get(name, 0) + each["count"]
    assert counts == {f"{100 + generation:016x}": generation for generation in range(1, 21)}
    assert len(traced.process.ranks) <= 1, "what ended and was published is forgotten"
    assert sum(record["events_invalid"] for record in traced.records) == 0


def test_impossible_events_are_counted(segment):
    traced = Traced(segment)
    events = ended(np.arange(6))
    events["communicator"][0] = 9
    events["communicator"][1] = 0xFFFF
    events["begin_raw_ns"][2] = events["end_raw_ns"][2] + 1
    events["end_raw_ns"][3] += 10**15
    events["kind"][4] = 77
    segment.put(events)
    traced.step(0.0)
    traced.step(1.0)
    (record,) = traced.records
    assert (record["events_invalid"], summed([record])) == (5, 1)


def test_calls_that_the_profiler_ignored_are_published(segment):
    traced = Traced(segment)
    segment.ignore(3)
    segment.put(ended(np.arange(1)))
    traced.step(0.0)
    traced.step(1.0)
    assert [record["calls_ignored"] for record in traced.records] == [3]


def test_a_lost_end_is_no_hang():
    segment = Segment(ring_events=64)
    segment.communicator()
    traced = Traced(segment, running_s=1)
    segment.put(begun(ended([1], ns=2_000_000_000)))
    traced.step(0.0)
    segment.put(ended(np.arange(2, 102)))
    traced.step(5.0)
    traced.step(20.0)
    assert not kept(traced.records, "RUNNING")
    assert traced.records[-1]["events_dropped"] > 0
    segment.close()


def test_every_source_of_a_segment_has_a_value_of_its_own_in_the_record() -> None:
    assert set(SOURCES) <= set(CollectiveSource.__members__)

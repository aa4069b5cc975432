"""The fold of events against plain sums, its limits, and events in any order and of any content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.collectives.fold import Fold, mix
from native.collectives.reader import BEGIN, END, EVENT, QUEUE_PAIR, TRANSFER

NOW = 10**15
IDS = np.array([7, 8], np.uint64)
FUNCTIONS, SIZES = 5, 12


def events(count, **fields):
    made = np.zeros(count, EVENT)
    made["kind"], made["peer"] = END, -1
    made["end_raw_ns"], made["begin_raw_ns"] = NOW, NOW - 1000
    made["sequence"], made["operation"] = np.arange(count), np.arange(count) + 1
    for name, value in fields.items():
        made[name] = value
    return made


def folded(*parts, factor=3.0):
    fold = Fold(factor)
    for part in parts:
        fold.add(part, IDS, 1, NOW)
    return fold


def test_sums_are_those_of_the_events():
    rng = np.random.default_rng(5)
    count = 20_000
    made = events(count, function=rng.integers(1, FUNCTIONS, count), communicator=rng.integers(0, 2, count))
    made["bytes"] = 2 ** rng.integers(0, SIZES, count)
    made["begin_raw_ns"] = NOW - rng.lognormal(10, 2, count).astype(np.int64) - 1
    made["launch_ns"] = rng.integers(0, 3, count)
    kinds = folded(made[: count // 2], made[count // 2 :]).take_kinds()
    assert kinds["count"].sum() == count
    for kind in kinds:
        of = made[
            (made["communicator"] == kind["communicator"])
            & (made["function"] == kind["function"])
            & (made["bytes"] == 1 << (int(kind["size_class"]) - 1))
        ]
        ns = of["end_raw_ns"] - of["begin_raw_ns"]
        assert (kind["count"], kind["busy_ns"], kind["min_ns"], kind["max_ns"]) == (
            len(of),
            ns.sum(),
            ns.min(),
            ns.max(),
        )
        assert (kind["first_seq"], kind["last_seq"]) == (of["sequence"].min(), of["sequence"].max())
        assert (kind["bytes"], kind["launch_ns"]) == (of["bytes"].sum(), of["launch_ns"].sum())
        assert kind["p50_ns"] == pytest.approx(np.sort(ns)[(len(ns) - 1) // 2], rel=0.02)


def test_a_taken_sum_begins_at_zero():
    fold = folded(events(3))
    assert fold.take_kinds()["count"].tolist() == [3]
    assert len(fold.take_kinds()) == fold.kinds == 0
    fold.add(events(2), IDS, 1, NOW)
    assert fold.take_kinds()["count"].tolist() == [2]


def test_kinds_of_communicators_that_are_gone_leave_their_place():
    fold = Fold(3.0)
    ids = np.arange(60_000, dtype=np.uint64)
    for number in range(0, 60_000, 3000):
        fold.add(events(3000, communicator=np.arange(number, number + 3000)), ids, 1, NOW)
        assert len(fold.take_kinds()) == 3000
    assert fold.counts["invalid"] == 0
    fold.add(events(5000, communicator=np.arange(5000)), ids, 1, NOW)
    assert (fold.counts["invalid"], len(fold.take_kinds())) == (5000 - 4096, 4096)


def test_sampling_is_by_communicator_and_number():
    fold = Fold(3.0)
    fold.sample(3)
    fold.add(events(4000), IDS, 1, NOW)
    kept, reasons = fold.take_kept()
    chosen = [number for number in range(4000) if mix(7, number) >> 61 == 0]
    assert kept["sequence"].tolist() == chosen
    assert set(reasons) == {1}


def test_too_many_kept_operations_are_thinned():
    fold = folded(events(100_000))
    kept, reasons = fold.take_kept()
    assert 2000 < len(kept) <= 8192
    assert fold.counts["shift"] == 4
    assert set(reasons) == {1}
    assert [row["sequence"] for row in kept[:20]] == [n for n in range(1000) if mix(7, n) >> 60 == 0][:20]


def test_slow_operations_are_kept_beside_sampled_ones():
    fold = folded(events(1000))
    fold.take_kinds()
    fold.take_kept()
    fold.sample(60)
    slow = events(40, sequence=np.arange(40) + 5000)
    slow["begin_raw_ns"] = NOW - 1_000_000 - np.arange(40) * 1000
    fold.add(slow, IDS, 1, NOW)
    assert fold.counts["slow"] == 40
    kept, reasons = fold.take_kept()
    assert sorted(kept["sequence"]) == list(range(5024, 5040)), "the slowest 16"
    assert (set(reasons), fold.counts["slow"]) == ({2}, 0)


def test_running_operations_are_those_without_an_end():
    begins = events(10, kind=BEGIN, end_raw_ns=0)
    begins["begin_raw_ns"] = NOW - np.arange(10) * 1000 - 1
    fold = folded(begins, events(5))
    assert fold.counts["open"] == 5
    assert fold.running(NOW, 16)["operation"].tolist() == [10, 9, 8, 7, 6], "the oldest first"
    assert fold.running(NOW - 8500, 16)["operation"].tolist() == [10]
    assert len(fold.running(NOW, 2)) == 2
    fold.forget(NOW - 6500)
    assert fold.running(NOW, 16)["operation"].tolist() == [7, 6]


def test_an_end_may_be_read_before_its_begin():
    fold = folded(events(100), events(100, kind=BEGIN, end_raw_ns=0))
    assert (fold.counts["open"], fold.counts["ended"], fold.counts["begun"]) == (0, 100, 100)


@given(st.permutations(range(60)))
def test_any_order_leaves_the_same_operations_open(order):
    begins, ends = events(40, kind=BEGIN, end_raw_ns=0), events(20)
    fold = Fold(3.0)
    for at in order:
        fold.add(begins[at : at + 1] if at < 40 else ends[at - 40 : at - 39], IDS, 1, NOW)
    assert sorted(fold.running(NOW, 64)["operation"]) == list(range(21, 41))


def test_open_operations_are_bounded():
    begins = events(70_000, kind=BEGIN, end_raw_ns=0)
    fold = folded(begins)
    assert (fold.counts["open"], fold.counts["invalid"]) == (65_536, 70_000 - 65_536)
    fold.add(events(70_000), IDS, 1, NOW)
    assert fold.counts["open"] == 0


def test_transfers_of_open_operations_are_returned_again():
    begin, end = events(1, kind=BEGIN, end_raw_ns=0), events(1)
    moved = events(3, kind=TRANSFER, operation=1, peer=2)
    fold = folded(begin, moved)
    assert len(fold.take_rows()) == len(fold.take_rows()) == 3
    fold.add(end, IDS, 1, NOW)
    assert len(fold.take_rows()) == 3
    assert len(fold.take_rows()) == 0


def test_transfers_of_operations_that_are_not_kept_are_freed():
    fold = Fold(3.0)
    fold.sample(62)
    for number in range(60):
        rows = events(5000, kind=TRANSFER, operation=number + 1, peer=1)
        end = events(1, operation=number + 1, sequence=number)
        fold.add(rows, IDS, 1, NOW)
        fold.add(end, IDS, 1, NOW)
    assert len(fold.take_rows()) < 60_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"begin_raw_ns": NOW + 1},
        {"begin_raw_ns": NOW - 10**14, "end_raw_ns": NOW - 10**14 + 1},
        {"end_raw_ns": NOW + 2 * 10**9},
        {"begin_raw_ns": 0},
        {"communicator": 2},
        {"bytes": 10**15 + 1},
        {"sequence": 2**62 + 1},
        {"peer": -2},
        {"kind": 9},
        {"kind": BEGIN, "operation": 0, "end_raw_ns": 0},
        {"kind": TRANSFER, "peer": -1},
        {"kind": QUEUE_PAIR, "device": 1},
        {"gpu_late_ns": 2**60},
    ],
)
def test_impossible_events_are_counted(wrong):
    fold = folded(events(2, **wrong))
    assert (fold.counts["invalid"], fold.kinds, len(fold.take_rows())) == (2, 0, 0)


def test_names_of_a_newer_profiler_are_unknown():
    (kind,) = folded(events(1, function=99, algorithm=99, protocol=99)).take_kinds()
    assert (kind["function"], kind["algorithm"], kind["protocol"]) == (0, 0, 0)


@given(st.binary(min_size=128, max_size=128 * 20))
def test_any_content_does_no_harm(data):
    fold = Fold(1.5)
    for shift in (0, 5):
        fold.sample(shift)
        fold.add(np.frombuffer(data[: len(data) // 128 * 128], EVENT).copy(), IDS, 1, NOW)
    fold.take_kinds()
    fold.take_kept()
    fold.take_rows()
    fold.running(NOW, 10)
    fold.forget(NOW)
    assert fold.counts["open"] == 0


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"slow_factor 0\.5: expected at least 1"):
        Fold(0.5)
    with pytest.raises(ValueError, match="events of 8 bytes: expected 128"):
        Fold(2.0).add(np.zeros(3), IDS, 1, NOW)

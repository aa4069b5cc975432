"""Cells: rows of records as columns, and delays without the sender's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.queues.cells import Cells, Delays, WaitingCells, without_own_delay
from tests.records import make

MS = 1_000_000


def cells(routes: list[int], mean_ns: list[float], noise_ns: float = 1.0) -> Cells:
    count = len(routes)
    return Cells(
        np.zeros(count, np.int64),
        np.array(routes, np.int32),
        np.full(count, 0.5),
        np.ones(count),
        np.array(mean_ns),
        np.full(count, noise_ns),
        np.zeros(count),
    )


def test_rows_become_cells_and_those_of_unknown_routes_are_left_out() -> None:
    record = make(
        "PathQueueing", start_ns=20 * MS, slot_ns=10 * MS, cells=[2, 1], noise_ns=[4.0, 9.0],
        slot=[0, 3, 1], at_ns=[5 * MS, 0, 10 * MS], count=[1, 2, 3], mean_ns=[10.0, 20.0, 30.0],
    )  # fmt: skip
    waiting = WaitingCells(4)
    waiting.add_record(record, np.array([7, 8], np.int32))
    both = waiting.waiting(0, 9)
    assert both.slot.tolist() == [2, 3, 5]
    assert both.route.tolist() == [7, 8, 7]
    assert both.at.tolist() == [0.5, 1.0, 0.0]
    assert both.noise_ns.tolist() == [4.0, 9.0, 4.0]
    waiting = WaitingCells(4)
    waiting.add_record(record, np.array([-1, 8], np.int32))
    known, _ = waiting.take(0, 9)
    assert (known.route.tolist(), known.mean_ns.tolist()) == ([8], [30.0])


def test_a_delay_towards_all_receivers_is_the_senders_own() -> None:
    """Routes 0 to 2 lead from NIC 0 to three receivers, 3 from NIC 1 to one; 4 is a round trip."""
    senders, last_links = [0, 0, 0, 1, -1], np.array([0, 1, 2, 0, 1], np.int64)
    found = without_own_delay(cells([0, 1, 2, 3, 4], [100.0, 130.0, 100.0, 90.0, 80.0]), senders, last_links)
    assert found.tolist() == [0.0, 30.0, 0.0, 90.0, 80.0]


def test_a_common_delay_within_the_noise_or_to_few_receivers_stays() -> None:
    last_links = np.array([0, 1, 2], np.int64)
    noisy = without_own_delay(cells([0, 1, 2], [100.0] * 3, noise_ns=50.0), [0, 0, 0], last_links)
    assert noisy.tolist() == [100.0] * 3
    few = without_own_delay(cells([0, 1], [100.0] * 2), [0, 0, 0], last_links)
    assert few.tolist() == [100.0] * 2


def in_slots(slots: list[int]) -> Cells:
    count = len(slots)
    return Cells(
        np.array(slots, np.int64),
        np.arange(count, dtype=np.int32),
        np.full(count, 0.5),
        np.ones(count),
        np.array(slots, np.float64),
        np.ones(count),
        np.zeros(count),
    )


@given(
    st.lists(st.lists(st.integers(0, 120), max_size=20), max_size=8),
    st.integers(1, 30),
    st.integers(1, 50),
    st.integers(0, 60),
)
def test_waiting_cells_come_once_and_in_their_block(
    records: list[list[int]], bucket_slots: int, block: int, begin: int
) -> None:
    waiting = WaitingCells(bucket_slots)
    for slots in records:
        waiting.add(in_slots(slots))
    every = sorted(slot for slots in records for slot in slots)
    late_total, at = 0, begin
    while waiting:
        cells, late = waiting.take(at, at + block)
        late_total += late
        assert sorted(cells.slot.tolist()) == [slot for slot in every if at <= slot < at + block]
        at += block
    assert late_total == sum(slot < begin for slot in every)


def test_cells_in_longer_slots_keep_their_time() -> None:
    one = cells([0, 1], [1.0, 2.0])
    one.slot = np.array([10**13 + 5, 10**13 + 8])
    folded = one.folded(4)
    assert folded.slot.tolist() == [10**13 // 4 + 1, 10**13 // 4 + 2]
    assert folded.at.tolist() == [(1 + 0.5) / 4, 0.5 / 4]
    assert one.folded(1) is one


def test_delays_of_one_route_and_several_slots_become_one_with_their_mean() -> None:
    """Routes 0 and 2 have the same links and other senders."""
    many = cells([0, 2, 0, 1, 0], [10.0, 40.0, 7.0, 5.0, 6.0], noise_ns=3.0)
    many.slot = 10**13 + np.array([0, 3, 4, 1, 7])
    many.count = np.array([3.0, 1.0, 1.0, 1.0, 1.0])
    merged = Delays.of(many, many.mean_ns).merged(4, np.array([0, 1, 0], np.int32))
    assert merged.route.tolist() == [0, 1, 0]
    assert (merged.slot - 10**13).tolist() == [1, 1, 6]
    assert merged.at.tolist() == [0.25, 0.5, 0.0]
    assert merged.count.tolist() == [4.0, 1.0, 2.0]
    assert merged.mean_ns.tolist() == [17.5, 5.0, 6.5]
    assert merged.longest_ns.tolist() == [40.0, 5.0, 7.0]
    assert merged.noise_ns.tolist() == [3.0, 3.0, 3.0]
    last = cells([0, 0], [1.0, 1.0])
    last.slot, last.at = np.array([7, 7]), np.ones(2)
    late = Delays.of(last, last.mean_ns).merged(4, np.zeros(1, np.int32))
    assert (late.slot.tolist(), late.at.tolist()) == ([7], [1.0]), "the last moment belongs to its slot"
    assert not len(Delays.of(cells([], []), np.zeros(0)).merged(4, np.zeros(1, np.int32)).slot)


def test_cells_behind_a_block_can_be_seen_and_still_come() -> None:
    waiting = WaitingCells(4)
    assert waiting.waiting(8, 10).slot.tolist() == []
    waiting.add(in_slots([3, 8, 9, 10]))
    assert waiting.waiting(8, 10).slot.tolist() == [8, 9]
    assert [waiting.take(at, at + 4)[0].slot.tolist() for at in (0, 4, 8)] == [[3], [], [8, 9, 10]]

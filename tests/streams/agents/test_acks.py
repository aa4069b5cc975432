"""Nothing is acknowledged ahead of its predecessors, and a worker that stands still is seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.agents.acks import OrderedAcks
from streams.agents.watchdog import StallWatch, own_s

A, B = TP("t", 0), TP("t", 1)


@dataclass
class Message:
    offset: int


@given(st.permutations(list(range(12))))
def test_acks_come_in_order_and_all_of_them(order: list[int]) -> None:
    acks = OrderedAcks()
    for offset in range(12):
        acks.read(Message(offset))
    acked: list[int] = []
    finished: set[int] = set()
    for offset in order:
        finished.add(offset)
        acked += [m.offset for m in acks.done([offset])]
        assert acked == list(range(len(acked)))
        assert set(acked) <= finished
    assert acked == list(range(12))


def test_what_was_never_read_is_not_acknowledged() -> None:
    acks = OrderedAcks()
    acks.read(Message(3))
    assert acks.done([2, 7]) == []
    assert [m.offset for m in acks.done([3])] == [3]


def test_a_position_that_stands_still_while_the_log_grows_is_a_stall() -> None:
    watch = StallWatch(8.0)
    for second in range(8):
        assert watch.look(second, {A: 10 + second}, {A: 10}) == []
    assert watch.look(8.5, {A: 20}, {A: 10}) == [A]


def test_an_idle_or_moving_or_lost_partition_is_none() -> None:
    watch = StallWatch(8.0)
    for second in range(30):
        assert watch.look(second, {A: 10, B: 1000}, {A: 10, B: second}) == []
    assert watch.look(31, {A: 11}, {}) == []
    assert watch.look(60, {A: 11}, {A: 10}) == []


def test_a_worker_without_a_processor_or_with_much_to_do_has_not_stalled(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("5000000 0 12\n")
    begin_s = own_s(file)
    file.write_text("5000000 30000000000 40\n")
    assert own_s(file) - begin_s < -29.0, "30 s of waiting for a processor pass by at once"
    file.write_text("30005000000 0 40\n")
    assert -25.1 < own_s(file) - begin_s < -20.0, "of 30 s of work a sixth counts"
    assert own_s(tmp_path / "nothing") > begin_s - 1.0
    assert own_s() > 0

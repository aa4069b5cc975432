"""No message is acknowledged before its predecessors."""

from __future__ import annotations

from dataclasses import dataclass

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.runtime.acks import OrderedAcks

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


def test_an_unread_message_is_not_acknowledged() -> None:
    acks = OrderedAcks()
    acks.read(Message(3))
    assert acks.done([2, 7]) == []
    assert [m.offset for m in acks.done([3])] == [3]

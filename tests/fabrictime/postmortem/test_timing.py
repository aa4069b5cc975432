"""Clock offsets from common ends, and the edge that ranks share."""

from __future__ import annotations

from fabrictime.postmortem.observations import Group
from fabrictime.postmortem.timing import Operation, Part, begin_together, begins, clock_offsets


def operation(parts):
    by_rank = {rank: Part(begin, end - begin, end) for rank, (begin, end) in enumerate(parts)}
    return Operation("kineto", Group("0"), len(parts), "all_reduce", 1, by_rank)


def test_an_offset_of_a_clock_does_not_change_the_order_of_arrival():
    shifted = [
        operation([(100 + at, 200 + at), (150 + at, 200 + at), (1100 + at, 1200 + at)]) for at in (1, 900)
    ]
    assert clock_offsets(shifted) == {0: 0, 1: 0, 2: 1000}
    assert [max(moments, key=moments.get) for moments in begins(shifted)] == [1, 1]


def test_ranks_begin_together_or_end_together():
    assert begin_together([operation([(100, 200), (101, 290)])] * 3) is True
    assert begin_together([operation([(100, 200), (190, 201)])] * 3) is False
    assert begin_together([operation([(100, 200), (150, 250)])] * 3) is None

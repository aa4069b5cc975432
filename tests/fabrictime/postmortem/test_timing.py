"""The graph of operations and ranks: busy times, order, waits."""

from __future__ import annotations

from fabrictime.postmortem.observations import Group, Observations, Span
from fabrictime.postmortem.timing import Operation, Part, Wait, begin_together, by_group, operations, waits

WORLD, PAIR = Group("0", "", (0, 1, 2)), Group("1", "", (0, 1))


def operation(parts):
    by_rank = {rank: Part(begin, end - begin, end, 0, 0) for rank, (begin, end) in enumerate(parts)}
    return Operation("kineto", Group("0"), len(parts), "all_reduce", 1, (), by_rank)


def span(rank, group, seq, duration_ns, begin_ns=0):
    return Span("inspector", rank, group, len(group.ranks), seq, "all_reduce", 1, begin_ns, duration_ns)


def test_ranks_begin_together_or_end_together():
    assert begin_together([operation([(100, 200), (101, 290)])] * 3)
    assert not begin_together([operation([(100, 200), (190, 201)])] * 3)
    assert not begin_together([operation([(100, 200), (150, 250)])] * 3)


def test_busy_time_is_the_sum_of_durations_and_overlaps_count_once():
    sums, overlaps = Observations(), Observations()
    sums.spans += [span(rank, WORLD, seq, 30) for rank in (0, 1) for seq in (1, 2)]
    overlaps.spans += [span(rank, WORLD, seq, 30, 100 + 20 * seq) for rank in (0, 1) for seq in (1, 2)]
    assert [part.parts[0].busy_ns for part in operations(sums)] == [30, 60]
    assert [part.parts[0].busy_ns for part in operations(overlaps)] == [30, 50]


def test_operations_have_the_order_of_the_member_with_the_largest_number_of_them():
    out = Observations()
    for rank in (0, 1):
        out.spans += [span(rank, WORLD, seq, 10) for seq in (7, 3, 5)[rank:]]
    ((_, ordered),) = by_group(operations(out)).items()
    assert [part.parts[0].place for part in ordered] == [1, 2]


def test_a_rank_waits_for_the_last_member_of_its_group():
    out = Observations()
    out.spans += [span(0, PAIR, 1, 500), span(1, PAIR, 1, 20)]
    out.spans += [span(0, WORLD, 1, 10), span(1, WORLD, 1, 12), span(2, WORLD, 1, 490)]
    assert waits(operations(out))[:2] == [Wait(0, 1, PAIR, 480), Wait(2, 0, WORLD, 480)]

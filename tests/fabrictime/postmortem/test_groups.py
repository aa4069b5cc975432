"""Groups of different ranks' dumps are brought together by their members."""

from __future__ import annotations

from fabrictime.postmortem.groups import members_of, unify_groups
from fabrictime.postmortem.observations import Group, Observations, Span


def span(rank, group):
    return Span("kineto", rank, group, 2, 1, "all_reduce", 1, 1, 1)


def test_a_group_without_members_is_the_one_of_its_name_with_that_rank():
    low, high, bare = Group("3", "tp", (0, 1)), Group("3", "tp", (2, 3)), Group("3", "tp")
    out = Observations(
        groups=dict.fromkeys((low, high, bare)), spans=[span(1, bare), span(3, bare), span(9, bare)]
    )
    unify_groups(out)
    assert [part.group for part in out.spans] == [low, high, bare]


def test_the_members_of_the_world_are_all_ranks():
    out = Observations(expected=4)
    assert members_of(Group("0", "default_pg"), [1], out) == {0, 1, 2, 3}
    assert members_of(Group("7", "tp"), [1, 2], out) == {1, 2}
    assert members_of(Group("7", "tp", (4, 5)), [1], out) == {4, 5}

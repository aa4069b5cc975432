"""The live runs of the foreign bench: each cause has one maker, and its culprit is the drawn one."""

from __future__ import annotations

from fabrictime.bench.foreign._draw import draw
from fabrictime.bench.foreign._live import _INSIDE, _OUTSIDE, _culprit
from fabrictime.bench.foreign._truth import CAUSES, FAULTS, HANGS, INNOCENT, MESSAGES, OTHERS


def test_each_cause_that_is_drawn_is_made_by_the_program_or_by_a_tool():
    drawn = {*FAULTS, *HANGS, *INNOCENT}
    assert drawn == set(_INSIDE) | set(_OUTSIDE)
    assert not set(_INSIDE) & set(_OUTSIDE)
    assert drawn | {"pauses"} == set(CAUSES)
    assert all(set(CAUSES[cause].programs) <= set(MESSAGES) for cause in _INSIDE)


def test_the_culprit_is_the_rank_with_the_fault_and_its_host():
    for case in draw(1, "runs", {*MESSAGES, *OTHERS, *CAUSES}):
        culprit = _culprit(case)
        if case.cause == "another job":
            assert culprit.job.endswith(case.name)
        elif case.cause == "loss at a spine":
            assert culprit.host == "spine1"
        else:
            assert (culprit.rank, culprit.host) == (case.rank, case.hosts[case.rank])

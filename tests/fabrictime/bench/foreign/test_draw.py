"""The draw of foreign runs: repeatable, with runs without a fault, and only what the machine can run."""

from __future__ import annotations

import pytest

from fabrictime.bench.foreign._draw import BIG_HOSTS, draw
from fabrictime.bench.foreign._truth import CAUSES, FAULTS, HANGS, INNOCENT, MESSAGES, OTHERS

ALL = {*MESSAGES, *OTHERS, *CAUSES}


def test_a_seed_draws_the_same_runs_again_and_another_one_draws_others():
    assert draw(7, "runs", ALL) == draw(7, "runs", sorted(ALL))
    assert draw(7, "runs", ALL) != draw(8, "runs", ALL)


@pytest.mark.parametrize("seed", range(20))
def test_sixty_runs_have_twenty_without_a_fault_all_faults_and_eight_programs(seed):
    cases = draw(seed, "runs", ALL)
    causes = [case.cause for case in cases]
    assert len(cases) == 60
    assert sum(cause in INNOCENT for cause in causes) >= 20
    assert set(FAULTS) <= set(causes)
    assert len({case.program for case in cases}) >= 8
    assert all(case.before_s + case.during_s + case.after_s >= 45 for case in cases)
    assert all(case.program in CAUSES[case.cause].programs for case in cases)
    assert all(len(set(case.hosts)) == len(case.hosts) > case.rank > 0 for case in cases)
    assert any(case.after_s for case in cases)


def test_a_machine_without_a_tool_draws_the_other_causes_as_often():
    cases = draw(1, "runs", ALL - {"delay", "disk limit", "hpcc"})
    assert len(cases) == 60
    assert not {"delay", "disk limit"} & {case.cause for case in cases}
    assert "hpcc" not in {case.program for case in cases}


def test_a_second_job_runs_on_the_other_hosts_of_the_same_leaves():
    cases = [case for seed in range(5) for case in draw(seed, "runs", ALL) if case.cause == "another job"]
    assert cases
    for case in cases:
        assert sorted([*case.hosts, *BIG_HOSTS]) == [f"h{number}" for number in range(1, 9)]


def test_hangs_and_pauses_are_sixty_each():
    hangs = draw(3, "hangs", ALL)
    assert len(hangs) == 60
    assert {case.cause for case in hangs} == set(HANGS)
    pauses = [pause for case in draw(3, "pauses", ALL) for pause in case.pauses]
    assert len(pauses) == 60
    assert all(5 <= pause.length_s <= 120 for pause in pauses)

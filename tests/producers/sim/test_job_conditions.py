"""Conditions of the ranks of a simulated job under faults."""

from __future__ import annotations

import math

from producers.sim.fault_grammar import parse_fault
from producers.sim.faults import Target
from producers.sim.job_conditions import JobConditions, conditions_of, moved_nics


def conditions(*lines):
    faults = []
    for line in lines:
        spec = parse_fault(line)
        name, _, rank = spec.target.partition(":")
        faults.append((spec, Target((), job=name, rank=int(rank or -1))))
    return conditions_of("train", faults)


def test_the_latest_rank_delays_every_iteration():
    found = conditions("straggler 5ms train:1", "launch-skew 2ms train:1", "straggler 6ms train:2")
    assert found.gap_ns(1e6) == 8e6
    assert conditions("hang train:0").gap_ns(1e6) == math.inf
    assert conditions("straggler 5ms serve:1") == JobConditions() == conditions()


def test_each_fault_of_a_rank_is_in_its_set():
    lines = ("hang", "killed", "mismatch", "wrong-rail", "unreported", "unsynced")
    found = conditions(*(f"{kind} train:{rank}" for rank, kind in enumerate(lines)))
    sets = (found.hung, found.killed, found.mismatched, found.moved, found.unreported, found.unsynced)
    assert [set(each) for each in sets] == [{0}, {1}, {2}, {3}, {4}, {5}]


def test_a_long_delay_limits_the_rate_of_a_window():
    assert conditions("wrong-class 250us train").line_bps(400e9) == (1 << 20) * 8e9 / 250e3
    assert conditions().line_bps(400e9) == 400e9


def test_a_moved_rank_uses_the_next_nic_of_its_host():
    assert moved_nics([8, 9, 15, 3], [1, 2], 8) == [8, 10, 8, 3]

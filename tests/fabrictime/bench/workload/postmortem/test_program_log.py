"""Tests that the watchdog's lines come from the right ranks."""

from __future__ import annotations

from random import Random

from fabrictime.bench.workload.postmortem.program_log import program_lines
from fabrictime.bench.workload.postmortem.run import Run


def test_a_timeout_is_logged_by_the_ranks_that_wait_only(hang: Run) -> None:
    lines = [line for line in program_lines(hang, Random(1)) if "Watchdog caught" in line.text]
    assert {line.rank for line in lines} == set(hang.job.world.ranks) - set(hang.incident.ranks)

"""Tests that a simulated job stops where its incident stops it."""

from __future__ import annotations

from fabrictime.bench.workload.postmortem.run import Run


def test_the_rank_that_hangs_is_the_only_one_that_waits_for_nothing(hang: Run) -> None:
    waiting = {
        rank
        for rank, entries in hang.entries.items()
        if any(entry.operation.end_s is None and entry.begin_s is not None for entry in entries)
    }
    assert set(hang.job.world.ranks) - waiting == set(hang.incident.ranks)

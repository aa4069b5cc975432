"""Trace budget: no hour has more bytes than the budget, and spare bytes are used."""

from __future__ import annotations

import pytest

from producers.collectives.trace_budget import TraceBudget

HOUR = 3600


def publish(budget, base, wanted, hours, urgent=False):
    """Publish as often as the budget allows; return the records as (second, bytes)."""
    done, at, last = [], 0.0, 0.0
    while at < hours * HOUR:
        budget.refill(at)
        since = at - last
        if since >= (1 if urgent else budget.interval_s(1, base)) and budget.is_enough(base, urgent):
            size = base + min(wanted * since, budget.operation_bytes(since, base, urgent))
            budget.spend(size)
            done.append((at, size))
            last = at
        at += 0.25
    return done


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize(("base", "wanted"), [(300, 0), (300, 1e6), (3000, 1e6), (20_000, 10), (200_000, 0)])
def test_no_hour_has_more_than_the_budget(base, wanted, urgent):
    records = publish(TraceBudget(1_500_000, 0), base, wanted, 3, urgent)
    for begin in range(0, 2 * HOUR, 300):
        assert sum(size for at, size in records if begin <= at < begin + HOUR) <= 1_500_000


def test_a_quiet_process_is_published_each_second():
    records = publish(TraceBudget(1_500_000, 0), 120, 10, 1)
    assert len(records) >= HOUR - 1


def test_the_inflow_is_used():
    records = publish(TraceBudget(1_500_000, 0), 300, 1e6, 2)
    assert sum(size for at, size in records if at >= HOUR) >= 0.9 * 1_250_000
    assert sum(size for at, size in records if at < 60) > 120_000, "a new process spends the bucket"


def test_the_share_of_operations_is_a_power_of_two():
    assert TraceBudget.shift(100, 100) == 0
    assert TraceBudget.shift(101, 100) == 1
    assert TraceBudget.shift(1e6, 100) == 14
    assert TraceBudget.shift(1, 0) == 40


def test_time_never_runs_backwards():
    budget = TraceBudget(1_500_000, 100)
    budget.spend(1000)
    budget.refill(50)
    assert budget.level == 249_000
    budget.refill(101)
    assert budget.level == pytest.approx(249_000 + 1_250_000 / HOUR)

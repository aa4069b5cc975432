"""The search for the largest fleet that a worker carries."""

from __future__ import annotations

import pytest

from fabrictime.bench.pipeline._evidence import Ages, Interval
from fabrictime.bench.pipeline._fleet_run import Observed
from fabrictime.bench.pipeline._product import Cores
from fabrictime.bench.pipeline.capacity import Trial, _reason, search

S = 1_000_000_000


def tried(limit: int, resolution: int = 16) -> list[int]:
    return [trial.nics for trial in search(lambda nics: Trial(nics, "", nics <= limit), resolution)]


@pytest.mark.parametrize(
    ("limit", "fleets"),
    [
        (10, [32]),
        (32, [32, 64, 48]),
        (100, [32, 64, 128, 96, 112]),
        (9999, [32, 64, 128, 256, 512, 1024]),
    ],
)
def test_fleets_are_doubled_then_halved(limit: int, fleets: list[int]) -> None:
    assert tried(limit) == fleets


def observed(pace: float = 1.0, cores: float = 0.5, fold: int = 1, age_s: int = 0) -> Observed:
    interval = Interval(10 * S, 20 * S, folds={fold})
    rows = [(second * S, (second - age_s) * S) for second in range(9, 20)]
    interval.ages = {"fabric.queues": Ages.of(rows, is_windowed=False)}
    return Observed([Cores("worker-1", cores), Cores("log", 2.0)], pace, interval)


def test_a_fleet_is_carried_in_real_time_on_one_core_with_fresh_queues() -> None:
    assert _reason(observed(age_s=-1)) is None
    assert _reason(observed(pace=0.9)) == "0.90 of real time"
    assert _reason(observed(cores=1.1)) == "1.10 cores"
    assert _reason(observed(fold=4)) == "4 slots combined"
    assert _reason(observed(age_s=1)) == "queues 2.0 s old"

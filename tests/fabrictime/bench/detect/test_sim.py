"""The bench of the simulated fleet's speed, at a small size: its figures, their note and their unit."""

from __future__ import annotations

import gc

from fabrictime.bench import Figure
from fabrictime.bench.detect import sim


def test_a_small_fleet_is_simulated_faster_than_time_and_collection_is_on_again(monkeypatch) -> None:
    monkeypatch.setattr(sim, "QUICK_NICS", 16)
    lines: list[str] = []
    found = sim.measure(lines.append, quick=True)
    factor, mean = found["sim_realtime_factor"], found["sim_realtime_factor_mean"]
    assert isinstance(factor, Figure)
    assert isinstance(mean, Figure)
    assert factor.value >= mean.value > 0
    assert factor.note is not None
    assert factor.note.startswith("16 NICs, ")
    assert "least of 2 s" in factor.note
    assert gc.get_freeze_count() == 0
    assert lines == ["simulated fleet of 16 NICs, fluid"]

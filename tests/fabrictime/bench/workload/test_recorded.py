"""Recorded incidents."""

from __future__ import annotations

import pytest

from fabrictime.bench.workload._recorded import Recording, record, replay


@pytest.mark.slow("runs a simulated fleet for twelve seconds")
def test_a_recorded_incident_is_diagnosed_again_without_its_fleet(tmp_path) -> None:
    made = record("straggler", 1, ranks=16, warm_s=6.0, length_s=6.0)
    path = tmp_path / "incident.xz"
    made.save(path)
    loaded = Recording.load(path)
    assert loaded == made
    first, second = list(replay(made)), list(replay(loaded))
    assert first == second
    assert {diagnosis["job"] for _, diagnosis in first} == {"train"}
    assert first[-1][1]["verdict"] in made.incident.verdicts

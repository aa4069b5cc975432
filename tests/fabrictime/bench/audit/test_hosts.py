"""Bench of a host's checks: a planted fault is found by its check alone, and refused reads never pass."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.audit import hosts


@pytest.mark.slow("runs a bench")
def test_a_quick_run_finds_every_planted_fault() -> None:
    figures = hosts.measure(lambda text: None, quick=True)
    values = {key: each.value if isinstance(each, Figure) else each for key, each in figures.items()}
    assert values["planted_faults_found"] == 1.0
    assert values["planted_fault_kinds"] >= 120
    assert values["healthy_fleet_false_errors"] == 0
    assert values["unknown_reported_as_passed"] == 0

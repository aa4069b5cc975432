"""Local repair as the bench counts it: every flow that a blackhole hit, and those that stayed away."""

from __future__ import annotations

import pytest

from fabrictime.bench.control import local_repair
from fabrictime.bench.control.failover import Steady


def test_each_hit_flow_counts_once_and_those_not_back_within_the_fault_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flows = [Steady("h1", "h5", 1, 40_000), Steady("h2", "h6", 1, 40_000), Steady("h3", "h7", 1, 40_000)]
    took = {"h1": 45.0, "h2": None, "h3": local_repair.FAULT_S * 1e3}
    monkeypatch.setattr(local_repair, "regained_ms", lambda flow, began_s: took[flow.source])
    lines: list[str] = []
    faults = [(1.0, ["h1:40000", "h2:40000"], "a>b"), (2.0, ["h3:40000"], "c>d"), (3.0, [], "e>f")]
    assert local_repair._regained(flows, faults, lines.append) == ([45.0, 1200.0], 1)
    assert len(lines) == 3
    assert local_repair._regained(flows, [], lines.append) == ([], 0)

"""Tests that incidents are drawn by their shares."""

from __future__ import annotations

from random import Random

from fabrictime.bench.workload.postmortem.incident import SHARES, kinds


def test_incidents_are_drawn_by_their_shares() -> None:
    drawn = kinds(Random(1), 100)
    assert {kind: drawn.count(kind) for kind in SHARES} == SHARES
    assert sum(SHARES.values()) == 100
    assert SHARES["none"] >= 15
    assert len(kinds(Random(1), 10)) == 10

"""Steering on the simulated fleet: pinned flows, applied decisions, and figures of known seeds."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.control import PARTS
from fabrictime.bench.control.sim import (
    Loop,
    Scenario,
    Stretch,
    _figures,
    _Seed,
    _worst_of,
    lead_apart,
    simulation,
)
from schemas.ids import host_of
from tests.records import make

SMALL = Scenario(nics=16, bytes_each=20e6)


def test_flows_that_never_meet_carry_more_than_those_that_do() -> None:
    shares = []
    for apart in (False, True):
        run = simulation(SMALL.settings(3))
        if apart:
            lead_apart(run)
        loop = Loop(run, act=False, decides=False)
        loop.advance(0.1)
        shares.append(loop.advance(0.2).share)
    assert shares[0] < shares[1] <= 1.001


def test_a_decision_is_applied_or_only_observed() -> None:
    for act in (False, True):
        run = simulation(SMALL.settings(3))
        loop = Loop(run, act=act)
        loop.advance(0.05)
        flow = run.flows()[0]
        port = flow.port
        decision = make(
            "Decision",
            host=host_of(run.fleet.nic_ids[flow.source]),
            flow_id=flow.flow_id,
            action="REROUTE",
            to_path=port + 1,
            expires_at_ns=run.now_ns + 1_000_000_000,
            config_version=1,
        )
        loop.pipeline.carry_out(decision)
        assert (flow.port == port + 1) == act


def seed(ecmp: float, steered: float) -> _Seed:
    def stretch(share: float) -> Stretch:
        return Stretch(share, 10.0, 1)

    return _Seed(stretch(ecmp), stretch(0.6), stretch(1.0), stretch(steered), 0.5, 9, 0.1, 7, 256)


def test_ratios_are_of_the_same_seed_with_the_worst_noted() -> None:
    found = _figures([seed(0.5, 1.0), seed(0.8, 0.8), seed(0.6, 0.9)], [1, 2, 3])
    assert set(PARTS["sim"]) <= set(found)
    ratio = found["sim_two_alltoall_vs_ecmp"]
    assert isinstance(ratio, Figure)
    assert ratio.value == pytest.approx(1.5)
    assert ratio.note is not None
    assert ratio.note.startswith("worst 1.000 of 3 seeds; of the line rate: ECMP 0.600")


def test_the_worst_is_the_minimum_or_the_maximum() -> None:
    assert _worst_of([1.0, 2.0, 4.0], "x").note == "worst 1.000 of 3 seeds"
    assert _worst_of([1.0, 2.0, 4.0], "x", "why", maximum=True) == Figure(
        2.0, "x", "worst 4.000 of 3 seeds; why"
    )
    assert "best 1.000" in seed(0.5, 0.9).published()

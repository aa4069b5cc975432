"""Failback: flows return to their earlier path."""

from __future__ import annotations

import pytest

from tests.streams.policy.closed_loop import Loop, S, advance_until_decided, open_random_flows


@pytest.mark.slow("simulates minutes of a fleet")
def test_flows_return_in_steps_after_a_hold_down_that_doubles_with_each_flap() -> None:
    loop = Loop()
    open_random_flows(loop)
    loop.advance(1.2)
    home = {flow.flow_id: flow.port for flow in loop.run.flows()}
    for outage, hold_s in enumerate((10, 20, 40)):
        loop.run.fault("blackhole spine2>leaf3")
        loop.run.fault("blackhole leaf1>spine2")
        made = advance_until_decided(loop)
        loop.advance(1)
        loop.run.clear()
        before = len(loop.decisions)
        loop.advance(hold_s - 0.1)
        assert len(loop.decisions) == before, f"outage {outage}: dampened for {hold_s} s"
        loop.advance(1.2)
        back = loop.decisions[before:]
        assert {d["action"] for d in back} == {"RESTORE"}
        assert {d["reason"]["kind"] for d in back} == {"HEALED"}
        assert {flow.flow_id: flow.port for flow in loop.run.flows()} == home
        assert len({d["at_ns"] for d in back}) > 1, "in several steps"
        assert len(back) >= len(made)
        assert back[-1]["at_ns"] - back[0]["at_ns"] <= S

"""Fence: decisions of older owners and older decisions are refused."""

from __future__ import annotations

from typing import Any

from actuators.flows.fence import MAX_SHARDS, Fence
from actuators.flows.state import FlowState


def decision(epoch: int, seq: int, shard: str = "s0") -> dict[str, Any]:
    return {"epoch": epoch, "seq": seq, "shard": shard}


def test_only_a_newer_epoch_advances() -> None:
    fence = Fence()
    assert fence.advance("s0", 5)
    assert not fence.advance("s0", 5)
    assert not fence.advance("s0", 4)
    assert fence.advance("s1", 1), "shards are independent"


def test_an_older_decision_of_a_flow_is_stale() -> None:
    flow = FlowState("f", fence=(5, 7))
    assert Fence().refusal(flow, decision(5, 6)) == "STALE"
    assert Fence().refusal(flow, decision(4, 99)) == "STALE"
    assert Fence().refusal(flow, decision(5, 8)) is None
    assert Fence().refusal(flow, decision(6, 0)) is None


def test_a_decision_of_an_older_owner_is_stale_for_a_flow_without_decisions() -> None:
    fence = Fence()
    fence.advance("s0", 6)
    assert fence.refusal(FlowState("f"), decision(5, 1)) == "STALE"
    assert fence.refusal(FlowState("f"), decision(5, 1, "s1")) is None


def test_the_same_decision_has_the_outcome_that_it_had() -> None:
    assert Fence().refusal(FlowState("f", fence=(5, 7), outcome="APPLIED"), decision(5, 7)) == "DUPLICATE"
    assert Fence().refusal(FlowState("f", fence=(5, 7), outcome="FAILED"), decision(5, 7)) == "FAILED"


def test_the_number_of_shards_is_bounded() -> None:
    fence = Fence()
    for number in range(MAX_SHARDS + 1):
        fence.advance(f"s{number}", 1)
    assert len(fence.epochs) == MAX_SHARDS
    assert "s0" not in fence.epochs

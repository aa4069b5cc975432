"""Cycle results: suppressed actions as elements of a policy cycle."""

from __future__ import annotations

from schemas.reasons import Reason
from schemas.records import ReasonKind
from streams.policy.cycle import CycleResult, SuppressedAction


def test_a_suppressed_action_becomes_a_record_with_its_reason() -> None:
    action = SuppressedAction("f", "REROUTE", "MOVED_SHARE", ReasonKind.DOWN, Reason("a<>b", 7))
    assert action.record() == {
        "flow_id": "f",
        "action": "REROUTE",
        "cause": "MOVED_SHARE",
        "reason": {"kind": "DOWN", "subject": "a<>b", "seq": 7, "window_id": None},
    }


def test_results_of_two_cycles_share_nothing() -> None:
    first, second = CycleResult(), CycleResult()
    first.suppressed.append(SuppressedAction("f", "PACE", "WAITING", ReasonKind.INCAST, Reason()))
    assert second.suppressed == []

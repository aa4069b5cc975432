"""Action budget: moves and rate changes against the limits."""

from __future__ import annotations

from schemas.limits import Limits
from streams.policy.action_budget import NS_PER_MINUTE, ActionBudget
from streams.runtime.units import NS_PER_S

LIMITS = Limits(max_actions_per_s=2, max_moved_share=0.4)
FLOWS = 10


def test_actions_per_second_count_per_host() -> None:
    budget = ActionBudget()
    for flow_id in ("a", "b"):
        assert budget.check_move(flow_id, "h1", LIMITS, FLOWS, 0, urgent=True) is None
        budget.count_move(flow_id, "h1", 0, urgent=True)
    assert budget.check_move("c", "h1", LIMITS, FLOWS, NS_PER_S - 1, urgent=True) == "ACTIONS_PER_S"
    assert budget.check_move("c", "h2", LIMITS, FLOWS, NS_PER_S - 1, urgent=True) is None
    assert budget.check_move("c", "h1", LIMITS, FLOWS, NS_PER_S, urgent=True) is None


def test_half_of_the_moves_within_a_minute_is_reserved_for_urgent_ones() -> None:
    budget = ActionBudget()
    for n, flow_id in enumerate(("a", "b")):
        budget.count_move(flow_id, f"h{n}", 0, urgent=False)
    assert budget.check_move("c", "h5", LIMITS, FLOWS, 1, urgent=False) == "MOVED_SHARE"
    assert budget.check_move("c", "h5", LIMITS, FLOWS, 1, urgent=True) is None
    assert budget.check_move("a", "h5", LIMITS, FLOWS, 1, urgent=False) is None, "a flow counts once"
    assert budget.check_move("c", "h5", LIMITS, FLOWS, NS_PER_MINUTE, urgent=False) is None


def test_failover_leaves_other_moves_their_half_within_the_share_of_all() -> None:
    budget = ActionBudget()
    for flow_id in ("a", "b", "c"):
        budget.count_move(flow_id, f"h{flow_id}", 0, urgent=True)
    for flow_id in ("a", "b"):
        budget.count_move(flow_id, f"h{flow_id}", 0, urgent=False)
    assert budget.check_move("d", "h5", LIMITS, FLOWS, 1, urgent=False) is None
    budget.count_move("d", "h5", 1, urgent=False)
    for urgent in (True, False):
        assert budget.check_move("e", "h6", LIMITS, FLOWS, 2, urgent=urgent) == "MOVED_SHARE", "four of ten"


def test_rate_changes_of_one_flow_within_a_second_count_once() -> None:
    budget = ActionBudget()
    for at_ns in (0, 1, 2, 3):
        assert budget.check_rate("a", "h1", LIMITS, at_ns) is None
        budget.count_rate("a", "h1", at_ns)
    budget.count_rate("b", "h1", 4)
    assert budget.check_rate("c", "h1", LIMITS, 5) == "ACTIONS_PER_S"

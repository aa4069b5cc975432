"""A paced receiver: its senders, their classes and the end of pacing."""

from __future__ import annotations

from streams.policy.rates.pacing_feedback import FeedbackTable
from streams.policy.rates.pacing_receiver import PacingRules, Receiver
from streams.runtime.flow_table import LiveFlow

S = 1_000_000_000
LINK_BPS = 1_000_000_000
RULES = PacingRules()


def flow(name: str, rate_bps: float) -> LiveFlow:
    return LiveFlow(name, f"{name}/a", "h9/a", None, None, rate_bps, False, False, (), 100, None)


def receiver() -> Receiver:
    feedback = FeedbackTable().begin("h9/a", LINK_BPS, 2, 0)
    return Receiver("l1:1>h9:a", LINK_BPS, "w/1", RULES.first_share, feedback, RULES)


def test_small_flows_and_those_that_cannot_be_paced_are_left_alone() -> None:
    made = receiver()
    made.update_senders([flow("heavy", 4e8), flow("fixed", 4e8), flow("small", 1e6)])
    found = made.classify({"heavy", "small"}, has_incast=True, now_ns=S)
    assert [sender.live.flow_id for sender in found.members] == ["heavy"]
    assert sorted(sender.live.flow_id for sender in found.others) == ["fixed", "small"]
    assert found.joined
    assert not made.classify({"heavy", "small"}, has_incast=True, now_ns=2 * S).joined


def test_a_sender_that_ended_is_forgotten() -> None:
    made = receiver()
    made.update_senders([flow("a", 4e8), flow("b", 4e8)])
    made.update_senders([flow("b", 4e8)])
    assert list(made.senders) == ["b"]


def test_pacing_ends_some_time_after_the_last_flow_sent() -> None:
    made = receiver()
    made.update_senders([flow("a", 4e8)])
    made.classify({"a"}, has_incast=True, now_ns=S)
    made.update_senders([flow("a", 0.0)])
    made.classify({"a"}, has_incast=False, now_ns=2 * S)
    assert made.should_end(has_incast=False, now_ns=S + RULES.keep_ns)
    assert not made.should_end(has_incast=False, now_ns=S + RULES.keep_ns - 1)
    assert not made.should_end(has_incast=True, now_ns=S + RULES.keep_ns)


def test_a_queue_above_the_target_lowers_the_share_by_a_bounded_cut() -> None:
    made = receiver()
    assert made.granted_share() == RULES.first_share
    made.excess_ns = RULES.drain_ns * RULES.max_cut / 2
    assert RULES.first_share * (1 - RULES.max_cut) < made.granted_share() < RULES.first_share
    made.excess_ns = 1e12
    assert made.granted_share() == RULES.first_share * (1 - RULES.max_cut)
    made.reset(S)
    assert made.granted_share() == RULES.first_share

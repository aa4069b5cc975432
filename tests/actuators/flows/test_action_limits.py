"""Action limits: actions per second, and flows moved per minute."""

from __future__ import annotations

from actuators.flows.action_limits import MINUTE_NS, SECOND_NS, ActionLimits


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_host_takes_so_many_actions_within_any_second() -> None:
    clock = Clock()
    limits = ActionLimits(clock)
    assert [limits.admit(2) for _ in range(3)] == [True, True, False]
    clock.now_ns = SECOND_NS - 1
    assert not limits.admit(2)
    clock.now_ns = SECOND_NS
    assert [limits.admit(2) for _ in range(3)] == [True, True, False], "refused actions do not count"
    assert limits.admit(3), "a higher limit counts at once"


def test_a_flow_that_moved_may_move_again_when_the_limit_is_reached() -> None:
    clock = Clock()
    limits = ActionLimits(clock)
    limits.add_move("a")
    assert limits.may_move("a", 1)
    assert not limits.may_move("b", 1)
    assert limits.may_move("b", 2)


def test_a_move_counts_for_a_minute_after_the_newest_move_of_the_flow() -> None:
    clock = Clock()
    limits = ActionLimits(clock)
    limits.add_move("a")
    clock.now_ns = SECOND_NS
    limits.add_move("b")
    clock.now_ns = 2 * SECOND_NS
    limits.add_move("a")
    clock.now_ns = MINUTE_NS + SECOND_NS
    assert limits.may_move("c", 2), "the move of b is over"
    assert not limits.may_move("c", 1), "the second move of a is not"
    clock.now_ns += SECOND_NS
    assert limits.may_move("c", 1)

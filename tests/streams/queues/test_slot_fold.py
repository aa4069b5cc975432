"""How many slots inference combines into one, by its backlog and the time that its blocks take."""

from __future__ import annotations

import itertools

import pytest

from streams.queues.slot_fold import FIRST_CALM_NS, MAX_CALM_NS, SKIP_LATE_NS, Fold, next_fold

MS = 1_000_000
BLOCK = 10 * MS
OVERLOADED = Fold(busy=1.5)


def settle(fold: Fold, blocks: int, backlog_ms: float, share: float, at: int = 0) -> Fold:
    """Solve so many blocks with one backlog and one share of time."""
    for number in range(blocks):
        end_ns = at + (number + 1) * BLOCK
        fold = next_fold(fold, end_ns, BLOCK, round(backlog_ms * MS), round(share * BLOCK))
    return fold


def run(capacity: float, seconds: float, cost: dict[int, float], fold: Fold | None = None) -> list[int]:
    """Solve blocks on a machine that gives `capacity` of a core; `cost`: share of a core by fold."""
    fold = fold or Fold()
    free_ns, now_ns, slots = 0.0, 0, []
    while now_ns < seconds * 1e9:
        now_ns += BLOCK
        spent_ns = BLOCK * cost[fold.slots] / capacity
        free_ns = max(free_ns, now_ns) + spent_ns
        fold = next_fold(fold, now_ns, BLOCK, round(free_ns - now_ns - spent_ns), round(spent_ns))
        slots.append(fold.slots)
    assert free_ns - now_ns < SKIP_LATE_NS, "blocks would be skipped"
    return slots


@pytest.mark.parametrize(
    ("backlog_ms", "slots"), [(0, 1), (200, 1), (201, 2), (240, 2), (241, 4), (280, 4), (281, 8), (1e5, 8)]
)
def test_a_backlog_makes_slots_longer_at_once(backlog_ms: float, slots: int) -> None:
    assert settle(OVERLOADED, 1, backlog_ms, 1.5).slots == slots


def test_a_pause_of_the_worker_makes_no_slots_longer() -> None:
    """Blocks cost little: the backlog is worked off, or skipped, at once."""
    assert settle(Fold(), 20, 1_000, 0.3).slots == 1


def test_a_smaller_backlog_does_not_make_them_shorter_at_once() -> None:
    coarse = settle(OVERLOADED, 1, 900, 1.5)
    assert settle(coarse, 1_000, 150, 0.1).slots == 8
    assert settle(coarse, 400, 0, 0.1).slots == 8


def test_slots_are_short_again_once_they_fit() -> None:
    calm = FIRST_CALM_NS // BLOCK + 1
    coarse = settle(OVERLOADED, 1, 260, 1.5)
    assert settle(coarse, 100 * calm, 0, 0.6).slots == 4, "half the slots would cost up to twice as much"
    assert settle(coarse, calm + 200, 0, 0.3).slots == 2
    assert settle(coarse, 3 * calm, 0, 0.05).slots == 1


def test_an_attempt_that_fails_waits_longer_each_time() -> None:
    fold, end_ns, waits = settle(OVERLOADED, 1, 220, 1.5), BLOCK, []
    for _ in range(8):
        began_ns = end_ns
        while fold.slots == 2:
            end_ns += BLOCK
            fold = next_fold(fold, end_ns, BLOCK, 0, round(0.3 * BLOCK))
        waits.append(end_ns - began_ns)
        while fold.slots == 1:
            end_ns += BLOCK
            fold = next_fold(fold, end_ns, BLOCK, 220 * MS, 2 * BLOCK)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(MAX_CALM_NS, rel=0.01)
    proven = settle(Fold(2, 0.3, 0, 0, MAX_CALM_NS), 2_100, 0, 0.5)
    assert proven.calm_ns == FIRST_CALM_NS


def test_it_keeps_up_above_capacity_and_returns_when_load_allows() -> None:
    cost = {1: 1.2, 2: 0.8, 4: 0.5, 8: 0.35}
    assert set(run(2.0, 30, cost)) == {1}
    slots = run(1.0, 120, cost)
    assert slots.count(2) > 0.9 * len(slots), "the shortest that fit"
    assert sum(a != b for a, b in itertools.pairwise(slots)) < 10, "it does not oscillate"
    assert run(0.45, 60, cost)[-1] == 8
    after = run(4.0, 60, cost, Fold(8, 0.9))
    assert after[-1] == 1


def test_time_that_steps_back_changes_nothing_for_ever() -> None:
    fold = settle(OVERLOADED, 1, 150, 1.0, at=10**18)
    assert settle(fold, FIRST_CALM_NS // BLOCK + 200, 0, 0.1).slots == 1

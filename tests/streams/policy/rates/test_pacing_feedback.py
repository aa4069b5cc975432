"""Pacing feedback: pacing does not slow alternating flows."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from streams.policy.rates.pacing_feedback import FeedbackTable, PacingFeedback, PacingFeedbackRules
from tests.streams.policy.alternating_loop import MS, AlternatingLoop, S
from tests.streams.policy.rate_loop import RateLoop

LINK_BPS = 100_000_000
JOBS: list[dict[str, Any]] = [{}, {"seed": 5}, {"step_ms": 10.0}, {"together": False}]


@functools.cache
def ran(acts: bool, seconds: float, **job: Any) -> AlternatingLoop:
    loop = AlternatingLoop(acts=acts, **job)
    loop.advance(seconds)
    return loop


@pytest.mark.parametrize("ignore_incasts_ms", [0, 3000], ids=["not seen before", "seen before"])
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_an_all_to_all_in_steps_is_not_slowed(job: dict[str, Any], ignore_incasts_ms: int) -> None:
    free, paced = ran(False, 15, **job), ran(True, 15, ignore_incasts_ms=ignore_incasts_ms, **job)
    assert paced.wanted, "the receiver is paced at first"
    begun, settled, end = ignore_incasts_ms, ignore_incasts_ms + 3000, 15_000
    assert paced.done(begun, settled) >= free.done(begun, settled) / 1.5
    assert paced.iteration_ms(settled, end) <= 1.1 * free.iteration_ms(settled, end)


@pytest.mark.slow("simulates minutes of a fleet")
def test_an_all_to_all_is_not_slowed_for_minutes() -> None:
    free, paced = ran(False, 15), ran(True, 150)
    assert paced.iteration_ms(3000, 150_000) <= 1.1 * free.iteration_ms(3000, 15_000)
    slow = [b - a for a, b in zip(paced.iterations, paced.iterations[1:], strict=False) if a > 3000]
    assert max(slow) <= 2 * free.iteration_ms(3000, 15_000)


def test_an_incast_observed_before_pacing_stays_paced_evenly() -> None:
    loop = RateLoop(noise=0.1)
    take, loop.rates.take_contention = loop.rates.take_contention, lambda record: None  # type: ignore[method-assign]
    flows = [loop.open(1 + n, 0, 50_000 + n) for n in range(16)]
    loop.advance(4)
    before = loop.delay_ms(0, 1).mean()
    loop.rates.take_contention = take  # type: ignore[method-assign]
    loop.advance(30)
    assert len(loop.leases) == 16
    assert loop.delay_ms(0, 20).mean() <= 0.25 * before
    assert sum(loop.bps(flow, 20) for flow in flows) >= 0.92 * LINK_BPS


class Receiver:
    """One receiver whose receive rate is a function of the oversubscription."""

    def __init__(
        self, table: FeedbackTable, receive_rate_of: Any, *, at_s: float = 0.0, before_bps: float = 90e6
    ) -> None:
        self.table, self.receive_rate_of, self.now_ns = table, receive_rate_of, round(at_s * S)
        for _ in range(30 if before_bps else 0):
            self.add(before_bps)
        self.feedback: PacingFeedback = table.begin("h0/0", LINK_BPS, 28, self.now_ns)

    def add(self, bps: float) -> None:
        self.now_ns += 100 * MS
        self.table.receive_rate("h0/0").add(bps, self.now_ns)

    def advance(self, seconds: float, queue_ns: float = 0.0) -> None:
        for _ in range(round(10 * seconds)):
            self.add(self.receive_rate_of(self.feedback.oversubscription))
            self.feedback.step(
                self.now_ns,
                granted_bps=93e6,
                flows=28,
                limited=True,
                queue_ns=queue_ns,
                over_target=False,
                last_raise_ns=self.feedback.raised_ns,
            )

    def end(self) -> None:
        self.table.end("h0/0", self.feedback, 28, self.now_ns)


def four_at_once(oversubscription: float) -> float:
    return min(90e6, oversubscription * 4 / 28 * 93e6)


def test_the_number_of_concurrent_senders_is_kept_for_the_next_incast() -> None:
    table = FeedbackTable()
    first = Receiver(table, four_at_once)
    assert first.feedback.oversubscription == 1
    first.advance(2, 1e6)
    assert 6 <= first.feedback.oversubscription < 28
    assert not first.feedback.ineffective
    first.end()
    assert Receiver(table, four_at_once, at_s=120, before_bps=0).feedback.oversubscription == pytest.approx(
        first.feedback.oversubscription
    )
    assert Receiver(table, four_at_once, at_s=1000).feedback.oversubscription == 1, "kept for minutes only"


def test_a_trial_without_an_earlier_receive_rate_ends_within_about_a_second() -> None:
    receiver = Receiver(FeedbackTable(), four_at_once, before_bps=0)
    receiver.advance(1.2)
    assert four_at_once(receiver.feedback.oversubscription) >= 80e6


def test_a_loss_that_no_raise_recovers_is_not_due_to_pacing() -> None:
    receiver = Receiver(FeedbackTable(), lambda oversubscription: 30e6)
    receiver.advance(6)
    assert (receiver.feedback.oversubscription, receiver.feedback.ineffective) == (1, False)
    assert receiver.feedback.before_bps == pytest.approx(30e6)


def test_pauses_between_iterations_are_not_a_shortfall() -> None:
    """Iterations of 350 ms with pauses of 50 ms, as reports of 50 ms show them."""
    seen = itertools.cycle([93e6, 93e6, 93e6, 40e6])
    receiver = Receiver(FeedbackTable(), lambda oversubscription: next(seen), before_bps=85e6)
    receiver.advance(10)
    assert (receiver.feedback.oversubscription, receiver.feedback.insufficient) == (1, 0)


def test_a_raise_without_effect_is_reverted() -> None:
    receiver = Receiver(FeedbackTable(), lambda oversubscription: 80e6 if receiver.now_ns > low_ns else 40e6)
    low_ns = receiver.now_ns + 900 * MS
    receiver.receive_rate_of = lambda oversubscription: (
        80e6 if receiver.now_ns > low_ns else 75e6 * min(oversubscription, 1.05) / 1.2
    )
    receiver.advance(0.9)
    assert receiver.feedback.oversubscription > 1, "the receive rate looked too low"
    receiver.advance(5)
    assert (receiver.feedback.oversubscription, receiver.feedback.insufficient) == (1, 0)


def test_a_receiver_that_pacing_does_not_help_is_excluded_longer_each_time() -> None:
    table, at_s, waits = FeedbackTable(PacingFeedbackRules()), 0.0, []
    for _ in range(3):
        receiver = Receiver(table, lambda oversubscription: 90e6, at_s=at_s)
        receiver.advance(12, 5e6)
        assert receiver.feedback.ineffective, "the queue has not changed"
        receiver.end()
        waits.append(next(s for s in range(1000) if not table.is_excluded("h0/0", receiver.now_ns + s * S)))
        at_s = receiver.now_ns / S + waits[-1]
    assert waits == [60, 120, 240]

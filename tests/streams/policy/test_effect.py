"""Pacing judges what it does: flows that take turns are not slowed by it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from streams.policy.pacing_feedback import FeedbackTable, PacingFeedback, PacingFeedbackRules
from tests.streams.policy.rate_loop import RateLoop
from tests.streams.policy.turns_loop import MS, S, TurnsLoop

LINK_BPS = 100_000_000
JOBS: list[dict[str, Any]] = [{}, {"seed": 5}, {"step_ms": 10.0}, {"together": False}]


@functools.cache
def ran(acts: bool, seconds: float, **job: Any) -> TurnsLoop:
    loop = TurnsLoop(acts=acts, **job)
    loop.advance(seconds)
    return loop


@pytest.mark.parametrize("quiet_ms", [0, 3000], ids=["not seen before", "seen before"])
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_an_all_to_all_in_steps_is_not_slowed(job: dict[str, Any], quiet_ms: int) -> None:
    free, held = ran(False, 15, **job), ran(True, 15, quiet_ms=quiet_ms, **job)
    assert held.wanted, "it is paced at first"
    begun, settled, end = quiet_ms, quiet_ms + 3000, 15_000
    assert held.done(begun, settled) >= free.done(begun, settled) / 1.5
    assert held.iteration_ms(settled, end) <= 1.1 * free.iteration_ms(settled, end)


def test_it_stays_so_for_minutes() -> None:
    free, held = ran(False, 15), ran(True, 150)
    assert held.iteration_ms(3000, 150_000) <= 1.1 * free.iteration_ms(3000, 15_000)
    slow = [b - a for a, b in zip(held.iterations, held.iterations[1:], strict=False) if a > 3000]
    assert max(slow) <= 2 * free.iteration_ms(3000, 15_000)


def test_an_incast_that_was_seen_before_it_was_paced_stays_paced_evenly() -> None:
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
    """One receiver whose intake follows `turns` as `takes` says."""

    def __init__(self, effects: FeedbackTable, takes: Any, *, at_s: float = 0.0, before_bps: float = 90e6) -> None:
        self.effects, self.takes, self.now_ns = effects, takes, round(at_s * S)
        for _ in range(30 if before_bps else 0):
            self.hear(before_bps)
        self.effect: PacingFeedback = effects.begin("h0/0", LINK_BPS, 28, self.now_ns)

    def hear(self, bps: float) -> None:
        self.now_ns += 100 * MS
        self.effects.receive_rate("h0/0").add(bps, self.now_ns)

    def advance(self, seconds: float, queue_ns: float = 0.0) -> None:
        for _ in range(round(10 * seconds)):
            self.hear(self.takes(self.effect.oversubscription))
            self.effect.step(
                self.now_ns, granted_bps=93e6, flows=28, limited=True, queue_ns=queue_ns, over_target=False,
                last_raise_ns=self.effect.raised_ns,
            )  # fmt: skip

    def end(self) -> None:
        self.effects.end("h0/0", self.effect, 28, self.now_ns)


def four_at_once(turns: float) -> float:
    return min(90e6, turns * 4 / 28 * 93e6)


def test_how_many_send_at_once_is_learnt_and_used_the_next_time() -> None:
    effects = FeedbackTable()
    first = Receiver(effects, four_at_once)
    assert first.effect.oversubscription == 1
    first.advance(2, 1e6)
    assert 6 <= first.effect.oversubscription < 28
    assert not first.effect.ineffective
    first.end()
    assert Receiver(effects, four_at_once, at_s=120, before_bps=0).effect.oversubscription == pytest.approx(
        first.effect.oversubscription
    )
    assert Receiver(effects, four_at_once, at_s=1000).effect.oversubscription == 1, "minutes, not for ever"


def test_without_a_before_a_trial_ends_within_about_a_second() -> None:
    receiver = Receiver(FeedbackTable(), four_at_once, before_bps=0)
    receiver.advance(1.2)
    assert four_at_once(receiver.effect.oversubscription) >= 80e6


def test_what_no_raise_brings_back_was_not_lost_to_pacing() -> None:
    receiver = Receiver(FeedbackTable(), lambda turns: 30e6)
    receiver.advance(6)
    assert (receiver.effect.oversubscription, receiver.effect.ineffective) == (1, False)
    assert receiver.effect.before_bps == pytest.approx(30e6)


def test_the_pauses_of_rounds_are_no_shortfall() -> None:
    """Rounds of 350 ms, and 50 ms of pause, as reports of 50 ms show them."""
    seen = itertools.cycle([93e6, 93e6, 93e6, 40e6])
    receiver = Receiver(FeedbackTable(), lambda turns: next(seen), before_bps=85e6)
    receiver.advance(10)
    assert (receiver.effect.oversubscription, receiver.effect.insufficient) == (1, 0)


def test_a_raise_that_brought_nothing_is_taken_back() -> None:
    receiver = Receiver(FeedbackTable(), lambda turns: 80e6 if receiver.now_ns > low_ns else 40e6)
    low_ns = receiver.now_ns + 900 * MS
    receiver.takes = lambda turns: 80e6 if receiver.now_ns > low_ns else 75e6 * min(turns, 1.05) / 1.2
    receiver.advance(0.9)
    assert receiver.effect.oversubscription > 1, "it looked as if paces were too tight"
    receiver.advance(5)
    assert (receiver.effect.oversubscription, receiver.effect.insufficient) == (1, 0)


def test_a_receiver_that_pacing_does_not_help_is_left_alone_longer_each_time() -> None:
    effects, at_s, waits = FeedbackTable(PacingFeedbackRules()), 0.0, []
    for _ in range(3):
        receiver = Receiver(effects, lambda turns: 90e6, at_s=at_s)
        receiver.advance(12, 5e6)
        assert receiver.effect.ineffective, "the queue is what it was"
        receiver.end()
        waits.append(next(s for s in range(1000) if not effects.is_excluded("h0/0", receiver.now_ns + s * S)))
        at_s = receiver.now_ns / S + waits[-1]
    assert waits == [60, 120, 240]

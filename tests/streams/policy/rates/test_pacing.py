"""Pacing in a closed loop: an incast at one NIC of a simulated fleet, observed late and with noise."""

from __future__ import annotations

import numpy as np
import pytest

from tests.streams.policy.rate_loop import RateLoop, S, jain

SENDERS = 16
SMALL_BPS = 500_000
LINK_BPS = 100_000_000


def endless(loop: RateLoop, count: int = SENDERS):
    return [loop.open(1 + n, 0, 50_000 + n) for n in range(count)]


def run_rounds(loop: RateLoop, count: int, *, pause_s: float = 0.5, size: float = 256e3):
    """Run repeated incasts. Return the flows, the duration of each, s, and the delays after the first, ms."""
    flows = [loop.open(1 + n, 0, 50_000 + n, endless=False) for n in range(SENDERS)]
    loop.advance(1)
    took, waited = [], []
    for _ in range(count):
        for flow in flows:
            loop.sends(flow, size)
        took.append(loop.until(lambda: all(loop.left(flow) <= 0 for flow in flows), 20))
        loop.advance(pause_s)
        waited.append(loop.delay_ms(0, took[-1] + pause_s))
    return flows, took, np.concatenate(waited[1:])


@pytest.mark.parametrize(
    "sim", [{}, {"rate_bps": 400_000_000_000, "lossless": True}], ids=["100 Mbit/s", "400 Gbit/s"]
)
def test_a_standing_incast_is_drained_evenly_and_the_link_stays_full(sim) -> None:
    queue, carried = {}, {}
    for acts in (False, True):
        loop = RateLoop(acts=acts, **sim)
        flows = endless(loop)
        loop.advance(10)
        rates = [loop.bps(flow, 5) for flow in flows]
        queue[acts], carried[acts] = np.percentile(loop.delay_ms(0, 7), 99), sum(rates)
    assert queue[True] <= 0.25 * queue[False]
    assert carried[True] >= 0.92 * carried[False]
    assert jain(rates) > 0.95
    loop.advance(10)
    paces = [w.rate_bps for at_ns, w in loop.made if at_ns > loop.run.now_ns - 5 * S]
    assert max(paces) <= 1.05 * min(paces), "paces settle"
    assert {(w.action, w.kind) for _, w in loop.made} == {("PACE", "INCAST")}


@pytest.mark.parametrize("pause_s", [0.5, 3.0])
def test_repeated_incasts_stay_paced_across_pauses(pause_s: float) -> None:
    figures = {}
    for acts in (False, True):
        loop = RateLoop(acts=acts)
        rpc = loop.open(20, 0, 51_000, demand_bps=SMALL_BPS)
        flows, took, waited = run_rounds(loop, 6, pause_s=pause_s)
        figures[acts] = np.percentile(waited, 99), np.median(took[1:])
    assert figures[True][0] <= 0.25 * figures[False][0]
    assert figures[True][1] <= SENDERS * 256e3 * 8 / loop.fleet.rate_bps[0] / 0.92 + 0.01
    assert {w.action for _, w in loop.made} == {"PACE"}
    assert {w.flow_id for _, w in loop.made} == {flow.flow_id for flow in flows}
    assert rpc.flow_id not in loop.leases, "small flows are not paced"


def test_first_paces_come_at_once_and_are_slightly_below_an_even_share() -> None:
    loop = RateLoop(noise=0.0)
    endless(loop)
    loop.until(lambda: bool(loop.made), 1.0)
    opened_ns = next(iter(loop.windows.values()))["opened_ns"]
    at_ns = loop.made[0][0]
    assert at_ns - opened_ns <= 0.06 * S
    first = [w for when, w in loop.made if when == at_ns]
    assert len(first) >= SENDERS / 2
    assert all(w.urgent and w.expires_at_ns == at_ns + 2 * S for w in first)
    assert all(w.rate_bps * len(first) <= 0.95 * loop.fleet.rate_bps[0] for w in first)
    loop.advance(1)
    paces = {w.flow_id: w.rate_bps for _, w in loop.made}
    assert len(paces) == SENDERS
    assert sum(paces.values()) <= 0.95 * loop.fleet.rate_bps[0]


def test_pacing_ends_after_the_incast_and_leases_expire_without_renewal() -> None:
    loop = RateLoop()
    flows = endless(loop)
    loop.advance(4)
    assert len(loop.leases) == SENDERS
    for flow in flows:
        loop.want(flow, 0)
    loop.advance(15)
    assert not loop.leases
    assert all(flow.limit_bps is None for flow in flows)
    last = {w.flow_id: (w.action, w.kind) for _, w in loop.made}
    assert set(last.values()) == {("UNPACE", "DRAINED")}
    for flow in flows:
        loop.want(flow, None)
    loop.advance(3)
    assert len(loop.leases) == SENDERS
    loop.every = 1_000_000  # the policy has stopped
    loop.advance(2.5)
    assert all(flow.limit_bps is None for flow in flows)


def test_remaining_senders_get_the_freed_capacity_until_paces_no_longer_bind() -> None:
    loop = RateLoop()
    flows = endless(loop)
    loop.advance(4)
    for flow in flows[4:]:
        loop.want(flow, 0)
    loop.advance(8)
    rates = [loop.bps(flow, 3) for flow in flows[:4]]
    assert sum(rates) >= 0.92 * loop.fleet.rate_bps[0]
    assert jain(rates) > 0.95
    for flow in flows[:4]:
        loop.want(flow, 0.05 * loop.fleet.rate_bps[0])
    loop.advance(12)
    assert not loop.leases
    published = len(loop.made)
    loop.advance(20)
    assert len(loop.made) == published, "and pacing does not start again"


def test_demands_below_an_even_share_are_met_and_the_rest_is_shared() -> None:
    loop = RateLoop()
    few = [loop.open(1 + n, 0, 50_000 + n, demand_bps=2e6) for n in range(8)]
    many = [loop.open(9 + n, 0, 50_100 + n) for n in range(8)]
    loop.advance(12)
    assert [loop.bps(flow, 4) for flow in few] == pytest.approx([2e6] * 8, rel=0.02)
    rates = [loop.bps(flow, 4) for flow in many]
    assert jain(rates) > 0.95
    assert sum(rates) >= 0.88 * (1e8 - 16e6)


def test_a_flow_that_must_not_be_paced_reduces_the_share_of_the_others() -> None:
    loop = RateLoop(noise=0.0)
    flows = endless(loop, 8)
    free = flows[0].flow_id
    loop.run.set_flow_rate(free, 20e6)
    decide = loop.rates.decide
    loop.rates.decide = lambda now_ns, live: decide(  # type: ignore[method-assign]
        now_ns, live, lambda flow, action: flow.flow_id != free
    )
    loop.advance(8)
    assert free not in {w.flow_id for _, w in loop.made}
    rates = [loop.bps(flow, 3) for flow in flows[1:]]
    assert sum(rates) == pytest.approx(0.97e8 - 20e6, rel=0.05)


def test_paces_that_are_not_in_force_do_not_change_the_model() -> None:
    loop = RateLoop(acts=False, reports=True)
    flows = endless(loop)
    loop.advance(30)
    assert {w.action for _, w in loop.made} == {"PACE"}, "published all the time"
    late = [w.rate_bps for at_ns, w in loop.made if at_ns > 5 * S + loop.made[0][0]]
    assert min(late) == pytest.approx(0.93 * LINK_BPS / SENDERS, rel=0.01), "and unchanged"
    assert max(late) <= 1.05 * min(late)
    queued = loop.delay_ms(0, 5).mean()
    loop.acts = True
    loop.advance(3)
    assert loop.delay_ms(0, 1).mean() <= 0.25 * queued
    assert sum(loop.bps(flow, 1) for flow in flows) >= 0.92 * LINK_BPS


def test_a_refused_pace_is_published_again_soon() -> None:
    loop = RateLoop(noise=0.0, acts=False)
    endless(loop, 4)
    loop.until(lambda: bool(loop.made), 1.0)
    for outcome, within_s in (("OLD_CONFIG", 0.1), ("FAILED", 0.7)):
        wanted, now_ns = loop.made[-1][1], loop.run.now_ns
        loop.rates.take_action(
            {"flow_id": wanted.flow_id, "action": "PACE", "outcome": outcome, "at_ns": now_ns}
        )
        loop.advance(within_s)
        assert wanted.flow_id in {w.flow_id for at_ns, w in loop.made if at_ns > now_ns}, outcome


def test_pacing_ends_if_all_senders_are_gone() -> None:
    loop = RateLoop(noise=0.0, reports=True)
    endless(loop)
    loop.advance(2)
    (receiver,) = loop.rates.pacing._receivers.values()
    receiver.feedback.oversubscription = 2.0
    assert loop.rates.decide(loop.run.now_ns + S, []) == []
    assert loop.rates.in_force() == {}


def test_a_suppressed_pace_is_wanted_again_later() -> None:
    loop = RateLoop(noise=0.0, acts=False)
    endless(loop, 4)
    loop.until(lambda: bool(loop.made), 1.0)
    wanted = loop.made[0][1]
    now_ns = loop.run.now_ns
    loop.rates.refuse(wanted, now_ns)
    loop.advance(0.4)
    assert wanted.flow_id not in {w.flow_id for at_ns, w in loop.made if at_ns > now_ns}
    loop.advance(0.2)
    again = [w for at_ns, w in loop.made if at_ns > now_ns and w.flow_id == wanted.flow_id]
    assert [w.action for w in again] == ["PACE"]


def test_paces_that_no_longer_bind_are_found_by_probing_after_a_minute() -> None:
    loop = RateLoop(noise=0.0, every=5)
    flows = endless(loop)
    loop.advance(5)
    for flow in flows:
        loop.want(flow, 0.055 * loop.fleet.rate_bps[0])  # nearly its pace, in sum less than the link
    loop.advance(55)
    assert len(loop.leases) == SENDERS
    loop.advance(25)
    assert not loop.leases
    assert np.percentile(loop.delay_ms(0, 60), 99) < 5


def test_the_same_inputs_give_the_same_rates() -> None:
    published = []
    for _ in range(2):
        loop = RateLoop()
        endless(loop)
        loop.advance(4)
        published.append(loop.made)
    assert published[0] == published[1]

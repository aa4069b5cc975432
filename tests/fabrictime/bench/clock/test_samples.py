"""What the clock bench takes for truth: queues, clocks, stamps and paths are as their laws say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fabrictime.bench.clock.samples import EPOCH_NS, coded_queue, simulate
from fabrictime.bench.clock.scenarios import SCENARIOS, Restart, Step

QUIET = replace(
    SCENARIOS["idle"],
    nics=12,
    peers=4,
    windows=3,
    stamp_noise_ns=0.0,
    stamp_step_ns=1.0,
    drift_ppb=0.0,
    wander_ppb_per_sqrt_s=0.0,
)


def stamps(columns):
    t2 = columns.sent + columns.forward
    t3 = t2 + columns.turnaround
    return columns.sent, t2, t3, t3 + columns.reverse


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_both_probes_of_a_pair_meet_an_m_m_1_queue(load):
    """Idle with probability 1 - load, else exponential: so its mean, and e^-1 of it deeper than that."""
    queue = coded_queue(load, 334.0, 20_000.0, 1 << 16)
    deep = 334.0 / (1 - load)
    for probe in queue.T:
        assert (probe == 0).mean() == pytest.approx(1 - load, abs=0.008)
        assert probe.mean() == pytest.approx(load * deep, rel=0.03)
        assert (probe > deep).mean() == pytest.approx(load / math.e, abs=0.008)


def test_a_queue_that_cannot_run_empty_drains_at_the_rate_that_load_leaves():
    queue = coded_queue(0.8, 334.0, 3_000.0, 1 << 17)
    deep = queue[queue[:, 0] > 3_000]
    # in 3 us come 7.2 frames of 334 ns on average, with a variance of 2 * 334^2 each
    sigma = math.sqrt(0.8 * 3_000 / 334 * 2 * 334**2 / len(deep))
    assert (deep[:, 1] - deep[:, 0]).mean() == pytest.approx(-0.2 * 3_000, abs=4 * sigma)


@pytest.mark.parametrize(
    ("spacing_ns", "min_correlation", "max_correlation"), [(10.0, 0.98, 1.0), (1e6, -0.02, 0.02)]
)
def test_a_queue_is_remembered_for_as_long_as_it_lasts(spacing_ns, min_correlation, max_correlation):
    first, second = coded_queue(0.8, 334.0, spacing_ns, 1 << 15).T
    assert min_correlation <= np.corrcoef(first, second)[0, 1] <= max_correlation


def test_truth_is_the_integral_of_the_rate():
    scenario = replace(QUIET, drift_ppb=5_000.0, wander_ppb_per_sqrt_s=50.0, events=(Step(1.234, 0, 1e6),))
    truth = next(simulate(scenario)).truth
    t = np.arange(0, 4_000_000_000, 1_000_000, dtype=np.float64)
    for nic in range(3):
        ahead = truth.ahead_ns(nic, t)
        rate = truth.ppb[nic][(t[:-1] // 10_000_000).astype(int)]
        grown = np.cumsum(rate * 1e-3)
        stepped = np.where(t[1:] >= 1.234e9, 1e6, 0.0) if nic == 0 else 0.0
        np.testing.assert_allclose(ahead[1:] - ahead[0], grown + stepped, atol=1e-4)


def test_rates_wander_by_the_square_root_of_time():
    scenario = replace(QUIET, nics=400, peers=1, windows=12, wander_ppb_per_sqrt_s=3.0)
    truth = next(simulate(scenario)).truth
    for seconds in (1, 16):
        moved = truth.ppb[:, seconds * 100] - truth.ppb[:, 0]
        assert moved.std() == pytest.approx(3.0 * math.sqrt(seconds), rel=0.15)


def test_a_nic_that_restarts_has_another_clock_and_run():
    scenario = replace(QUIET, events=(Restart(2.0, 0, 3e8, -3_500.0),))
    before, after, _ = simulate(scenario)
    name = before.truth.names[0]
    assert before.flushes[name][-1].run != after.flushes[name][0].run
    assert after.flushes[name][0].batch == 0
    ahead = before.truth.ahead_ns(0, np.array([1.999e9, 2e9, 3e9]))
    assert ahead[1] - ahead[0] == pytest.approx(3e8)
    assert ahead[2] - ahead[1] == pytest.approx(-3_500.0)


def test_without_noise_the_samples_are_the_truth():
    """Half the difference of both ways is the clocks' difference and the path's asymmetry, 10 ns rms."""
    scenario = replace(QUIET, nics=40, peers=10, windows=1, drift_ppb=5_000.0, asymmetry_ns=10.0)
    given = next(simulate(scenario))
    truth = given.truth
    off = {}
    for name, columns in given.columns.items():
        prober = truth.index[name]
        t1, _, _, t4 = stamps(columns)
        for g, peer in enumerate(columns.peers):
            rows = slice(columns.start[g], columns.start[g + 1])
            nic = truth.index[peer]
            at = float((t1[rows] - EPOCH_NS).mean())  # prober's reading; truth is within 1 s of it
            for _ in range(3):
                at = float((t1[rows] - EPOCH_NS).mean()) - float(truth.ahead_ns(prober, np.array([at]))[0])
            half_ns = float((t4[rows] - t1[rows]).mean()) / 2
            ahead = [float(truth.ahead_ns(i, np.array([at + half_ns]))[0]) for i in (nic, prober)]
            half = (columns.forward[rows] - columns.reverse[rows]).mean() / 2
            off[prober, nic] = float(half) - (ahead[0] - ahead[1])
    values = np.array(list(off.values()))
    assert len(values) == 400
    assert math.sqrt((values**2).mean()) == pytest.approx(10.0, rel=0.12)
    both_directions = [(a, b) for a, b in off if (b, a) in off]
    assert len(both_directions) > 20
    for a, b in both_directions:
        assert off[a, b] == pytest.approx(-off[b, a], abs=0.5)


def test_stamps_are_steps_of_the_clock_with_the_configured_noise():
    scenario = replace(QUIET, stamp_noise_ns=4.0, stamp_step_ns=8.0, windows=1)
    columns = next(simulate(scenario)).columns["host000/eth0"]
    for t in stamps(columns):
        assert (t % 8 == 0).all()
    rows = slice(columns.start[0], columns.start[1])
    # two stamps, each with 4 ns rms and a rounding of 8 ns
    expected = math.sqrt(2 * (4.0**2 + 8.0**2 / 12))
    assert columns.forward[rows].std() == pytest.approx(expected, rel=0.08)


def test_probes_come_in_coded_pairs_with_exponential_gaps():
    columns = next(simulate(replace(QUIET, windows=1))).columns["host000/eth0"]
    assert set(columns.spacing_ns.tolist()) == {20_000}
    counts = np.diff(columns.start)
    assert counts.mean() == pytest.approx(1_000, rel=0.1)
    apart = columns.sent[1::2] - columns.sent[::2]
    assert apart.min() >= 20_000
    assert apart.max() <= 20_600
    gaps = np.concatenate([np.diff(columns.sent[a:b:2]) for a, b in pairwise(columns.start)])
    assert gaps.min() > 0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert gaps.mean() == pytest.approx(2e9 / (counts.mean() / 2), rel=0.1)


def test_lost_probes_are_counted_and_their_other_half_is_single():
    columns = next(simulate(replace(QUIET, loss=0.3, windows=1))).columns["host000/eth0"]
    coded = columns.spacing_ns > 0
    counts = np.diff(columns.start)
    assert (counts[coded] % 2 == 0).all()
    sent = counts.sum() + columns.lost.sum()
    assert sent == pytest.approx(4_000, rel=0.08)
    assert counts[coded].sum() / sent == pytest.approx(0.49, abs=0.04)
    assert counts[~coded].sum() / sent == pytest.approx(0.21, abs=0.04)


def test_the_same_seed_gives_the_same_samples():
    scenario = SCENARIOS["churn"].smaller(8, 3, 2)
    for one, other in zip(simulate(scenario, seed=5), simulate(scenario, seed=5), strict=True):
        for name, columns in one.columns.items():
            assert np.array_equal(columns.forward, other.columns[name].forward)
    assert not np.array_equal(next(simulate(scenario, seed=6)).columns[name].forward[:9], columns.forward[:9])


def test_events_end_after_their_interval():
    def probed_by_window(name):
        return [given.probed.sum() for given in simulate(SCENARIOS[name].smaller(16, 4, 24))]

    assert probed_by_window("partition") == [16] * 24
    gone = [given.alive.sum() for given in simulate(SCENARIOS["churn"].smaller(16, 4, 24))]
    assert gone[0] == gone[-1] == 16
    assert min(gone) == 15
    apart = list(simulate(SCENARIOS["partition"].smaller(16, 4, 12)))[-1]
    inside = set(apart.truth.names[:4])
    for name, columns in apart.columns.items():
        for peer, n in zip(columns.peers, np.diff(columns.start), strict=True):
            assert (n > 0) == ((name in inside) == (peer in inside))

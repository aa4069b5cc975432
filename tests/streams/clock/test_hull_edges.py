"""Rates of clocks from the edges of all pairs' hulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import solve_mesh
from streams.clock.hull_edges import HullEdges, Rates, rates_by_edges
from streams.clock.mesh import log_ppb, plain_ppb
from streams.clock.pairs import Float64s, Pairs

AT_NS = 1_763_700_000_000_000_000
NOISE_NS = 6.0
READINGS = 250


@dataclass
class Window:
    """One window of a fleet whose pairs hold few readings without a queue."""

    pairs: Pairs
    rates: Float64s
    """True rates of theta, plain ppb."""
    drift: Rates
    own: Rates

    def found(self, start: Rates | None = None) -> Rates:
        noise = np.full(len(self.pairs), NOISE_NS)
        return rates_by_edges(len(self.rates), self.pairs, noise, self.drift, self.own, start or self.own)

    def errors_ppb(self, rates: Rates) -> Float64s:
        off = rates.log_ppb - log_ppb(self.rates)
        return np.asarray(off - np.median(off))


def hull(
    rng: np.random.Generator, slope_ppb: float, empty: int, late_ns: float
) -> tuple[list[int], list[float]]:
    """Return the hull's vertices of `READINGS`: `empty` meet no queue, stamps are late by `late_ns`."""
    after_s = rng.uniform(-1, 1, READINGS)
    queue = rng.exponential(8_000, READINGS) + rng.exponential(8_000, READINGS)
    queue[:empty] = 0
    delay = 5_000 + queue + slope_ppb * after_s + rng.normal(0, NOISE_NS, READINGS)
    delay += rng.exponential(late_ns, READINGS) if late_ns else 0
    order = np.argsort(after_s)
    kept: list[int] = []
    for k in order.tolist():
        while len(kept) >= 2:
            a, b = kept[-2:]
            bend = (delay[b] - delay[a]) * (after_s[k] - after_s[b]) - (delay[k] - delay[b]) * (
                after_s[b] - after_s[a]
            )
            if bend < 0:
                break
            kept.pop()
        kept.append(k)
    lowest = kept.index(min(kept, key=lambda k: float(delay[k])))
    kept = kept[max(lowest - 3, 0) : lowest + 4]
    return [round(after_s[k] * 1e9) for k in kept], [float(delay[k]) for k in kept]


def window(
    seed: int,
    *,
    rates: Float64s | None = None,
    edges: list[tuple[int, int]] | None = None,
    mean_empty: float = 1.6,
    late_ns: float = 0.0,
    bare: int = -1,
) -> Window:
    """Return a window of 12 clocks; the pairs of clock `bare` have no reading without a queue."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(-5_000, 5_000, 12) if rates is None else rates
    nodes = len(rates)
    if edges is None:
        edges = [(a, (a + by) % nodes) for a in range(nodes) for by in (1, 2, 3, 4, 5, 7)]
    records: list[dict[str, Any]] = []
    for a, b in edges:
        true_ppb = float(plain_ppb(log_ppb(rates[a]) - log_ppb(rates[b])))
        line_ppb = true_ppb + float(rng.normal(0, 600))
        empty = [0 if bare in (a, b) else int(rng.poisson(mean_empty)) for _ in range(2)]
        forward = hull(rng, true_ppb - line_ppb, empty[0], late_ns)
        reverse = hull(rng, line_ppb - true_ppb, empty[1], late_ns)
        records.append(
            {
                "prober": str(a),
                "peer": str(b),
                "at_ns": AT_NS,
                "offset_ns": 0,
                "drift_ppb": line_ppb,
                "sigma_ns": 1_500.0,
                "drift_sigma_ppb": 3_000.0,
                "rtt_min_ns": 12_000.0,
                "margin_ns": 11_000.0,
                "samples": READINGS,
                "accepted": READINGS,
                "forward_after_ns": forward[0],
                "forward_delay_ns": forward[1],
                "reverse_after_ns": reverse[0],
                "reverse_delay_ns": reverse[1],
            }
        )
    pairs = Pairs.of(records, {str(node): node for node in range(nodes)})  # type: ignore[arg-type]
    drift = Rates(np.asarray(log_ppb(pairs.drift_ppb)), pairs.drift_sigma_ppb)
    solution = solve_mesh(nodes, pairs.peer, pairs.prober, drift.log_ppb, drift.sigma_ppb)
    return Window(pairs, rates, drift, Rates(solution.x, solution.sigma))


@pytest.mark.parametrize("seed", range(10))
def test_clocks_get_the_rates_on_which_edges_agree(seed: int) -> None:
    """Lines alone are off by a hundred ppb, edges by some ppb, and no clock is surer than it may be."""
    fleet = window(seed)
    found = fleet.found()
    errors = np.abs(fleet.errors_ppb(found))
    assert np.median(errors) < 15
    assert np.median(errors) < np.median(np.abs(fleet.errors_ppb(fleet.own))) / 3
    assert (errors <= 6 * found.sigma_ppb).all()


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    mean_empty=st.floats(0, 20),
    late_ns=st.sampled_from([0.0, 30.0, 1_000.0]),
)
def test_any_window_has_rates_that_are_no_less_sure_than_the_lines(
    seed: int, mean_empty: float, late_ns: float
) -> None:
    fleet = window(seed, mean_empty=mean_empty, late_ns=late_ns)
    found = fleet.found()
    assert np.isfinite(found.log_ppb).all()
    assert (found.sigma_ppb > 0).all()
    assert np.median(found.sigma_ppb) <= 1.01 * np.median(fleet.own.sigma_ppb)


def test_a_clock_that_slews_by_500_ppm_gets_its_rate() -> None:
    rates = np.random.default_rng(1).uniform(-5_000, 5_000, 12)
    rates[[3, 7]] = 500_000.0, -500_000.0
    fleet = window(5, rates=rates)
    assert np.abs(fleet.errors_ppb(fleet.found())).max() < 30


@pytest.mark.parametrize("seed", range(4))
def test_stamps_that_are_late_by_chance_leave_the_lines_rates(seed: int) -> None:
    """Without a sharp floor, edges have any slope, and the nearest agree only by choice."""
    fleet = window(seed, late_ns=1_000.0)
    found = fleet.found()
    assert (found.sigma_ppb == fleet.own.sigma_ppb).all()
    assert found.log_ppb == pytest.approx(fleet.own.log_ppb)


def test_a_clock_without_an_edge_keeps_its_lines_doubt() -> None:
    fleet = window(8, bare=4)
    found = fleet.found()
    assert found.sigma_ppb[4] >= fleet.own.sigma_ppb[4]
    others = np.arange(12) != 4
    assert np.median(found.sigma_ppb[others]) < 20
    errors = np.abs(fleet.errors_ppb(found))
    assert np.median(errors[others]) < 15
    assert errors[4] <= 6 * found.sigma_ppb[4]


def test_known_rates_are_left_alone() -> None:
    """Rates that the clocks' tracks know to some ppb gain nothing."""
    fleet = window(2)
    known = Rates(np.asarray(log_ppb(fleet.rates)), np.full(12, 3.0))
    assert fleet.found(known) is fleet.own


def test_parts_that_no_pair_connects_are_solved_apart() -> None:
    """Six clocks with edges, two others with none, and a clock alone."""
    edges = [(a, b) for a in range(6) for b in range(6) if a != b] + [(6, 7), (7, 6)]
    rates = np.random.default_rng(4).uniform(-5_000, 5_000, 9)
    fleet = window(4, rates=rates, edges=edges, bare=6)
    found = fleet.found()
    first = found.log_ppb[:6] - np.asarray(log_ppb(rates[:6]))
    assert np.abs(first - np.median(first)).max() < 30
    assert np.isinf(found.sigma_ppb[8])
    assert (found.sigma_ppb[6:8] >= 100).all()


def test_absurd_vertices_change_nothing() -> None:
    """Out of order, at one instant, or billions of ns away."""
    fleet = window(6)
    before = fleet.errors_ppb(fleet.found())
    fleet.pairs.forward.delay_ns[:3] = 1e18, -1e18, 1e18
    fleet.pairs.reverse.after_s[:2] = 0.5, 0.5
    after = fleet.errors_ppb(fleet.found())
    assert np.isfinite(after).all()
    assert np.abs(after - before).max() < 30


def test_edges_have_the_slopes_of_both_directions() -> None:
    """Readings of 100 ns more per second forward and 100 less backward: the peer's clock is faster."""
    fleet = window(1, edges=[(0, 1)], rates=np.zeros(2))
    edges = HullEdges.of(fleet.pairs, np.array([NOISE_NS]))
    counts = int(fleet.pairs.forward.counts[0]), int(fleet.pairs.reverse.counts[0])
    assert len(edges.pair) <= sum(counts) - 2
    forward, reverse = fleet.pairs.forward, fleet.pairs.reverse
    slopes = [np.diff(each.delay_ns) / np.diff(each.after_s) for each in (forward, reverse)]
    wanted = fleet.pairs.drift_ppb[0] + np.concatenate([slopes[0], -slopes[1]])
    assert plain_ppb(edges.drift_log_ppb) == pytest.approx(wanted[: len(edges.pair)], rel=1e-6, abs=1e-3)

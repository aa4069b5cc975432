"""Baselines of the clock bench on samples of known clocks: they find them, and drop what cannot be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fabrictime.bench.clock.baselines import (
    Huygens,
    MinimumFilter,
    PairLine,
    PairSamples,
    _min_round_trip,
    mesh_lines,
)
from fabrictime.bench.clock.samples import simulate
from fabrictime.bench.clock.scenarios import SCENARIOS

QUIET = replace(SCENARIOS["idle"].smaller(6, 3, 3), stamp_noise_ns=0.0, wander_ppb_per_sqrt_s=0.0)


def samples(offset_ns: float, drift_ppb: float, queue_ns: np.ndarray, coded: bool = True) -> PairSamples:
    """A pair with a delay of 1 us and queues; the peer's clock is ahead by a line."""
    n = len(queue_ns)
    sent_s = np.linspace(-0.5, 0.5, n)
    ahead = offset_ns + drift_ppb * sent_s
    zero = np.zeros(n)
    return PairSamples(
        1, 0, 0, sent_s, sent_s, 1000 + queue_ns + ahead, 1000 - ahead + zero, np.full(n, coded)
    )


def test_the_sample_with_the_shortest_round_trip_gives_the_offset() -> None:
    queue = np.full(64, 5000.0)
    queue[20] = 0
    found = _min_round_trip(samples(300.0, 0.0, queue), 0, None)
    assert found.offset_ns == pytest.approx(300)
    assert _min_round_trip(samples(300.0, 0.0, queue), 0, {0: 9.0, 1: 2.0}).drift_ppb == 7


def test_both_find_the_clocks_of_a_quiet_fleet() -> None:
    pytest.importorskip("sklearn")
    for estimator, limit_ns in ((MinimumFilter(), 100.0), (Huygens(None), 100.0)):
        for given in simulate(QUIET):
            lines = estimator.window(given)
        middle = given.start_ns + given.window_ns / 2
        off = []
        for index, name in enumerate(given.truth.names):
            ahead = float(given.truth.ahead_ns(index, np.array([middle]))[0])
            off.append(lines[name].offset_ns + ahead)
        assert np.ptp(off) < limit_ns, estimator.name


def test_a_line_between_the_clouds_has_their_offset_and_drift() -> None:
    pytest.importorskip("sklearn")
    queue = np.random.default_rng(1).exponential(500, 400)
    found = Huygens(None).fit(samples(-700.0, 40.0, queue), 0)
    assert found is not None
    assert found.offset_ns == pytest.approx(-700, abs=20)
    assert found.drift_ppb == pytest.approx(40, abs=60)


def test_pairs_that_changed_their_spacing_and_single_probes_are_dropped() -> None:
    pytest.importorskip("sklearn")
    queue = np.zeros(8)
    queue[2] = 100
    pair = samples(0.0, 0.0, queue)
    guarded = Huygens(25.0)
    assert guarded._pure(pair, pair.forward).tolist() == [True, True, False, False, True, True, True, True]
    assert guarded.fit(samples(0.0, 0.0, queue, coded=False), 0) is None
    assert Huygens(None)._pure(pair, pair.forward).all()


def test_the_mesh_closes_every_loop() -> None:
    given = next(iter(simulate(QUIET)))
    names = given.truth.names
    at = [given.flushes[name][-1].clock_ns for name in names[:3]]
    pairs = [PairLine(a, b, at[a], offset, 0.0) for a, b, offset in ((0, 1, 10), (1, 2, 20), (0, 2, 33))]
    clocks, _, offsets, _ = mesh_lines(given, pairs)
    assert clocks == [0, 1, 2]
    differences = [offsets[0] - offsets[1], offsets[1] - offsets[2], offsets[0] - offsets[2]]
    assert differences == pytest.approx([11, 21, 32], abs=1e-6), "the surplus of 3 is spread evenly"

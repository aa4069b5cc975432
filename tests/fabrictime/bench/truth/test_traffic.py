"""Drawn arrivals have the load, the bursts and the sizes that were asked for."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth.traffic import PACKET_BYTES, Standing, Traffic, standing_arrivals

RATE_BPS = 10e9


@pytest.mark.parametrize("swing", [0.0, 0.5])
def test_the_background_has_its_load(swing: float) -> None:
    traffic = Traffic(batch_packets=8, swing=swing)
    times, work = traffic.background(0.4, 0.0, 1e9, RATE_BPS, np.random.default_rng(1))
    assert work.sum() / 1e9 == pytest.approx(0.4, rel=0.05)
    assert set(work.tolist()) == {8 * PACKET_BYTES * 8e9 / RATE_BPS}
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] <= times[-1] < 1e9


def test_on_off_sources_are_burstier_than_batches_alone() -> None:
    def spread(swing: float) -> float:
        times, _ = Traffic(swing=swing).background(0.4, 0.0, 1e9, RATE_BPS, np.random.default_rng(1))
        count = np.bincount((times / 1e6).astype(int), minlength=1_000)
        return float(count.var() / count.mean())

    assert spread(0.0) == pytest.approx(1.0, rel=0.2)
    assert spread(0.5) > 3


def test_incasts_have_their_size_and_come_faster_than_the_link_sends() -> None:
    traffic = Traffic(incast_every_ns=10e6)
    found = traffic.incasts(np.array([7, 9]), 0.0, 1e9, RATE_BPS, np.random.default_rng(1))
    assert set(found) == {7, 9}
    sizes = np.array([work.sum() * RATE_BPS / 8e9 for each in found.values() for _, work in each])
    assert 60 < len(sizes) < 140
    assert 95e3 < sizes.min() < sizes.max() < 505e3
    times, work = found[7][0]
    assert work.sum() > 3 * (times[-1] - times[0])


def test_a_standing_queue_continues_over_the_cut_of_a_stretch() -> None:
    standing = Standing(link=0, begin_ns=1e6, end_ns=9e6)
    whole = standing_arrivals(standing, RATE_BPS, 0.0, 20e6)
    parts = [
        standing_arrivals(standing, RATE_BPS, 0.0, 5e6),
        standing_arrivals(standing, RATE_BPS, 5e6, 20e6),
    ]
    assert np.concatenate([part[0] for part in parts]) == pytest.approx(whole[0])
    assert np.concatenate([part[1] for part in parts]) == pytest.approx(whole[1])
    assert len(standing_arrivals(standing, RATE_BPS, 10e6, 20e6)[0]) == 0

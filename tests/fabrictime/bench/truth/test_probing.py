"""Probes through true queues: times of arrival, waits and stamps."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth.clocks import Clocks
from fabrictime.bench._truth.fabric import LeafSpine
from fabrictime.bench._truth.probing import Probes, Stamps, probe
from fabrictime.bench._truth.queues import LinkQueueing
from fabrictime.bench._truth.traffic import Standing, Traffic

FABRIC = LeafSpine(nics=4, leaves=2, spines=2, delay_ns=1_000.0)


def sent(queues: LinkQueueing, sent_ns: list[float], *, sees_first: bool = False) -> Stamps:
    nic, peer = np.zeros(len(sent_ns), np.int64), np.full(len(sent_ns), 3)
    none = np.zeros(len(sent_ns), np.int64)
    there, back = FABRIC.routes(nic, peer, none), FABRIC.routes(peer, nic, none + 1)
    probes = Probes(nic, peer, none + 9_320, np.array(sent_ns), there, back)
    return probe(queues, probes, np.random.default_rng(1), sees_first=sees_first)


def test_without_queues_a_probe_takes_the_delay_of_its_links() -> None:
    queues = LinkQueueing(FABRIC, Traffic(idle=1.0, incast_every_ns=0.0), np.random.default_rng(1))
    queues.advance(10e6)
    stamps = sent(queues, [1e6, 2e6])
    assert stamps.t2 - stamps.t1 == pytest.approx([4_000.0, 4_000.0])
    assert stamps.t4 - stamps.t3 == pytest.approx([4_000.0, 4_000.0])
    assert np.isnan(stamps.met_ns[:, 0]).all()
    assert np.nanmax(stamps.met_ns) == 0


def test_a_standing_queue_delays_the_probes_that_cross_it() -> None:
    standing = Standing(FABRIC.up(0, 0), 2e6, 8e6, 125e3)
    queues = LinkQueueing(
        FABRIC, Traffic(idle=1.0, incast_every_ns=0.0, standing=(standing,)), np.random.default_rng(1)
    )
    queues.advance(10e6)
    stamps = sent(queues, [1e6, 5e6])
    forward = stamps.t2 - stamps.t1
    assert forward[0] == pytest.approx(4_000.0)
    assert forward[1] == pytest.approx(4_000.0 + 100_000.0, rel=0.21)
    assert stamps.met_ns[1, 1] == pytest.approx(forward[1] - 4_000.0)
    assert stamps.t4[1] - stamps.t3[1] == pytest.approx(4_000.0)


def test_stamps_are_the_clocks_readings_with_noise_in_steps() -> None:
    queues = LinkQueueing(FABRIC, Traffic(idle=1.0, incast_every_ns=0.0), np.random.default_rng(1))
    queues.advance(10e6)
    stamps = sent(queues, np.linspace(0, 9e6, 500).tolist())
    clocks = Clocks(np.array([1e9, -3e8, 5e6, 0.0]), np.array([[5_000.0], [-5_000.0], [17.0], [0.0]]))
    t1, t2, _, t4 = stamps.read(clocks, 1_000, np.random.default_rng(2))
    offset = clocks.ahead_ns(np.full(500, 3), stamps.t2) - clocks.ahead_ns(np.zeros(500, np.int64), stamps.t1)
    assert np.mean(t2 - t1 - offset) == pytest.approx(4_000.0, abs=1.5)
    assert np.std(t2 - t1 - offset) == pytest.approx(np.hypot(4, 8 / np.sqrt(12)) * np.sqrt(2), rel=0.2)
    assert set(((t4 - 1_000) % 8).tolist()) == {0}


def test_stamps_of_stretches_join() -> None:
    queues = LinkQueueing(FABRIC, Traffic(), np.random.default_rng(1))
    queues.advance(10e6)
    joined = Stamps.joined([sent(queues, [1e6]), sent(queues, [2e6, 3e6])])
    assert joined.t1.tolist() == [1e6, 2e6, 3e6]
    assert joined.met_ns.shape == (3, 8)
    assert joined.links.shape == (3, 8)

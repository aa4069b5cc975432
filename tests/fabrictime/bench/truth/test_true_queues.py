"""The true queues against theory, and against themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth.fabric import LeafSpine
from fabrictime.bench._truth.queues import LinkQueueing
from fabrictime.bench._truth.traffic import Standing, Traffic

FABRIC = LeafSpine(nics=4, leaves=2, spines=1)


def drawn(traffic: Traffic, stretches: int = 4, seed: int = 1) -> LinkQueueing:
    queues = LinkQueueing(FABRIC, traffic, np.random.default_rng(seed))
    for stretch in range(stretches):
        queues.advance((stretch + 1) * 50e6)
    return queues


def test_mean_wait_and_busy_time_are_those_of_md1() -> None:
    traffic = Traffic(load=(0.6, 0.6), idle=0.0, batch_packets=1, swing=0.0, incast_every_ns=0.0)
    queues = LinkQueueing(FABRIC, traffic, np.random.default_rng(1))
    slots = []
    for stretch in range(4):
        queues.advance((stretch + 1) * 100e6)
        slots.append(queues.slots(1e6))
    work_bytes, load = 1_500, 0.6
    depth = np.concatenate([each.depth_bytes for each in slots]).mean()
    assert depth == pytest.approx(load * work_bytes / (2 * (1 - load)), rel=0.03)
    assert np.concatenate([each.busy for each in slots]).mean() == pytest.approx(load, rel=0.01)


def test_the_exact_mean_of_a_slot_is_that_of_many_readings() -> None:
    queues = drawn(Traffic(incast_every_ns=5e6))
    slots = queues.slots(1e6)
    at = queues.begin_ns + (np.arange(200_000) + 0.5) * 50e6 / 200_000
    for link in range(FABRIC.links):
        read = queues.bytes_of(queues.wait_ns(np.full(len(at), link), at)).reshape(50, -1).mean(axis=1)
        assert read == pytest.approx(slots.depth_bytes[:, link], abs=60)


def test_a_queue_goes_on_from_stretch_to_stretch() -> None:
    """The margin behind a stretch shows the same queue as the next stretch."""
    queues = LinkQueueing(FABRIC, Traffic(incast_every_ns=2e6), np.random.default_rng(2))
    queues.advance(20e6)
    at = np.linspace(20e6, 60e6, 1_000)
    link = np.arange(1_000) % FABRIC.links
    before = queues.wait_ns(link, at)
    queues.advance(60e6)
    assert queues.wait_ns(link, at) == pytest.approx(before, abs=1e-3)


def test_an_incast_and_a_standing_queue_have_their_depth() -> None:
    standing = Standing(link=5, begin_ns=10e6, end_ns=40e6, depth_bytes=250e3)
    queues = drawn(Traffic(idle=1.0, incast_every_ns=0.0, standing=(standing,)), stretches=1)
    depth = queues.slots(1e6).depth_bytes
    assert depth[11:39, 5] == pytest.approx(np.full(28, 250e3), rel=0.03)
    assert depth[:10].max() == depth[42:].max() == 0
    assert np.delete(depth, 5, axis=1).max() == 0


def test_an_idle_link_has_no_queue_but_for_incasts() -> None:
    queues = drawn(Traffic(idle=0.5), stretches=1)
    idle = np.flatnonzero(queues.load == 0)
    assert len(idle) == FABRIC.links // 2
    inner = np.setdiff1d(idle, FABRIC.into_hosts())
    assert queues.slots(1e6).depth_bytes[:, inner].max(initial=0) == 0

"""Outages that routing bypasses or that few probes see: their losses alone show that a link flaps."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from schemas.records import LinkHealth
from streams.policy.flows.path_health import PathHealth
from tests.streams.links.watched import MS, WARM, S, Watched, small


def last(it: Watched, cable: str) -> LinkHealth:
    return cast(LinkHealth, it.last(cable))


def flap(it: Watched, times: int) -> str:
    """Take a link down for half of each second; after 200 ms, switches lead its paths over another one.

    Return its cable.
    """
    probes, link, other = it.probes, it.link("leaf1", "spine2"), it.link("leaf1", "spine3")
    for _ in range(times):
        probes.down[link] = True
        it.run(200 * MS)
        crossing = np.flatnonzero((probes.links == link).any(axis=1))
        before = probes.links[crossing].copy()
        probes.links[crossing] = np.where(before == link, other, before)
        it.run(300 * MS)
        probes.links[crossing] = before
        probes.down[link] = False
        it.run(500 * MS)
    return it.cable("leaf1", "spine2")


@pytest.mark.parametrize(("seed", "rate_hz"), [(1, 60.0), (2, 100.0), (3, 150.0)])
def test_a_link_that_is_down_half_of_each_second_is_flapping(seed: int, rate_hz: float) -> None:
    it = small(seed, rate_hz=rate_hz)
    it.run(WARM + S)
    cable = flap(it, 20)
    assert it.ever_in("FLAPPING") == {cable}
    assert it.last(cable)["flaps_hour"] <= 21, "one each time"
    texts = [r["text"] for _, (_, r) in it.changes if r is not None and r["state"] == "FLAPPING"]
    assert all("times within the past hour" in text for text in texts)
    grey = [r for _, (_, r) in it.changes if r is not None and r["state"] == "GREY" and r["flaps_hour"] > 1]
    assert all(f"; it went down {r['flaps_hour']} times within the past hour" in r["text"] for r in grey)
    assert grey or seed != 1, "at 60 probes/s, it is GREY before it is FLAPPING"


@pytest.mark.parametrize(("seed", "share"), [(1, 0.3), (2, 0.05), (3, 0.3)])
def test_a_loss_rate_without_pauses_is_no_flap(seed: int, share: float) -> None:
    it = small(seed, rate_hz=100.0)
    it.run(WARM + S)
    it.probes.loss[it.link("leaf1", "spine2")] = share
    it.run(20 * S)
    assert it.ever_in("GREY") == {it.cable("leaf1", "spine2")}
    assert {r["flaps_total"] for _, (_, r) in it.changes if r is not None} == {0}


@pytest.mark.parametrize("pace", [0.4, 0.7])
def test_a_loss_rate_in_a_fabric_simulated_slower_than_real_time_is_no_flap(pace: float) -> None:
    it = small(1, rate_hz=100.0)
    it.run(WARM + S)
    begin_ns = it.probes.now_ns
    it.probes.loss[it.link("leaf1", "spine2")] = 0.2
    for _ in range(20 * S // (5 * MS)):
        for append_ns, event in it.probes.run(5 * MS):
            it.ingest(begin_ns + round((append_ns - begin_ns) / pace), event)
        it._keep(it.health.evaluate(begin_ns + round((it.probes.now_ns - begin_ns) / pace)))
    assert it.ever_in("GREY") == {it.cable("leaf1", "spine2")}
    assert {r["flaps_total"] for _, (_, r) in it.changes if r is not None} == {0}


def test_policy_takes_a_flapping_link_with_losses_for_lossy() -> None:
    it = small(1, rate_hz=60.0)
    it.run(WARM + S)
    cable = flap(it, 20)
    record = last(it, cable)
    assert (record["state"], record["loss_rate"] is not None) == ("FLAPPING", True)
    assert "loses" in record["text"]
    policy = PathHealth(S, S)
    policy.take(cable, record)
    [link] = record["links"]
    assert policy.of_links([link], it.probes.now_ns).grade.name == "LOSSY"
    it.run(10 * S)
    record = last(it, cable)
    assert (record["state"], record["loss_rate"]) == ("FLAPPING", None)
    assert "loses" not in record["text"]
    policy.take(cable, record)
    assert policy.of_links([link], it.probes.now_ns).grade.name == "DAMPENED"


def test_another_owner_of_the_shard_continues_with_the_losses_and_flaps() -> None:
    it = small(1, rate_hz=60.0)
    it.run(WARM + S)
    cable = flap(it, 20)
    other = small(1)
    other.health.recover([last(it, cable)])
    subject = other.health.subjects[cable]
    assert subject.state == "FLAPPING"
    assert len(subject.flaps) == last(it, cable)["flaps_hour"]
    assert subject.grey

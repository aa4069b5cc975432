"""Losses of one traffic class: the verdict names the class, and that others are not affected."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import LinkHealth
from streams.links.health.shard_health import ShardHealth
from streams.links.health.text import loss_text
from streams.runtime.loss_rates import ClassRate, Lossy
from tests.streams.links.watched import WARM, S, Watched, small

DSCPS = (0, 26)


def classed(seed: int = 1, dscps: tuple[int, ...] = DSCPS, **settings: Any) -> Watched:
    it = small(seed, dscps=dscps, **settings)
    it.run(WARM)
    return it


def lossy_dscps(record: LinkHealth) -> set[int]:
    return {each["dscp"] for each in record["classes"] if each["is_lossy"]}


@pytest.mark.parametrize(("seed", "share"), [(1, 1.0), (2, 1.0), (3, 0.3), (4, 0.05)])
def test_a_queue_that_loses_one_class_is_grey_in_that_class(seed: int, share: float) -> None:
    it = classed(seed)
    link = it.link("leaf1", "spine2")
    it.probes.class_loss[1, link] = share
    began_ns = it.probes.now_ns
    it.run(4 * S)
    cable = it.cable("leaf1", "spine2")
    assert it.ever_in("GREY") == {cable}
    assert it.ever_in("DOWN") == set()
    assert it.changes[0][0] - began_ns < 2 * S
    last = it.last(cable)
    assert last["links"] == [it.fleet.link_ids[link]]
    assert lossy_dscps(last) == {26}
    lost, free = last["classes"][1], last["classes"][0]
    assert (free["dscp"], lost["dscp"]) == DSCPS
    assert abs(lost["loss_rate"] - share) <= 0.5 * share
    assert lost["loss_rate"] == last["loss_rate"]
    assert free["loss_rate_high"] < lost["loss_rate_low"]
    assert "of DSCP 26" in last["text"]
    assert "other classes are not affected (DSCP 0:" in last["text"]
    it.probes.class_loss[:] = 0
    it.run(10 * S, until=lambda: it.state(cable) == "UP")
    assert it.last(cable)["classes"] == []
    assert it.ever_in("DOWN") == set()


def test_a_small_loss_in_one_of_eight_classes_is_found() -> None:
    """All classes together lose less than the threshold of a GREY link."""
    it = classed(dscps=(0, 8, 10, 18, 26, 34, 46, 48), rate_hz=4000.0)
    it.probes.class_loss[4, it.link("leaf1", "spine2")] = 0.05
    it.run(8 * S)
    cable = it.cable("leaf1", "spine2")
    assert it.ever_in("GREY") == {cable}
    assert lossy_dscps(it.last(cable)) == {26}


@pytest.mark.parametrize("seed", [1, 2])
def test_losses_of_all_classes_name_none(seed: int) -> None:
    it = classed(seed)
    it.probes.loss[it.link("leaf1", "spine2")] = 0.2
    it.run(4 * S)
    cable = it.cable("leaf1", "spine2")
    records = [r for _, (s, r) in it.changes if s == cable and r is not None]
    assert it.ever_in("GREY") == {cable}
    assert all(lossy_dscps(record) == set() for record in records)
    assert {each["dscp"] for each in records[-1]["classes"]} == set(DSCPS)
    assert "DSCP" not in records[-1]["text"]


@pytest.mark.parametrize("seed", [1])
def test_two_links_that_lose_different_classes_are_distinguished(seed: int) -> None:
    it = classed(seed, rate_hz=2000.0)
    it.probes.class_loss[0, it.link("leaf2", "spine3")] = 0.3
    it.probes.class_loss[1, it.link("leaf1", "spine2")] = 1.0
    it.run(4 * S)
    first, second = it.cable("leaf2", "spine3"), it.cable("leaf1", "spine2")
    assert it.ever_in("GREY") == {first, second}
    assert lossy_dscps(it.last(first)) == {0}
    assert lossy_dscps(it.last(second)) == {26}


def test_the_queue_of_a_hosts_own_port_is_named_too() -> None:
    it = classed()
    it.probes.class_loss[1, it.link("h3", "leaf2")] = 1.0
    it.run(3 * S)
    cable = it.cable("h3", "leaf2")
    assert it.ever_in("GREY") == {cable}
    assert lossy_dscps(it.last(cable)) == {26}
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize("seed", [1])
def test_a_dead_link_is_down_in_all_classes(seed: int) -> None:
    it = classed(seed)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(2 * S)
    assert it.ever_in("DOWN") == {it.cable("leaf1", "spine2")}
    it.probes.down[:] = False
    it.run(5 * S)
    assert it.ever_in("GREY") == set(), "the outage is no loss rate of a class"


def test_without_losses_classes_change_nothing() -> None:
    it = classed()
    rates = it.health.evidence
    it.run(5 * S)
    assert it.changes == []
    assert rates.dscps == list(DSCPS)
    assert rates.class_answered.sum() == rates.answered.sum() > 0


def test_a_new_owner_of_the_shard_knows_the_class() -> None:
    it = classed()
    it.probes.class_loss[1, it.link("leaf1", "spine2")] = 1.0
    it.run(3 * S)
    before = it.last(it.cable("leaf1", "spine2"))
    again = ShardHealth("fabric", source="links/0")
    again.recover([before])
    found = [r for _, r in again.evaluate(it.probes.now_ns + 20 * S) if r is not None]
    assert all(r["classes"] == before["classes"] for r in found)
    it.health = again
    it.changes.clear()
    it.run(2 * S)
    assert it.ever_in("UP") == set()


def test_the_text_names_each_class() -> None:
    rates = (
        ClassRate(0, 0.0, 0.0, 0.004),
        ClassRate(26, 0.5, 0.4, 0.6, is_lossy=True),
        ClassRate(34, 0.9, 0.8, 0.95, is_lossy=True),
    )
    lossy = Lossy(3, (), 0.9, 0.8, 0.95, 90, 100, 4, rates)
    assert loss_text(lossy, "12:00:00.000") == (
        "loses 90.0% of its packets of DSCP 34 (95%: 80.0% to 95.0%) and 50.0% of its packets of DSCP 26 "
        "(95%: 40.0% to 60.0%) since 12:00:00.000; other classes are not affected "
        "(DSCP 0: 0.0%, at most 0.4%)"
    )
    assert loss_text(Lossy(3, (), 0.9, 0.8, 0.95, 90, 100, 4), "12:00:00.000") == (
        "loses 90.0% of its packets since 12:00:00.000 (95%: 80.0% to 95.0%)"
    )

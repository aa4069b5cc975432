"""Subjects: flaps are counted once, and removed cables are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from streams.links.health.shard_health import ShardHealth
from tests.examples import draws
from tests.streams.links.watched import MS, WARM, S, Watched, lead, small


def flap(it: Watched, link: int, times: int) -> None:
    for _ in range(times):
        it.probes.down[link] = True
        it.run(150 * MS)
        it.probes.down[link] = False
        it.run(450 * MS)


def test_a_link_that_flaps_is_flapping_and_its_flaps_are_counted() -> None:
    it = small(thresholds={"flaps_max": 3})
    it.run(WARM)
    cable = it.cable("leaf2", "spine3")
    flap(it, it.link("leaf2", "spine3"), 3)
    assert it.state(cable) == "UP"
    flap(it, it.link("leaf2", "spine3"), 1)
    assert it.state(cable) == "FLAPPING"
    record = it.last(cable)
    assert (record["flaps_hour"], record["flaps_total"], len(record["flap_ns"])) == (4, 4, 4)
    assert record["text"] == "leaf2 to spine3 flapped 4 times within the past hour"
    hour_later = it.probes.now_ns + 3600 * S
    it._keep(it.health.evaluate(hour_later))
    assert it.state(cable) == "UP"
    assert it.last(cable)["flaps_total"] == 4


def test_five_flaps_within_ten_seconds_are_enough_as_for_switches() -> None:
    it = small()
    it.run(WARM)
    cable = it.cable("leaf2", "spine3")
    flap(it, it.link("leaf2", "spine3"), 4)
    assert it.state(cable) == "UP"
    flap(it, it.link("leaf2", "spine3"), 1)
    assert it.state(cable) == "FLAPPING"
    assert it.last(cable)["text"] == "leaf2 to spine3 flapped 5 times within the past hour"
    recovered = ShardHealth("fabric", it.health.thresholds, "links/0")
    recovered.recover([it.last(cable)])
    assert recovered.subjects[cable].state == "FLAPPING"
    it._keep(it.health.evaluate(it.probes.now_ns + 3600 * S))
    assert it.state(cable) == "UP"


@pytest.mark.parametrize("seed", draws(range(4)))
def test_flaps_are_counted_once_whenever_the_worker_dies_and_how_much_it_reads_again(seed: int) -> None:
    it = small(seed + 1)
    it.run(WARM)
    link, cable = it.link("leaf2", "spine3"), it.cable("leaf2", "spine3")
    published: dict[str, dict[str, Any]] = {}

    def die(back: int) -> None:
        """A new owner: the last record of each subject, and the newest `back` events once more."""
        published.update({s: r for _, (s, r) in it.changes if r is not None})
        recovered = ShardHealth("fabric", it.health.thresholds, "links/0")
        recovered.recover(published.values())
        begin = max(0, len(it.log) - back)
        for offset, (append_ns, event) in enumerate(it.log[begin:], begin):
            it._keep(recovered.ingest(event, append_ns, it.probes.book, offset))
        it.health = recovered

    for number in range(6):
        it.probes.down[link] = True
        it.run((110 + 13 * seed) * MS)
        if number % 2:
            die(400 + 100 * seed)
        it.probes.down[link] = False
        it.run((300 + 29 * number) * MS)
        if number % 2 == 0:
            die(3000)
        it.run(100 * MS)
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert (record["flaps_total"], record["flaps_hour"]) == (6, 6)
    assert record["state"] == "FLAPPING"
    assert record["seq"] == 12


@pytest.mark.slow("simulates a day")
def test_a_removed_switch_is_forgotten_after_a_day() -> None:
    it = small()
    it.run(WARM)
    lead(it, "spine2", None)
    it.run(1500 * MS)
    cables = {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}
    assert it.ever_in("DOWN") == cables
    hour = 3_600 * S
    it._keep(it.health.evaluate(it.probes.now_ns + 23 * hour))
    assert {it.state(cable) for cable in cables} == {"DOWN"}
    it._keep(it.health.evaluate(it.probes.now_ns + 25 * hour))
    assert {it.state(cable) for cable in cables} == {None}
    assert "no longer exists: no path has crossed it" in it.last(cables.pop())["text"]


def plug(it: Watched, leaf: str, one: str, other: str) -> None:
    """Exchange the cables of two spines at a leaf: as probes see it, links of other names at once."""
    ids, new = it.fleet.link_ids, {}
    for up in (True, False):
        a, b = (ids[it.link(*((leaf, spine) if up else (spine, leaf)))] for spine in (one, other))
        (a_near, a_far), (b_near, b_far) = a.split(">"), b.split(">")
        new |= {a: f"{b_near}>{a_far}", b: f"{a_near}>{b_far}"} if up else {
            a: f"{a_near}>{b_far}", b: f"{b_near}>{a_far}"
        }  # fmt: skip
    book = it.probes.book
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            links[key] = tuple(new.get(link, link) for link in route)
    book.version += 1


@pytest.mark.parametrize("lost_ns", [0, 100 * MS])
def test_a_cable_that_is_plugged_elsewhere_is_no_more_and_not_down(lost_ns: int) -> None:
    it = small()
    it.run(WARM)
    before = dict(it.probes.book._forward), dict(it.probes.book._reverse)
    gone = {it.cable("leaf1", "spine1"), it.cable("leaf1", "spine2")}
    if lost_ns:
        it.probes.down[[it.link("leaf1", "spine1"), it.link("leaf1", "spine2")]] = True
        it.run(lost_ns)
        it.probes.down[:] = False
        assert it.ever_in("DOWN") == gone
    plug(it, "leaf1", "spine1", "spine2")
    it.run(4 * S)
    assert it.ever_in("DOWN") == (gone if lost_ns else set())
    assert not gone & it.health.subjects.keys(), "forgotten, so that no page draws them"
    if lost_ns:
        assert any(
            "no longer exists: its port is now on leaf1:" in r["text"] for _, (_, r) in it.changes if r
        )
    for links, was in zip((it.probes.book._forward, it.probes.book._reverse), before, strict=True):
        links.update(was)
    it.probes.book.version += 1
    it.run(4 * S)
    assert it.ever_in("DOWN") == (gone if lost_ns else set()), "and plugged back it is there again"
    it.probes.down[it.link("leaf1", "spine1")] = True
    it.run(200 * MS)
    assert it.state(it.cable("leaf1", "spine1")) == "DOWN"
